#include "tools/launch/outcome.h"

#include <csignal>
#include <string.h>
#include <sys/wait.h>

#include <fmt/core.h>

#include "tutti/base/error.h"
#include "tutti/base/interrupted.h"

namespace tutti {
namespace {

// The kinds with exit codes of their own; 1 and 2 are used by many programs.
constexpr ErrorKind kKinds[] = {ErrorKind::PeerLost,   ErrorKind::Timeout,       ErrorKind::DataLoss,
                                ErrorKind::Overloaded, ErrorKind::Unimplemented, ErrorKind::Bug};

std::string kind_of(int code) {
  for (const ErrorKind kind : kKinds) {
    if (exit_code(kind) == code) return fmt::format(" ({})", to_string(kind));
  }
  return "";
}

}  // namespace

Outcome Outcome::exited(int exit_code) { return Outcome(W_EXITCODE(exit_code, 0)); }

bool Outcome::success() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }

bool Outcome::killed() const { return WIFSIGNALED(status_); }

int Outcome::signal() const { return WTERMSIG(status_); }

int Outcome::exit_code() const { return killed() ? 128 + signal() : WEXITSTATUS(status_); }

bool Outcome::interrupted() const {
  return !killed() && (exit_code() == 128 + SIGTERM || exit_code() == 128 + SIGINT);
}

std::string Outcome::describe() const {
  if (!killed()) return fmt::format("ended with exit code {}{}", exit_code(), kind_of(exit_code()));
  const char* description = sigdescr_np(signal());
  return fmt::format("was killed by {}{}", signal_name(signal()),
                     description == nullptr ? "" : fmt::format(" ({})", description));
}

int Outcome::weight() const {
  if (success()) return 0;
  if (killed()) return 3;
  return exit_code() == tutti::exit_code(ErrorKind::PeerLost) ? kComplaint : 2;
}

}  // namespace tutti
