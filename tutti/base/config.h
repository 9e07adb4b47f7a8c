#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/base/flags.h"

namespace tutti {

// A larger number of lanes is a mistake: every worker loops over its lanes and would never finish.
inline constexpr int64_t kMostLanes = 1 << 20;

// How a program trains, by topic. It can be filled in code, from flags (add_standard_flags()), or both. Each
// value has a flag, which is named where the names differ; `--help` explains all of them.
struct RunConfig {
  // Options that say what is trained, and for how long.
  struct Training {
    std::string strategy;  // "": single for one task, ps-async with servers, else allreduce
    int64_t lanes = 0;     // 0: one per worker
    int64_t batch = 32;    // examples per lane and step
    int64_t steps = 0;     // global steps; 0: as many as `epochs` says
    int64_t epochs = 0;    // 0 with steps 0: one epoch
    // Ends this process after this global step of the run, which a later process continues with the bits
    // of an uninterrupted run; 0: none
    int64_t stop_after = 0;
    // Leave out the last examples of an epoch that do not fill a step of all lanes.
    bool drop_remainder = true;
    int64_t seed = 1;       // of all random numbers
    bool nan_guard = true;  // stop when the loss is NaN or infinite
    // Every so many steps, another worker computes one lane again and compares the bits; 0: never.
    int64_t audit = 0;
    std::string audit_action = "stop";  // if they differ; or "redo", "evict"
    // No flag; tutti::run() sets it. After SIGTERM, SIGINT or SIGHUP, a training completes the step, saves a
    // checkpoint and throws Interrupted. If false, Tutti does not touch the process's signal handlers.
    bool stop_on_signals = false;
  };

  // How a task computes.
  struct Compute {
    // "cpu", "cuda", "cuda:1", "/gpu:0"; auto: the GPU of the local rank, or the CPU
    std::string device = "auto";
    int64_t threads = 0;           // 0: cores / local workers
    int64_t inter_op_threads = 0;  // 0: LibTorch's default
    // "same" uses the operators of tutti/kernels. "strict" does so too, and an operator that is missing there
    // is an error. "libtorch" uses LibTorch's operators. "auto" is "same" on CPUs; on GPUs it uses
    // LibTorch's, without algorithms that give other bits each time.
    std::string kernels = "auto";
    // Let tasks compute with different kernels, so that the bits of the result depend on the mix.
    bool mixed_machines = false;
    std::string precision = "fp32";  // or "bf16"
    std::string layout = "auto";     // of images and kernels: "contiguous", "channels-last"
  };

  // The sum of the gradients of all workers.
  struct Reduction {
    std::string order = "tree";           // or "fast" (--reduce)
    std::string wire_precision = "fp32";  // of gradients that are sent: "bf16", "fp16"
    bool error_feedback = true;           // add the rounding error to the next gradient
    // "replicated", "sharded"; auto: sharded in a Trainer whose workers all share memory.
    std::string optimizer_state = "auto";
    // Copies of rows of sharded tables and of servers' parts, from which others go on without a lost one.
    int64_t replicas = 1;
  };

  // Connections between tasks.
  struct Network {
    // "shm", "tcp", "mpi", "nccl", "shm+tcp", "shm+mpi"; auto: nccl if each worker has a separate GPU,
    // else shm+tcp, or only the one of the two that is needed (--comm)
    std::string backend = "auto";
    double timeout = 60;         // the maximum seconds of any wait for another task
    double start_timeout = 120;  // seconds to wait for tasks to start
    // "on", "off"; auto: of messages between hosts that TLS does not encrypt
    std::string message_checksums = "auto";
  };

  // Parameter servers.
  struct Servers {
    std::string placement = "round-robin";  // "greedy", "split:SIZE"
    int64_t staleness = -1;                 // steps that a worker may be ahead of the slowest; -1: any
    bool overlap = true;                    // push and pull run while the next gradients are computed
    int64_t backup = 0;                     // number of workers whose gradients a step does not wait for
  };

  // Encryption and authentication: decides which callers may connect to this task's servers.
  struct Security {
    std::string tls_cert;         // files in PEM; "": no TLS
    std::string tls_key;          // of this task's certificate
    std::string tls_ca;           // certificates by which those of other tasks are verified
    std::string secret;           // shared by all tasks of a job
    bool insecure = false;        // listen beyond loopback without a secret
    bool allow_programs = false;  // run programs that clients send
  };

  // The program's data.
  struct Data {
    std::string path;                // --data
    std::string bad_rows = "error";  // of tables; or "skip"
    double timeout = 60;             // seconds that a step may wait for its examples (--feed-timeout)
  };

  // Checkpoints, and how a run resumes.
  struct Checkpoints {
    std::string logdir;           // "": nothing is written at all
    std::string resume = "auto";  // "never", "must", "weights", "anyway"
    std::string every = "600s";   // steps ("500"), seconds ("600s") or "auto"; "0": only the last
    int64_t keep = 5;             // 0: all
    std::string rows = "full";    // of sharded embeddings; or "changed" (--checkpoint-rows)
    int64_t hash_every = 0;       // steps; 0: only with checkpoints (--hash-every)
  };

  // A program that exports a checkpoint instead of training (tutti/train/export.h).
  struct Exports {
    std::string dir;   // for versions of the model; "": the program trains (--export)
    std::string from;  // the checkpoint; "": the newest in the log directory (--export-from)
    // No flag; tutti::run() sets it. The program that is started to check an exported model: a program whose
    // main() calls tutti::run(), or `tutti-torch`. "": `tutti-torch`, beside this program or in PATH.
    std::string checker;
  };

  // Options for the files and messages of a run.
  struct Output {
    int64_t summary_every = 100;     // steps; 0: none
    std::string profile_steps;       // "10..12"
    std::string timeline;            // file; "": none
    std::string report;              // file; "": none
    std::string web;                 // PORT or HOST:PORT of a page about the run; "": none
    std::string log = "auto";        // a line on stderr that changes in place: base/live_line.h
    std::string log_level = "info";  // or "debug", "warning", "error", "off"
    bool log_placement = false;      // log one line for every parameter and lane
  };

  // A cluster that is started by hand.
  struct Cluster {
    std::string spec;             // --cluster_spec
    std::string job;              // --job_name
    std::optional<int64_t> task;  // --task_index
    // No flag. A text in place of the environment variable TF_CONFIG, for a program that sets it in code; "":
    // the variable of this process. Either is read only if `spec` is "".
    std::string tf_config;
  };

  Training training;
  Compute compute;
  Reduction reduction;
  Network network;
  Servers servers;
  Security security;
  Data data;
  Checkpoints checkpoints;
  Exports exports;
  Output output;
  Cluster cluster;
  std::string config_file;  // where --config found values for the flags
};

// Adds a flag for every value, in groups, with its help and its limits.
void add_standard_flags(FlagSet& set, RunConfig& config);
// Adds only the flags that say how workers find and reach each other, for programs that do not train.
void add_connection_flags(FlagSet& set, RunConfig& config);
// Returns the values of the standard flags. Throws InvalidArgument if one is not a value that its flag
// accepts, for a program that has filled them in code.
FlagValues values_of(const RunConfig& config);

}  // namespace tutti
