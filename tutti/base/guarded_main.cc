#include "tutti/base/guarded_main.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <new>
#include <openssl/crypto.h>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/memory.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr int kUnknownError = 1;

void say(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::atomic<bool> threads_may_run = false;

void end_now(int code, void* /*unused*/) {
  if (!threads_may_run) return;
  std::fflush(nullptr);
  ::_exit(code);
}

constexpr std::string_view kOutOfMemory =
    "Overloaded: out of memory; free some memory, use a machine with more or, when training, set a smaller "
    "--batch\n";

// Runs in a thread that does not catch an exception, such as a thread of a library. If memory, threads or
// descriptors have run out, ends the process as if the main thread had found out. Allocates nothing.
[[noreturn]] void end_at_uncaught() {
  try {
    if (const std::exception_ptr uncaught = std::current_exception()) std::rethrow_exception(uncaught);
  } catch (const std::bad_alloc&) {
    say(kOutOfMemory);
    ::_exit(exit_code(ErrorKind::Overloaded));
  } catch (const std::exception& error) {
    if (ran_out(error)) {
      say("Overloaded: ");
      say(error.what());
      say("\n");
      ::_exit(exit_code(ErrorKind::Overloaded));
    }
    say("an exception that nobody caught has ended the process: ");
    say(error.what());
    say("\n");
  } catch (...) {
  }
  std::abort();
}

int exit_code_of(const std::function<int()>& body) {
  try {
    open_standard_streams();
    const int code = body();
    // After a full disk, text is lost. A reader that has closed its end of a pipe wants no more of it.
    if (std::fflush(stdout) != 0 && errno != EPIPE) fail_errno(errno, "writing standard output");
    return code;
  } catch (const Interrupted& interrupted) {
    say(fmt::format("{}\n", interrupted.what()));
    return interrupted.exit_code();
  } catch (const Error& error) {
    say(fmt::format("{}: {}\n", to_string(error.kind()), error.what()));
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    say(kOutOfMemory);
    return exit_code(ErrorKind::Overloaded);
  } catch (const std::exception& error) {
    if (ran_out(error)) {
      say(fmt::format(
          "Overloaded: {}; free some memory, threads, open files or disk space, whichever is meant, or "
          "raise their limit\n",
          first_line(error.what())));
      return exit_code(ErrorKind::Overloaded);
    }
    say(fmt::format("error: {}\n", first_line(error.what())));
    return kUnknownError;
  }
}

}  // namespace

void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open(2) returns the lowest number that is free, which is this one.
    if (::open("/dev/null", stream == STDIN_FILENO ? O_RDONLY : O_WRONLY) < 0)
      fail_errno(errno, "opening /dev/null in place of a closed standard stream");
  }
}

int guarded_main(const std::function<int()>& body) {
  // A file that may not grow (ulimit -f) is then an error of the call that writes to it.
  ::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(end_at_uncaught);
  // OpenMP calls exit() if it cannot start a thread. Connections still use libcrypto in other threads then.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  threads_may_run = true;
  on_exit(end_now, nullptr);
  const int code = exit_code_of(body);
  // If a thread of LibTorch could not be started, LibTorch would join it when its static objects are
  // destroyed. Some of them were created after the first call of on_exit() and are destroyed before it.
  threads_may_run = code == exit_code(ErrorKind::Overloaded);
  if (threads_may_run) on_exit(end_now, nullptr);
  return code;
}

std::string meaning_of_exit_code(int code) {
  constexpr int kSignals = 128;
  for (const ErrorKind kind :
       {ErrorKind::InvalidArgument, ErrorKind::PeerLost, ErrorKind::Timeout, ErrorKind::DataLoss,
        ErrorKind::Overloaded, ErrorKind::Unimplemented, ErrorKind::Bug}) {
    if (exit_code(kind) == code) return std::string(to_string(kind));
  }
  if (code == kUnknownError) return "an error of the program";
  return code > kSignals && code < kSignals + NSIG ? signal_name(code - kSignals) : "";
}

}  // namespace tutti
