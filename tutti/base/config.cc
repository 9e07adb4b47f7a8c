#include "tutti/base/config.h"

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/every.h"
#include "tutti/base/live_line.h"
#include "tutti/base/log.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

// Above these limits, counts of steps and examples could overflow.
constexpr double kMostSteps = 1e12;
constexpr double kMostEpochs = 1e9;
constexpr double kMostBatch = 1e9;
constexpr double kMostThreads = 4096;
constexpr double kMostKept = 1e9;
constexpr double kMostTaskIndex = 999'999;
constexpr double kMostSeconds = 1e6;  // 11 days

// Returns true if parse(text) does not throw.
template <class Parse>
bool is_good(Parse parse, const std::string& text) {
  try {
    static_cast<void>(parse(text));
    return true;
  } catch (const Error&) {
    return false;
  }
}

void add_training_flags(FlagSet& set, RunConfig& config) {
  set.group("Training");
  set.add_choice(
      "--strategy", config.training.strategy, {"single", "allreduce", "ps-sync", "ps-async", "in-graph"},
      "how a step is computed: single: by this process alone; allreduce: by adding the gradients of all "
      "workers; ps-sync: by parameter servers that wait for all workers; ps-async: by servers that wait for "
      "none; in-graph: by a master, whose workers keep no state; if not given: single in a job of one task, "
      "ps-async if there are parameter servers, else allreduce");
  set.add("--lanes", config.training.lanes,
          "number of equal shares of every global batch; the bits of the result depend on it, but not on "
          "the number of workers; 0: one for each worker");
  set.between("--lanes", 0, kMostLanes);
  set.add("--batch", config.training.batch, "examples per lane and step");
  set.between("--batch", 1, kMostBatch);
  set.add("--steps", config.training.steps,
          "train for this many global steps; 0: --epochs determines the number");
  set.between("--steps", 0, kMostSteps);
  set.add("--epochs", config.training.epochs,
          "number of passes over all examples; 0, with --steps 0: one pass");
  set.between("--epochs", 0, kMostEpochs);
  set.exclusive("--steps", "--epochs");
  set.add(
      "--stop-after", config.training.stop_after,
      "stop after this global step if there are more to make, as after a signal but with exit code 0, and "
      "save a checkpoint from which the same command without this flag continues; --steps and schedules "
      "stay as they are; 0: do not stop");
  set.between("--stop-after", 0, kMostSteps);
  set.add("--drop-remainder", config.training.drop_remainder,
          "leave out the last examples of an epoch if they do not fill a step of all lanes");
  set.add("--seed", config.training.seed,
          "seed of the initial weights, of the order of examples and of dropout; any whole number");
  set.add_choice("--precision", config.compute.precision, {"fp32", "bf16"},
                 "number format of the forward and backward passes; weights are always fp32");
  set.add_choice("--layout", config.compute.layout, {"auto", "contiguous", "channels-last"},
                 "memory format of images and convolution kernels; auto: channels-last if the model has "
                 "convolutions");
  set.add("--nan-guard", config.training.nan_guard,
          "stop when the loss is NaN or infinite, and name the first tensor with such a value");
  set.add("--audit", config.training.audit,
          "number of steps after which one lane, drawn from the seed, is computed by another worker as well, "
          "which finds hardware that computes wrongly before it changes a weight; 0: never");
  set.between("--audit", 0, kMostSteps);
  set.add_choice("--audit-action", config.training.audit_action, {"stop", "redo", "evict"},
                 "what to do if --audit finds a difference: stop: end the job with an error that names the "
                 "worker; redo: make the step again, and stop if that does not help; evict: go on without "
                 "the worker (`tutti run --min`)");
  set.scope(FlagScope::Job, {"--strategy", "--lanes", "--steps", "--epochs", "--stop-after", "--nan-guard",
                             "--audit", "--audit-action", "--layout"});
  set.scope(FlagScope::Model, {"--batch", "--drop-remainder", "--seed", "--precision"});
}

void add_place_flags(FlagSet& set, RunConfig& config) {
  set.group("Where it runs");
  set.add(
      "--device", config.compute.device,
      "auto, cpu, cuda, cuda:N or /gpu:N; auto: the GPU with the local rank's number, or the CPU if there "
      "is no GPU");
  set.add("--threads", config.compute.threads,
          "number of threads that compute one operator; 0: the cores of this machine divided "
          "by the workers on it");
  set.between("--threads", 0, kMostThreads);
  set.add("--inter-op-threads", config.compute.inter_op_threads,
          "number of operators that may run at the same time; 0: LibTorch's default");
  set.between("--inter-op-threads", 0, kMostThreads);
  set.add_choice("--kernels", config.compute.kernels, {"auto", "same", "strict", "libtorch"},
                 "same: operators that give the same bits on every processor and with any number of threads; "
                 "strict: end with an error if the model needs one that does not; libtorch: LibTorch's own; "
                 "auto: same on CPUs, and LibTorch's on GPUs");
  set.add("--mixed-machines", config.compute.mixed_machines,
          "train even if the processors of the tasks, their libraries or settings differ; the bits of the "
          "result then depend on which task runs where");
  set.scope(FlagScope::Local, {"--device", "--inter-op-threads"});
  set.scope(FlagScope::Job, {"--threads", "--kernels", "--mixed-machines"});
}

void add_carrier_flags(FlagSet& set, RunConfig& config) {
  set.add_choice("--comm", config.network.backend,
                 {"auto", "shm", "tcp", "mpi", "nccl", "shm+tcp", "shm+mpi", "gloo", "shm+gloo"},
                 "how gradients are sent: shm is shared memory and needs all workers on one host, tcp is "
                 "TCP, mpi is Open MPI, nccl is NVIDIA's NCCL between GPUs (experimental), shm+tcp and "
                 "shm+mpi use shared "
                 "memory within a host and TCP or MPI between hosts; "
                 "auto: nccl if each worker has a GPU of its own and a check of it succeeds, else shm+tcp; "
                 "gloo is a former name of tcp");
  set.add("--timeout", config.network.timeout,
          "seconds to wait for another task before giving up and naming it");
  set.above("--timeout", 0, kMostSeconds);
  set.add_choice(
      "--message-checksums", config.network.message_checksums, {"auto", "on", "off"},
      "whether TCP messages that TLS does not encrypt have checksums of 32 bits; auto: between hosts");
  set.scope(FlagScope::Local, {"--timeout", "--message-checksums"});
  set.scope(FlagScope::Job, {"--comm"});
}

void add_comm_flags(FlagSet& set, RunConfig& config) {
  set.group("Communication between workers");
  set.add_choice(
      "--reduce", config.reduction.order, {"tree", "fast"},
      "order in which gradients are added: tree gives the same bits on any number of workers, fast "
      "leaves the order to the backend");
  set.add_choice(
      "--wire-precision", config.reduction.wire_precision, {"fp32", "bf16", "fp16"},
      "number format of gradients that are sent over a network; with bf16 and fp16 the bits depend "
      "on the number of workers");
  set.add("--error-feedback", config.reduction.error_feedback,
          "add the rounding error of --wire-precision to the next gradient");
  set.add_choice(
      "--optimizer-state", config.reduction.optimizer_state, {"auto", "replicated", "sharded"},
      "replicated: every worker keeps all of the optimiser's state; sharded: each keeps and updates "
      "its own part; auto: sharded if all workers share memory");
  set.add(
      "--replicas", config.reduction.replicas,
      "with tutti run --min: copies of each row of sharded embeddings on another worker, on another host if "
      "there is one, and of each parameter server's part on another server, so that nothing is lost with "
      "one; "
      "0: the others go back to the newest checkpoint");
  set.between("--replicas", 0, 1);
  set.scope(FlagScope::Job,
            {"--reduce", "--wire-precision", "--error-feedback", "--optimizer-state", "--replicas"});
  add_carrier_flags(set, config);
}

bool is_placement(const std::string& text) {
  constexpr std::string_view kSplit = "split:";
  if (text == "round-robin" || text == "greedy") return true;
  return text.starts_with(kSplit) && parse_bytes(text.substr(kSplit.size())).value_or(0) > 0;
}

void add_parameter_server_flags(FlagSet& set, RunConfig& config) {
  set.group("Parameter servers");
  set.add("--placement", config.servers.placement,
          "which server keeps which parameter: round-robin in the order in which they were created, greedy "
          "by size, or split:SIZE (split:4M), which splits parameters larger than SIZE "
          "bytes along their first axis");
  set.require("--placement", "round-robin, greedy or split:SIZE, such as split:65536 or split:4M",
              is_placement);
  set.add("--log-placement", config.output.log_placement,
          "log a line for every parameter and lane with its task, device and host");
  set.add("--staleness", config.servers.staleness,
          "ps-async: how many steps a worker may be ahead of the slowest one; 0: none; -1: no limit");
  set.between("--staleness", -1, kMostSteps);
  set.add("--overlap", config.servers.overlap,
          "ps-async: push and pull while the next gradients are computed; these gradients are then computed "
          "from values that are older by one update of each worker");
  set.add("--backup", config.servers.backup,
          "ps-sync: number of workers whose gradients a step does not wait for; the gradients that arrive "
          "last are dropped");
  set.between("--backup", 0, kMostLanes);
  set.scope(FlagScope::Local, {"--log-placement"});
  set.scope(FlagScope::Job, {"--placement", "--staleness", "--overlap", "--backup"});
}

void add_server_flags(FlagSet& set, RunConfig& config) {
  set.group("Connections to servers");
  set.add("--tls-cert", config.security.tls_cert,
          "PEM file with this task's certificate; its servers then use TLS");
  set.add("--tls-key", config.security.tls_key, "PEM file with the private key of --tls-cert");
  set.add("--tls-ca", config.security.tls_ca,
          "PEM file with the certificate of the authority that signed the other tasks' certificates; this "
          "task then calls with TLS, and its servers require a certificate from their callers");
  set.add("--secret", config.security.secret,
          "a secret that all tasks of the job share; set the variable TUTTI_SECRET instead of this flag, so "
          "that the list of processes does not show it. `tutti run` makes one if there is none");
  set.add("--insecure", config.security.insecure,
          "listen to other machines even without a secret, so that everybody there can take part in the job");
  set.add("--allow-programs", config.security.allow_programs,
          "let a server that has no program run the programs (TorchScript) that callers send it");
  set.add("--start-timeout", config.network.start_timeout,
          "with servers or a master: seconds to wait until all tasks have started, in any order, before "
          "giving up and naming the missing ones; workers alone wait for --timeout");
  set.above("--start-timeout", 0, kMostSeconds);
  set.hide("--secret");
  set.scope(FlagScope::Local, {"--tls-cert", "--tls-key", "--tls-ca", "--secret", "--insecure",
                               "--allow-programs", "--start-timeout"});
}

void add_log_flags(FlagSet& set, RunConfig& config) {
  set.add_choice("--log", config.output.log, {kLogAuto, kLogLive, kLogPlain},
                 "a line on stderr that changes in place shows the progress: auto: in a terminal; live: "
                 "always, as `tutti run` asks for, which shows it; plain: never, but lines of the log");
  set.add_choice("--log-level", config.output.log_level, log_level_names(),
                 "minimum severity of the messages that are printed");
  set.scope(FlagScope::Local, {"--log", "--log-level"});
}

void add_file_flags(FlagSet& set, RunConfig& config) {
  set.group("Files and logging");
  set.add("--data", config.data.path, "folder or file with the examples");
  set.add_choice("--bad-rows", config.data.bad_rows, {"error", "skip"},
                 "what to do with a table row that cannot be read: error: stop; skip: "
                 "leave it out and count it");
  set.add("--feed-timeout", config.data.timeout,
          "seconds to wait for the examples of a step before giving up and naming the "
          "data that is being read");
  set.above("--feed-timeout", 0, kMostSeconds);
  set.add("--logdir", config.checkpoints.logdir,
          "folder for checkpoints and event files; '': neither is written");
  set.add_choice(
      "--resume", config.checkpoints.resume, {"auto", "never", "must", "weights", "anyway"},
      "whether to continue from the newest checkpoint in --logdir: auto: if there is one; never: start from "
      "scratch; must: fail if there is none; weights: load its weights and start again at step 0; anyway: "
      "like auto, even if settings or data are not the same as in the run");
  set.add("--checkpoint-every", config.checkpoints.every,
          "save a checkpoint after this many steps (500) or seconds (600s); 0: only at the end; auto: as the "
          "time that a checkpoint costs and the failures of the run suggest");
  set.require("--checkpoint-every", "a number of steps (500) or of seconds (600s), or auto",
              [](const std::string& text) { return is_good(parse_every, text); });
  set.add("--keep", config.checkpoints.keep, "number of newest checkpoints to keep; 0: all");
  set.between("--keep", 0, kMostKept);
  set.add_choice(
      "--checkpoint-rows", config.checkpoints.rows, {"full", "changed"},
      "which rows of sharded embeddings a checkpoint contains: full: all; changed: those that have "
      "changed since the last checkpoint with all rows, as long as they are less than half");
  set.add("--hash-every", config.checkpoints.hash_every,
          "number of steps after which the hash of the weights is compared between workers, and written to "
          "--logdir for `tutti diff`; 0: compared with each checkpoint only");
  set.between("--hash-every", 0, kMostSteps);
  set.add("--export", config.exports.dir,
          "instead of training, export the checkpoint of --export-from, as a new version in this folder");
  set.add("--export-from", config.exports.from,
          "the checkpoint that --export exports: a folder ckpt-<step>, or a log directory; '': --logdir");
  set.add("--summary-every", config.output.summary_every,
          "number of steps between entries in the event file; 0: no entries");
  set.between("--summary-every", 0, kMostSteps);
  set.add(
      "--profile-steps", config.output.profile_steps,
      "record LibTorch's operators in these steps, into --timeline or --logdir: 10 is step 10, 10..12 are "
      "the steps 10 and 11");
  set.require("--profile-steps", "a step (10) or a range of steps (10..12)",
              [](const std::string& text) { return is_good(parse_step_interval, text); });
  set.add("--timeline", config.output.timeline,
          "file for a Chrome trace that shows how this worker spends its time; `tutti timeline` joins the "
          "files of all workers");
  set.add("--report", config.output.report, "JSON file for speed, loss, metrics and the hash of the weights");
  set.add(
      "--web", config.output.web,
      "port at which the chief serves a page about the run, with /metrics for Prometheus and /healthz, to "
      "this machine only; 0: any free port; HOST:PORT: to other machines too, which need the secret");
  set.require("--web", "a port (8080) or HOST:PORT",
              [](const std::string& text) { return text.empty() || is_good(parse_page_address, text); });
  add_log_flags(set, config);
  set.add("--config", config.config_file, "JSON file with values for any of these flags");
  // The contents of --data are compared by other means. Only the chief reads and writes --logdir.
  set.scope(FlagScope::Local,
            {"--data", "--feed-timeout", "--logdir", "--resume", "--keep", "--export", "--export-from",
             "--profile-steps", "--timeline", "--report", "--web", "--config"});
  set.scope(FlagScope::Job,
            {"--bad-rows", "--checkpoint-every", "--checkpoint-rows", "--hash-every", "--summary-every"});
}

void add_cluster_flags(FlagSet& set, RunConfig& config) {
  set.group("Cluster");
  set.add("--cluster_spec", config.cluster.spec,
          "the address of every task: 'ps|h:2222,worker|h:2223;h:2224', or JSON");
  set.add("--job_name", config.cluster.job, "this task's job: ps, worker, chief, ...");
  set.add("--task_index,--task_id", config.cluster.task, "this task's index in its job");
  set.between("--task_index", 0, kMostTaskIndex);
  set.scope(FlagScope::Local, {"--cluster_spec", "--job_name", "--task_index"});
}

}  // namespace

void add_standard_flags(FlagSet& set, RunConfig& config) {
  add_training_flags(set, config);
  add_place_flags(set, config);
  add_comm_flags(set, config);
  add_parameter_server_flags(set, config);
  add_server_flags(set, config);
  add_file_flags(set, config);
  add_cluster_flags(set, config);
}

FlagValues values_of(const RunConfig& config) {
  RunConfig defaults;
  FlagSet of_defaults("");
  add_standard_flags(of_defaults, defaults);
  RunConfig copy = config;
  FlagSet set("");
  add_standard_flags(set, copy);
  set.require_valid(of_defaults.values());
  return set.values();
}

void add_connection_flags(FlagSet& set, RunConfig& config) {
  set.group("Communication between workers");
  add_carrier_flags(set, config);
  add_log_flags(set, config);
  add_server_flags(set, config);
  add_cluster_flags(set, config);
}

}  // namespace tutti
