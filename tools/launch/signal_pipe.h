#pragma once

#include <optional>
#include <signal.h>
#include <string>
#include <vector>

#include "tutti/base/file.h"

namespace tutti {

// Turns signals into a descriptor to poll for, no matter which thread receives them (a BLAS may have started
// threads before main). SIGHUP stays ignored if it was, as after nohup. Only one may exist at a time in a
// process. The destructor restores the former handlers.
class SignalPipe {
 public:
  // `preempt` is one more signal, which says that this machine is about to be taken away; 0: none.
  explicit SignalPipe(std::vector<int> signals, int preempt = 0);
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  // Readable if next() has a signal.
  int descriptor() const { return read_end_.get(); }
  // Returns the oldest signal that has not been returned yet.
  std::optional<int> next();
  int preempt() const { return preempt_; }

 private:
  struct Former {
    int signal;
    struct sigaction action;
  };

  const int preempt_;
  FileDescriptor read_end_;
  FileDescriptor write_end_;
  std::vector<Former> former_;
};

// Returns the number of a signal that says that a machine is about to be taken away: "USR1", "SIGUSR1" or
// "10". Throws InvalidArgument for other texts, and for signals that mean something else or cannot be
// handled.
int parse_preempt_signal(const std::string& text);

}  // namespace tutti
