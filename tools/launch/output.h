#pragma once

#include <string>
#include <string_view>

namespace tutti {

// Buffers the output of this process, so that the process never waits for a slow reader, such as a pager or a
// stopped terminal. Drops output if the reader is gone. Not thread-safe.
class Output {
 public:
  explicit Output(int descriptor) : descriptor_(descriptor) {}

  int descriptor() const { return descriptor_; }
  bool empty() const { return pending_.empty(); }
  // Returns true if callers should not add more for now.
  bool full() const { return pending_.size() >= kMost; }
  void add(std::string_view text) { pending_ += text; }
  // Writes as much as the reader accepts without waiting.
  void pass_on();
  // Returns the errno with which text could not be written, as on a full disk; 0 if none was lost, or only
  // because the reader is gone.
  int error() const { return error_; }

 private:
  static constexpr size_t kMost = size_t{1} << 20;

  const int descriptor_;
  std::string pending_;
  int error_ = 0;
};

}  // namespace tutti
