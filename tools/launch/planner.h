#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/group.h"
#include "tools/launch/hosts.h"
#include "tools/launch/launcher.h"
#include "tools/launch/meeting.h"
#include "tools/launch/signal_pipe.h"
#include "tutti/base/environment.h"
#include "tutti/base/log.h"

namespace tutti {

inline constexpr const char* kServerJob = "ps";
inline constexpr const char* kMasterJob = "master";
inline constexpr const char* kWorkerJob = "worker";
inline constexpr const char* kEvaluatorJob = "evaluator";

// Returns the value of a flag among the program's own, or else of this variable; "" if neither is set.
std::string flag_of_program(const std::vector<std::string>& command, const Environment& environment,
                            const std::string& flag, const std::string& variable);

// The number of servers, masters and evaluators, which are on the first host besides its workers.
int more_tasks(const LaunchOptions& options);
// Returns how many ports the first host needs in addition to one for each of its workers: one for each of
// these tasks, and one for PyTorch's store unless the ranks may change (--min) or the user has chosen the
// ports
// (--ports).
int more_ports(const LaunchOptions& options);
// Assigns the workers to these hosts, which offer one port for each task, and the first one perhaps another
// for PyTorch's store. Throws DataLoss if they do not.
Spread spread_tasks(const std::vector<HostOffer>& hosts, const LaunchOptions& options);

// Plans these tasks of a cluster, all of which run on this machine: one per job above and index, servers
// first and the evaluator last. Each worker gets one of the GPUs, in turn. `store_port` as
// Spread::store_port, `launch` as Identity::launch.
std::vector<TaskPlan> plan_tasks(const ClusterSpec& cluster, const std::vector<Task>& tasks, int store_port,
                                 const std::string& launch, const std::vector<std::string>& gpus);

// Logs a line if the numbers of workers and GPUs on this machine differ.
void compare_numbers(size_t workers, size_t gpus, bool evaluator, const Log& log);

// Throws InvalidArgument unless --min and --max are possible if the job begins with this number of workers.
void check_limits(const LaunchOptions& options, int workers);

struct Plan {
  std::vector<TaskPlan> tasks;
  std::optional<int> signal = {};  // that this process received meanwhile; there are no tasks then
  std::string launch = {};         // as Identity::launch
  // All hosts of the job with their names, and the index of this one.
  std::vector<HostOffer> hosts = {};
  std::vector<std::string> names = {};
  size_t own = 0;
  bool comes_again = false;                   // another launcher of this host was at the meeting
  std::optional<int> first = {};              // how many workers the job begins with; nullopt: all
  size_t keeper = 0;                          // the host whose launcher has the list of the workers
  std::shared_ptr<OpenMeeting> meeting = {};  // with --min, if there are several hosts
};

// Decides which tasks this launcher starts, and which ports and which GPU each of them has. It must outlive
// the tasks, since it reserves their ports.
class Planner {
 public:
  // The tasks run `command`. Logs a line if the numbers of workers and GPUs differ. Throws InvalidArgument if
  // the launcher would have to listen to other hosts without a secret.
  Planner(const std::vector<std::string>& command, const Environment& environment,
          const LaunchOptions& options, const Log& log);

  // Must be called for every start of the job. Meets the launchers of the other hosts, if there are any; they
  // come to the meeting when their former tasks have ended.
  Plan plan(SignalPipe& signals) const;
  // Returns true if the launchers of other hosts start tasks of the same job.
  bool has_other_hosts() const { return meeting_ && meeting_->hosts.size() > 1; }
  // Returns true if servers or a master keep the state, so that a task can be restarted without the others.
  bool restarts_one_by_one() const { return !meeting_ && (options_.servers > 0 || options_.master); }

 private:
  // Returns true for a server or an evaluator, which is one process and sees all GPUs.
  bool stands_outside() const;
  int workers_here() const;  // at the start
  int most_workers_here() const { return options_.max.value_or(workers_here()); }
  int ports_here() const;
  HostOffer own_offer() const;
  std::vector<TaskPlan> from_tf_config(const MeetingResult& met) const;

  const LaunchOptions options_;
  const std::string secret_;  // that the user has given to all launchers; "": none
  const Log& log_;
  const std::optional<JobHosts> hosts_;   // of TF_CONFIG
  const std::optional<Meeting> meeting_;  // nullopt: all tasks are on this machine
  const std::vector<std::string> gpus_;
  // All starts of the job use these ports of this host: one for each task, one for PyTorch's store
  // (more_ports), and one with --min if there are other hosts.
  const HeldPorts ports_;
};

}  // namespace tutti
