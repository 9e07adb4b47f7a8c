#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/environment.h"

namespace tutti {

// The flags that every program has, as plain values (DESIGN 6). A program may change the defaults before they
// are parsed.
struct Flags {
  // What is trained, and how far.
  std::string strategy;        // "" chooses: single alone, ps-async with servers, else allreduce
  int64_t lanes = 0;           // 0: one a worker
  int64_t batch = 32;          // examples per lane and step
  int64_t steps = 0;           // global steps; 0: as many as `epochs` says
  int64_t epochs = 0;          // 0 with steps 0: one epoch
  bool drop_remainder = true;  // of the data: what does not fill a step of all lanes
  int64_t seed = 1;
  std::string precision = "fp32";  // or "bf16"
  std::string layout = "auto";     // of images and kernels: "contiguous", "channels-last"
  bool nan_guard = true;           // end when the loss is no longer a number

  // Where it runs.
  std::string device =
      "auto";           // "cpu", "cuda", "cuda:1", "/gpu:0"; auto: the GPU of the local rank, or the CPU
  int64_t threads = 0;  // 0: cores / local workers
  int64_t inter_op_threads = 0;  // 0: LibTorch's own choice

  // How the workers talk.
  std::string reduce = "tree";          // or "fast"
  std::string wire_precision = "fp32";  // of gradients that are sent: "bf16", "fp16"
  bool error_feedback = true;           // what rounding took is sent with the next gradient
  // "replicated", "sharded"; auto: sharded in a Trainer whose workers all share memory.
  std::string optimizer_state = "auto";
  // "shm", "gloo", "mpi", "nccl", "shm+gloo", "shm+mpi"; auto: nccl where each worker has a GPU of its own,
  // else shm+gloo where both are of use.
  std::string comm = "auto";
  double timeout = 60;  // seconds that anything may wait for another task

  // What parameter servers do.
  std::string placement = "round-robin";  // "greedy", "split:SIZE"
  bool log_placement = false;             // a line for every parameter and lane
  int64_t staleness = -1;                 // steps a worker may be ahead; -1: any
  bool overlap = true;                    // push and pull travel while the next gradients are computed
  int64_t backup = 0;                     // workers whose gradients a step does without

  // How tasks reach their servers.
  std::string tls_cert;  // files in PEM; "": no TLS
  std::string tls_key;
  std::string tls_ca;
  std::string secret;           // that all tasks of a job have in common
  bool insecure = false;        // listen beyond loopback without TLS
  bool allow_programs = false;  // carry out programs that callers send
  double start_timeout = 120;   // seconds that tasks have to come

  // What is read and written.
  std::string data;
  std::string bad_rows = "error";         // of tables; or "skip"
  double feed_timeout = 60;               // seconds that a step may wait for its examples
  std::string logdir;                     // "": nothing is written at all
  std::string resume = "auto";            // "never", "must"
  std::string checkpoint_every = "600s";  // steps ("500") or seconds ("600s"); "0": only the last
  int64_t keep = 5;                       // checkpoints; 0: all
  int64_t summary_every = 100;            // steps; 0: none
  std::string profile_steps;              // "10..12"
  std::string timeline;                   // file; "": none
  std::string report;
  std::string log_level = "info";
  std::string config;

  // Clusters made by hand.
  std::string cluster_spec;
  std::string job_name;
  std::optional<int64_t> task_index;
};

// Declared flags and the places where their values come from: command line, TUTTI_* variable, --config
// FILE.json, default, in this order. An unknown name in any of the three is an InvalidArgument that suggests
// the nearest; a value that cannot be read is one that names the flag, the value, what is expected and where
// it came from. Every value that is given is checked, also one that another place overrides.
//   '-' and '_' are the same in every name: --log-level, --log_level, TUTTI_LOG_LEVEL, "log-level" in the
//   file. A flag that is repeated has its last value, so that a script can append to somebody else's command
//   line. The flag named --config, where there is one, names the file. TUTTI_CONFIG may, the file itself may
//   not. Variables that begin with TUTTI_TEST_ belong to Tutti's own tests and are left alone.
// The values are references held by the caller, who keeps them alive until parse() has returned.
class FlagSet {
 public:
  // `about` is the first paragraph of --help.
  explicit FlagSet(std::string about);
  ~FlagSet();
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  // What is added from here on is listed under this heading.
  void group(const std::string& heading);

  // `names`: "--lanes", or several for one value: "--task_index,--task_id", "--help,-h". The first gives
  // the variable (TUTTI_TASK_INDEX) and the key of the config file ("task_index").
  void add(const std::string& names, std::string& value, const std::string& help);
  void add(const std::string& names, int64_t& value, const std::string& help);
  void add(const std::string& names, double& value, const std::string& help);
  void add(const std::string& names, bool& value, const std::string& help);  // --name and --no-name
  void add(const std::string& names, std::optional<int64_t>& value, const std::string& help);
  // One of `choices`; anything else is an error that lists them and suggests the nearest.
  void add_choice(const std::string& names, std::string& value, const std::vector<std::string>& choices,
                  const std::string& help);

  // Every value given for the flag must also pass `holds`; `expects` completes "'-1' is not ...".
  void require(const std::string& name, const std::string& expects,
               std::function<bool(const std::string&)> holds);
  void at_least(const std::string& name, int64_t least);
  // Two whole numbers of which only one may be other than 0. The one from the place that counts more wins
  // (--steps over "epochs" in the file, anything over a default); both from one place are an error.
  void exclusive(const std::string& one, const std::string& other);

  // Fills the values. Returns what is to be printed instead of running: the text of --help or --version, else
  // nothing.
  [[nodiscard]] std::optional<std::string> parse(int argc, const char* const* argv,
                                                 const Environment& environment);

 private:
  struct Impl;  // keeps CLI11 out of this header
  std::unique_ptr<Impl> impl_;
};

// Adds every member of Flags, in groups, with its help and its limits.
void add_standard_flags(FlagSet& set, Flags& flags);
// Of these, those that say how workers find and reach each other, for programs that train nothing.
void add_connection_flags(FlagSet& set, Flags& flags);

}  // namespace tutti
