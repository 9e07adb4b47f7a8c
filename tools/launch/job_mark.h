#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "tutti/base/file.h"

namespace tutti {

// A variable in the environment of every process of one job, by which also those are found again that went
// their own way: grandchildren, daemons, other sessions.
class JobMark {
 public:
  JobMark();

  // "NAME=value", for the environment of the children.
  const std::string& variable() const { return variable_; }

  // The living processes with the mark; a zombie has no environment any more.
  std::vector<pid_t> processes() const;
  // Sends a signal to all of them, and says how many there were.
  int signal_all(int signal) const;

 private:
  std::vector<pid_t> processes_seen() const;

  std::string variable_;
};

// A process that waits for this one to vanish without a word, as with kill -9, and then kills all that bear
// the mark.
class Guardian {
 public:
  explicit Guardian(const JobMark& mark);
  // Sends the guardian home.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

 private:
  pid_t pid_ = -1;
  FileDescriptor leash_;
};

}  // namespace tutti
