#pragma once

#include <string>
#include <string_view>

namespace tutti {

// What this process prints, kept until its reader takes it: a terminal that is stopped or a pager keeps
// nobody waiting. What comes when nobody reads any more is dropped. Not thread-safe.
class Output {
 public:
  explicit Output(int descriptor) : descriptor_(descriptor) {}

  int descriptor() const { return descriptor_; }
  bool empty() const { return pending_.empty(); }
  // So much waits that no more should be made.
  bool full() const { return pending_.size() >= kMost; }
  void add(std::string_view text) { pending_ += text; }
  // What the reader takes now, without waiting.
  void pass_on();

 private:
  static constexpr size_t kMost = size_t{1} << 20;

  const int descriptor_;
  std::string pending_;
};

}  // namespace tutti
