#include "tools/launch/signal_pipe.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "tutti/base/check.h"

namespace tutti {
namespace {

// A signal handler receives only a number; this is the only place that needs a global variable.
std::atomic<int> pipe_of_handler{-1};

void on_signal(int signal) {
  const int former_errno = errno;
  const auto byte = static_cast<char>(signal);
  // A full pipe holds thousands of unread signals: dropping one more loses no information.
  [[maybe_unused]] const ssize_t written = write(pipe_of_handler.load(), &byte, 1);
  errno = former_errno;
}

}  // namespace

SignalPipe::SignalPipe(const std::vector<int>& signals) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) fail_errno(errno, "opening a pipe for signals");
  read_end_ = FileDescriptor(ends[0]);
  write_end_ = FileDescriptor(ends[1]);
  int none = -1;
  TUTTI_CHECK(pipe_of_handler.compare_exchange_strong(none, ends[1]), "a second SignalPipe");
  for (const int signal : signals) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    Former former{signal, {}};
    if (signal == SIGHUP && sigaction(signal, nullptr, &former.action) == 0 &&
        former.action.sa_handler == SIG_IGN)
      continue;
    if (sigaction(signal, &action, &former.action) == 0) former_.push_back(former);
  }
}

SignalPipe::~SignalPipe() {
  for (const Former& former : former_) sigaction(former.signal, &former.action, nullptr);
  pipe_of_handler = -1;
}

std::optional<int> SignalPipe::next() {
  char byte = 0;
  if (read(read_end_.get(), &byte, 1) != 1) return std::nullopt;
  return byte;
}

}  // namespace tutti
