#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace tutti {

// The kinds are distinguished by what the caller can do next.
enum class ErrorKind {
  InvalidArgument,  // change what was asked for
  PeerLost,         // another task is gone: start it again, or continue without it
  Timeout,          // something did not arrive in time: find out which task is late, or wait longer
  DataLoss,         // bytes are missing or wrong: use another copy
  Overloaded,       // a resource ran out (disk, memory, ports): free some and try again
  Unimplemented,    // this build or version does not support it
  Bug,              // a bug in Tutti: report it
};

std::string_view to_string(ErrorKind kind);

// A program that ends with an error of this kind exits with this code (docs/operations.md lists them).
int exit_code(ErrorKind kind);

// The only exception type of Tutti. Its text is one readable line: what happened, to whom, what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// fail(ErrorKind::DataLoss, "{}: ends at byte {}", path, n) throws an Error with the formatted text.
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format(text, std::forward<Args>(args)...));
}

// Returns the text for a value of errno, such as "No space left on device".
std::string errno_text(int error_number);

// Throws the Error for a failed system call: Overloaded if disk space, memory or the like ran out, otherwise
// InvalidArgument. `what` describes the operation and the file, such as "writing /tmp/x".
[[noreturn]] void fail_errno(int error_number, std::string_view what);

// Thrown when a signal, or --stop-after, has ended the program in good order, after all pending output has
// been written. This is not an Error, since nothing went wrong.
class Interrupted final : public std::exception {
 public:
  // Signal 0: none, but --stop-after.
  Interrupted(int signal_number, std::string text) : signal_(signal_number), text_(std::move(text)) {}
  int exit_code() const { return signal_ == 0 ? 0 : 128 + signal_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int signal_;
  std::string text_;
};

// "SIGTERM".
std::string signal_name(int signal);

}  // namespace tutti
