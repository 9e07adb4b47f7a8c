#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/base/every.h"
#include "tutti/base/flags.h"
#include "tutti/base/log.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

bool is_every(const std::string& text) {
  try {
    parse_every(text);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void add_training_flags(FlagSet& set, Flags& flags) {
  set.group("What is trained, and how far");
  set.add_choice(
      "--strategy", flags.strategy, {"single", "allreduce", "ps-sync", "ps-async", "in-graph"},
      "how a step is made; by itself single alone, ps-async where there are servers, else allreduce");
  set.add("--lanes", flags.lanes,
          "shares of every global batch, which fix the result to the bit; 0: one a worker");
  set.at_least("--lanes", 0);
  set.add("--batch", flags.batch, "examples per lane and step");
  set.at_least("--batch", 1);
  set.add("--steps", flags.steps, "global steps; 0: as many as --epochs says");
  set.at_least("--steps", 0);
  set.add("--epochs", flags.epochs, "times every example is seen; 0 with --steps 0: once");
  set.at_least("--epochs", 0);
  set.exclusive("--steps", "--epochs");
  set.add("--drop-remainder", flags.drop_remainder,
          "leave out the last examples of an epoch that do not fill a step of all lanes");
  set.add("--seed", flags.seed, "of weights, data order and dropout");
  set.add_choice("--precision", flags.precision, {"fp32", "bf16"},
                 "of forward and backward; weights stay fp32");
  set.add_choice("--layout", flags.layout, {"auto", "contiguous", "channels-last"},
                 "of images and convolution kernels; auto is channels-last where the model has such kernels");
  set.add("--nan-guard", flags.nan_guard,
          "end when the loss is no longer a number, and say what went bad first");
}

void add_place_flags(FlagSet& set, Flags& flags) {
  set.group("Where it runs");
  set.add(
      "--device", flags.device,
      "auto, cpu, cuda, cuda:N or /gpu:N; auto is the GPU of the local rank, or the CPU where there is none");
  set.add("--threads", flags.threads, "threads inside one kernel; 0: cores / workers on this machine");
  set.at_least("--threads", 0);
  set.add("--inter-op-threads", flags.inter_op_threads,
          "kernels that may run beside each other; 0: as many as LibTorch thinks right");
  set.at_least("--inter-op-threads", 0);
}

bool is_positive(const std::string& text) { return std::strtod(text.c_str(), nullptr) > 0; }

void add_carrier_flags(FlagSet& set, Flags& flags) {
  set.add_choice(
      "--comm", flags.comm, {"auto", "shm", "gloo", "mpi", "nccl", "shm+gloo", "shm+mpi"},
      "what carries the gradients: shared memory inside a host and Gloo's TCP or MPI between hosts, or one "
      "of them for all; auto is nccl where each worker has a GPU of its own, else shm+gloo");
  set.add("--timeout", flags.timeout, "seconds to wait for another task before giving up and naming it");
  set.require("--timeout", "a number of seconds above 0", is_positive);
}

void add_comm_flags(FlagSet& set, Flags& flags) {
  set.group("How the workers talk");
  set.add_choice(
      "--reduce", flags.reduce, {"tree", "fast"},
      "how gradients are added: tree gives the same bits on any number of workers, fast is in whatever "
      "order the backend adds");
  set.add_choice(
      "--wire-precision", flags.wire_precision, {"fp32", "bf16", "fp16"},
      "of gradients that are sent over a network; below fp32 the bits depend on the number of workers");
  set.add("--error-feedback", flags.error_feedback,
          "what --wire-precision rounds away is added to the next gradient");
  set.add_choice("--optimizer-state", flags.optimizer_state, {"auto", "replicated", "sharded"},
                 "sharded: each worker keeps and updates its own part; auto: where all share memory");
  add_carrier_flags(set, flags);
}

bool is_placement(const std::string& text) {
  constexpr std::string_view kSplit = "split:";
  if (text == "round-robin" || text == "greedy") return true;
  return text.starts_with(kSplit) && parse_bytes(text.substr(kSplit.size())).value_or(0) > 0;
}

void add_parameter_server_flags(FlagSet& set, Flags& flags) {
  set.group("What parameter servers do");
  set.add("--placement", flags.placement,
          "which server has which parameter: round-robin in the order in which they were made, greedy by "
          "bytes, or split:SIZE (split:4M), which cuts those that are larger along their first axis");
  set.require("--placement", "round-robin, greedy or split:SIZE, such as split:65536 or split:4M",
              is_placement);
  set.add("--log-placement", flags.log_placement, "a line for every parameter and lane: where it is");
  set.add("--staleness", flags.staleness,
          "ps-async: steps that a worker may be ahead of the slowest; 0 is lock step, -1 any number");
  set.at_least("--staleness", -1);
  set.add("--overlap", flags.overlap,
          "ps-async: push and pull travel while the next gradients are computed, which are then of values "
          "that are one update of each worker older");
  set.add("--backup", flags.backup,
          "ps-sync: so many workers' gradients, those that come last, are left out of a step");
  set.at_least("--backup", 0);
}

void add_server_flags(FlagSet& set, Flags& flags) {
  set.group("How tasks reach their servers");
  set.add("--tls-cert", flags.tls_cert, "this task's certificate, a file in PEM: servers then speak TLS");
  set.add("--tls-key", flags.tls_key, "the key of --tls-cert, a file in PEM");
  set.add("--tls-ca", flags.tls_ca,
          "the authority by which the others' certificates are checked, a file in PEM: this task then calls "
          "with TLS, and a server asks its callers for theirs");
  set.add(
      "--secret", flags.secret,
      "what all tasks of a job know and nobody else; give it as the variable TUTTI_SECRET, which keeps it "
      "out of the list of processes");
  set.add("--insecure", flags.insecure, "servers listen to other machines also without TLS");
  set.add("--allow-programs", flags.allow_programs,
          "a bare server carries out the programs (TorchScript) that callers send it");
  set.add("--start-timeout", flags.start_timeout,
          "seconds that the tasks have to come, in any order, before those missing are named");
  set.require("--start-timeout", "a number of seconds above 0", is_positive);
}

void add_log_flags(FlagSet& set, Flags& flags) {
  set.add_choice("--log-level", flags.log_level, log_level_names(), "the least that is worth a line");
}

void add_file_flags(FlagSet& set, Flags& flags) {
  set.group("What is read and written");
  set.add("--data", flags.data, "where the examples are");
  set.add_choice("--bad-rows", flags.bad_rows, {"error", "skip"},
                 "rows of tables in which something is wrong are an error, or are left out and counted");
  set.add("--feed-timeout", flags.feed_timeout,
          "seconds to wait for a batch before giving up and saying what is being read");
  set.require("--feed-timeout", "a number of seconds above 0", is_positive);
  set.add("--logdir", flags.logdir, "folder of checkpoints and event files; '' writes nothing at all");
  set.add_choice("--resume", flags.resume, {"auto", "never", "must"},
                 "from the newest checkpoint in --logdir: where there is one, not at all, or fail without");
  set.add("--checkpoint-every", flags.checkpoint_every, "steps (500) or seconds (600s); 0: only at the end");
  set.require("--checkpoint-every", "a number of steps (500) or of seconds (600s)", is_every);
  set.add("--keep", flags.keep, "newest checkpoints that are kept; 0: all");
  set.at_least("--keep", 0);
  set.add("--summary-every", flags.summary_every, "steps between two entries in the event file; 0: none");
  set.at_least("--summary-every", 0);
  set.add("--profile-steps", flags.profile_steps,
          "trace LibTorch's operators in these steps, into --timeline or --logdir: 10..12 are the steps 10 "
          "and 11");
  set.add("--timeline", flags.timeline,
          "Chrome trace of where all workers' time goes: open it in ui.perfetto.dev or chrome://tracing");
  set.add("--report", flags.report, "JSON file with speed, loss, metrics and the hash of the weights");
  add_log_flags(set, flags);
  set.add("--config", flags.config, "JSON file with values for any of these flags");
}

void add_cluster_flags(FlagSet& set, Flags& flags) {
  set.group("Clusters made by hand");
  set.add("--cluster_spec", flags.cluster_spec,
          "every task's address: 'ps|h:2222,worker|h:2223;h:2224', or JSON");
  set.add("--job_name", flags.job_name, "the job of this task: ps, worker, chief, ...");
  set.add("--task_index,--task_id", flags.task_index, "the index of this task in its job, from 0");
  set.at_least("--task_index", 0);
}

}  // namespace

void add_standard_flags(FlagSet& set, Flags& flags) {
  add_training_flags(set, flags);
  add_place_flags(set, flags);
  add_comm_flags(set, flags);
  add_parameter_server_flags(set, flags);
  add_server_flags(set, flags);
  add_file_flags(set, flags);
  add_cluster_flags(set, flags);
}

void add_connection_flags(FlagSet& set, Flags& flags) {
  set.group("How the workers talk");
  add_carrier_flags(set, flags);
  add_log_flags(set, flags);
  add_server_flags(set, flags);
  add_cluster_flags(set, flags);
}

}  // namespace tutti
