#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "tools/launch/child.h"
#include "tools/launch/control_group.h"
#include "tools/launch/guardian.h"
#include "tools/launch/processes.h"

namespace tutti {

// The processes of a job: all processes that this process has started with options of enrol(), and their
// descendants, with any environment. While this process lives, it finds them as its descendants: a process
// whose parent ends becomes a child of this process (a "subreaper"). If this process dies, its guardian kills
// them. Not thread-safe.
class JobWatch {
 public:
  // Children that this process has already do not belong to the job. For the arguments, see Guardian.
  explicit JobWatch(int keep = -1, std::vector<std::string> guardian = {});
  // Ends the guardian, unless there are still processes in the control group: then the guardian kills them as
  // soon as they can be killed, and removes the group.
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  // Makes a child a member of the job.
  void enrol(ChildOptions& child) const;
  // Returns the processes of the job, except for `but` and for ended processes that wait to be reaped.
  std::vector<ProcessState> living(const std::vector<pid_t>& but = {}) const;
  // Sends SIGKILL to all of them.
  void kill_all(const std::vector<pid_t>& but = {}) const;
  // Returns true if kill_all() also reaches the processes of other users.
  bool reaches_all() const { return group_.has_value(); }
  // Kills them, and waits at most this long for their end.
  void end_all(std::chrono::milliseconds patience, const std::vector<pid_t>& but = {}) const;

  pid_t guardian() const { return guardian_.pid(); }
  // Must be called when the guardian was stopped, or was killed and has been reaped.
  void continue_guardian() const;
  void replace_guardian() { guardian_.replace(); }

 private:
  std::vector<ProcessState> seen(const std::vector<pid_t>& but) const;

  const std::string mark_;
  std::vector<pid_t> left_out_;
  const std::optional<ControlGroup> group_;
  Guardian guardian_;
};

}  // namespace tutti
