#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "tutti/base/file.h"

namespace tutti {

// The hidden command of the guardian of a job: a process that waits for the launcher to die abruptly, as with
// kill -9, and then kills all processes of the job. It works even if it is stopped when the launcher dies.
inline constexpr const char* kGuardian = "run-guardian";

// How a guardian recognises the processes of its job.
struct GuardedJob {
  // "NAME=value", a variable in the environment of each of them. Jobs that a process of this job starts have
  // it
  // too.
  std::string mark;
  // The folder of their control group. "" if they have none: then only the mark identifies them, since after
  // the launcher's death they have another parent.
  std::string group;
};

// The launcher's handle of its guardian. Not thread-safe.
class Guardian {
 public:
  // `keep` is a descriptor that stays open until the guardian has ended; -1: none. `program` is for tests: it
  // is started in place of `tutti run-guardian`, with the same arguments.
  explicit Guardian(const GuardedJob& job, int keep = -1, std::vector<std::string> program = {});
  // Ends the guardian, even if it is stopped.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }
  // Starts a new guardian after the guardian was killed and has been reaped.
  void replace();
  // Makes the guardian end the job, as if this process had died.
  void end_job();

 private:
  void start();

  std::vector<std::string> command_;
  const int keep_;
  pid_t pid_ = -1;
  FileDescriptor leash_;  // the guardian's stdin, which ends with this process
};

// The main function of the guardian. The arguments are those after kGuardian on the command line.
int guardian_command(const std::vector<std::string>& arguments);

}  // namespace tutti
