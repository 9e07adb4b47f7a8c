#pragma once

#include <optional>
#include <signal.h>
#include <vector>

#include "tutti/base/file.h"

namespace tutti {

// Turns signals into something to poll for, whichever thread they hit (the BLAS may have started some before
// main). One at a time in a process. The destructor puts the former handlers back.
class SignalPipe {
 public:
  explicit SignalPipe(const std::vector<int>& signals);
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  // Readable when a signal came.
  int descriptor() const { return read_end_.get(); }
  // The oldest signal not yet asked for.
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
