#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tutti {

// A line of /proc/PID/stat. Reading it never blocks; the environment and the command line of a process are
// read from its memory, which may block if the process hangs in the kernel.
struct ProcessState {
  pid_t pid = -1;
  pid_t parent = -1;
  char state = '?';  // 'R' running, 'S' sleeping, 'D' waiting in the kernel, 'T' stopped, 'Z' ended
  std::string name;
};

// nullopt if there is no such process.
std::optional<ProcessState> process_state(pid_t pid);
std::vector<ProcessState> all_processes();

// Tells where a process in state 'D' waits: " in nfs_wait_bit_killable", or "" if the kernel does not tell.
std::string wait_channel(pid_t pid);

// The processes of a job: everything that this process has started, and what these have started, at any depth
// and with any environment. A process whose parent ends becomes a child of this one (a "subreaper"), so that
// none gets lost while this process lives. Not thread-safe.
class JobProcesses {
 public:
  // Makes this process a subreaper. Children that it has already do not belong to the job.
  JobProcesses();

  // Excludes this process from the job.
  void leave_out(pid_t pid) { left_out_.push_back(pid); }
  // Returns the processes of the job, without those that have ended and wait to be reaped.
  std::vector<ProcessState> living() const;

 private:
  std::vector<ProcessState> seen() const;

  std::vector<pid_t> left_out_;
};

}  // namespace tutti
