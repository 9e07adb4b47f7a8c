#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tutti {

// Removes the first line from the bytes that have been received and returns it without its newline; nullopt
// if it is not complete yet.
std::optional<std::string> take_line(std::string& received);

// Splits the bytes of one stream into lines. A line that is overwritten by a lone '\r' (a live progress line)
// is passed on only when `live_every` has passed since the one before, so that it does not flood a log. A
// second '\r' removes the live line. A line longer than `longest` is split. Not thread-safe.
class LineSplitter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Called with a line without its newline, and whether it is a live line; "": the last one is removed.
  using OnLine = std::function<void(std::string_view line, bool is_live)>;
  static constexpr size_t kLongestLine = size_t{1} << 20;

  explicit LineSplitter(size_t longest = kLongestLine,
                        std::chrono::milliseconds live_every = std::chrono::seconds(1))
      : longest_(longest), live_every_(live_every) {}

  void feed(std::string_view bytes, Time now, const OnLine& on_line);
  // Must be called at the end of the stream: passes on a last line without a newline.
  void finish(const OnLine& on_line);

 private:
  void put(char byte, Time now, const OnLine& on_line);
  void end_line(const OnLine& on_line, bool is_live = false);

  size_t longest_;
  std::chrono::milliseconds live_every_;
  std::string line_;
  int returns_ = 0;       // '\r' at the end of the bytes so far
  bool is_live_ = false;  // the last line was a live line
  Time shown_{};          // when a live line was last taken
};

}  // namespace tutti
