#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/survival.h"
#include "tutti/base/environment.h"
#include "tutti/base/log.h"
#include "tutti/base/ports.h"

namespace tutti {

// The hosts of a job, on each of which a launcher is started.
struct NodeOptions {
  int count = 1;
  int rank = 0;  // of this host
  // HOST:PORT, where the launchers meet: of the first host, or of all hosts in their order.
  std::vector<std::string> addresses = {};
};

struct LaunchOptions {
  std::optional<int> workers;  // on this machine; nullopt: one per visible GPU, or one without GPUs
  int servers = 0;             // parameter servers besides the workers, on the first host
  bool master = false;         // one more task, which drives the workers
  bool evaluator = false;      // one more task, which evaluates beside the training
  int restarts = 0;            // after a failure: of all tasks; with servers or a master, of the failed task
  // The job goes on without workers that are lost, as long as this many are left; then restarts are of the
  // lost worker alone, or of the whole job if that fails. nullopt: it ends with its first failure.
  std::optional<int> min = {};
  // With `min`: the job may grow to so many workers (`tutti scale`), on this machine or on all hosts of -H.
  // nullopt: to the number with which it begins.
  std::optional<int> max = {};
  int preempt_signal = 0;  // says that this machine is about to be taken away; 0: SIGTERM alone does
  std::optional<PortRange> ports = {};               // for the tasks; nullopt: any
  std::optional<NodeOptions> nodes = {};             // nullopt: TF_CONFIG, or this machine alone
  std::chrono::milliseconds start_timeout{300'000};  // for the launchers of the other hosts to connect
  std::chrono::milliseconds grace = kSavingGrace;    // that tasks have to save and end after a signal
  bool insecure = false;  // listen to the launchers of other hosts even without a secret
  bool is_live = false;   // show a line of a task that changes in place
};

// Runs `command` as the workers of one job on this machine. Returns the exit code for this process: the exit
// code of the first failure, or 0. With `nodes`, or if TF_CONFIG names hosts, a launcher must run on each
// host, and the workers of all hosts form one job. A server or evaluator that TF_CONFIG names is one process.
// Handles the signals of this process meanwhile. The tasks get a new random secret, unless TUTTI_SECRET is
// set or launchers of other hosts take part. When it returns, all processes that it has started have ended,
// except for those that SIGKILL does not end; if this process is killed, a guardian process kills them.
int launch(const std::vector<std::string>& command, const Environment& environment,
           const LaunchOptions& options = {});

struct HostSlots;
struct ForwardedVariables;
struct RemoteShell;

// Like launch(), on these hosts, which need no launcher yet: starts a host launcher on each, by `shell` if
// the host is not this machine. All restarts are of the whole job. If this process is killed, or the
// connection to a host is lost, the host launcher ends the tasks there.
int launch_on_hosts(const std::vector<HostSlots>& hosts, const std::vector<std::string>& command,
                    const ForwardedVariables& variables, const RemoteShell& shell,
                    const LaunchOptions& options);

// Like launch_on_hosts(), on the hosts that a command prints now and then (`--discover`). Hosts come and go
// while the job runs. Waits for the first hosts up to `options.start_timeout`.
int launch_on_discovered_hosts(const std::string& discover, std::chrono::milliseconds every,
                               const std::vector<std::string>& command, const ForwardedVariables& variables,
                               const RemoteShell& shell, const LaunchOptions& options);

// The host launcher: prints that it is ready, reads its job from standard input and runs it.
int launch_for_host(int tasks, const std::optional<PortRange>& ports, const Environment& environment);

// Returns the log of the launcher. TUTTI_LOG_LEVEL sets its level, as for programs.
Log launcher_log(const Environment& environment);

}  // namespace tutti
