#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace tutti {

// Cuts the bytes of one stream into lines. A line that a lone '\r' begins anew (a live progress line) counts
// at most once a second, so that a log does not drown in it. A line longer than kLongestLine comes in pieces.
// Not thread-safe.
class LineSplitter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Take = std::function<void(std::string_view line)>;  // without its newline
  static constexpr size_t kLongestLine = size_t{1} << 20;

  void feed(std::string_view bytes, Time now, const Take& take);
  // The stream has ended: what came without a newline is a line too.
  void finish(const Take& take);

 private:
  void put(char byte, Time now, const Take& take);
  void end_line(const Take& take);

  std::string line_;
  bool returned_ = false;  // the last byte was '\r'
  Time shown_{};           // when a live line was last taken
};

}  // namespace tutti
