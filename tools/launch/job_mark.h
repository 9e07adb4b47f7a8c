#pragma once

#include <string>
#include <sys/types.h>

#include "tools/launch/job_processes.h"
#include "tutti/base/file.h"

namespace tutti {

// A variable in the environment of every process of one job, which also a job inside it has. After the
// launcher's death only this variable identifies these processes, since they are no longer its children.
class JobMark {
 public:
  JobMark();

  // "NAME=value", for the environment of the children.
  const std::string& variable() const { return variable_; }

  struct Killed {
    int processes = 0;
    int skipped = 0;  // processes that hang in the kernel, so that reading their environment might hang too
  };
  // Sends SIGKILL to all living processes with the mark.
  Killed kill_all() const;

 private:
  std::string variable_;
};

// A process that waits for the launcher to die abruptly, as with kill -9, and then kills all processes with
// the mark. It works even if it is stopped when the launcher dies. Not thread-safe.
class Guardian {
 public:
  // Tells `processes` which process is the guardian. Both arguments must outlive this object.
  Guardian(const JobMark& mark, JobProcesses& processes);
  // Ends the guardian, even if it is stopped.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }
  // Starts another one after the guardian was killed and has been reaped.
  void replace();

 private:
  void start();

  const JobMark& mark_;
  JobProcesses& processes_;
  pid_t pid_ = -1;
  FileDescriptor leash_;
};

}  // namespace tutti
