#pragma once

#include <exception>
#include <string>
#include <utility>

namespace tutti {

// Ended by a signal, in good order: what there was to write is written. Not an Error: nothing went wrong.
class Interrupted final : public std::exception {
 public:
  Interrupted(int signal_number, std::string text) : signal_(signal_number), text_(std::move(text)) {}
  int exit_code() const { return 128 + signal_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int signal_;
  std::string text_;
};

}  // namespace tutti
