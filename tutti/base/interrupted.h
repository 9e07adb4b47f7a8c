#pragma once

#include <exception>
#include <string>
#include <utility>

namespace tutti {

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
