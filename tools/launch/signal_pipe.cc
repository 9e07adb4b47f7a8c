#include "tools/launch/signal_pipe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

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

// These end a job in good order, cannot be handled, or have another meaning for a launcher or a program.
constexpr std::array kOtherSignals = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGPIPE, SIGCHLD, SIGKILL,
                                      SIGSTOP, SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGABRT, SIGTRAP,
                                      SIGSYS,  SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU, SIGPROF};

}  // namespace

int parse_preempt_signal(const std::string& text) {
  const std::string name = text.starts_with("SIG") ? text.substr(3) : text;
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* known = sigabbrev_np(signal);
    if (std::to_string(signal) != text && (known == nullptr || name != known)) continue;
    if (std::find(kOtherSignals.begin(), kOtherSignals.end(), signal) == kOtherSignals.end()) return signal;
    fail(ErrorKind::InvalidArgument,
         "tutti run: --preempt-signal {} has another meaning already; name another, such as USR1", text);
  }
  fail(ErrorKind::InvalidArgument,
       "tutti run: --preempt-signal '{}' is not the name of a signal, such as USR1", text);
}

SignalPipe::SignalPipe(std::vector<int> signals, int preempt) : preempt_(preempt) {
  if (preempt > 0) signals.push_back(preempt);
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
