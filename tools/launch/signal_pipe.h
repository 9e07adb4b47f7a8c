#pragma once

#include <optional>
#include <signal.h>
#include <vector>

#include "tutti/base/file.h"

namespace tutti {

// Turns signals into a descriptor to poll for, no matter which thread receives them (a BLAS may have started
// threads before main). SIGHUP stays ignored if it was, as after nohup. Only one may exist at a time in a
// process. The destructor restores the former handlers.
class SignalPipe {
 public:
  explicit SignalPipe(const std::vector<int>& signals);
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  // Readable if next() has a signal.
  int descriptor() const { return read_end_.get(); }
  // Returns the oldest signal that has not been returned yet.
  std::optional<int> next();

 private:
  struct Former {
    int signal;
    struct sigaction action;
  };

  FileDescriptor read_end_;
  FileDescriptor write_end_;
  std::vector<Former> former_;
};

}  // namespace tutti
