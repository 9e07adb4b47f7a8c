#include "tools/launch/outcome.h"

#include <csignal>
#include <string.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/guarded_main.h"

namespace tutti {

Outcome Outcome::exited(int exit_code) { return Outcome(W_EXITCODE(exit_code, 0)); }

bool Outcome::success() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }

bool Outcome::killed() const { return WIFSIGNALED(status_); }

int Outcome::signal() const { return WTERMSIG(status_); }

int Outcome::exit_code() const { return killed() ? 128 + signal() : WEXITSTATUS(status_); }

bool Outcome::interrupted() const {
  return !killed() &&
         (exit_code() == 128 + SIGTERM || exit_code() == 128 + SIGINT || exit_code() == 128 + SIGHUP);
}

std::string Outcome::describe() const {
  if (!killed()) {
    const std::string meaning = meaning_of_exit_code(exit_code());
    return fmt::format("ended with exit code {}{}", exit_code(),
                       meaning.empty() ? "" : fmt::format(" ({})", meaning));
  }
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
