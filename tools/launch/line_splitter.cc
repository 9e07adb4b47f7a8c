#include "tools/launch/line_splitter.h"

namespace tutti {

std::optional<std::string> take_line(std::string& received) {
  const size_t end = received.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = received.substr(0, end);
  received.erase(0, end + 1);
  return line;
}

void LineSplitter::feed(std::string_view bytes, Time now, const OnLine& on_line) {
  for (const char byte : bytes) put(byte, now, on_line);
}

void LineSplitter::finish(const OnLine& on_line) {
  if (!line_.empty()) end_line(on_line);
}

void LineSplitter::put(char byte, Time now, const OnLine& on_line) {
  if (byte == '\n') {
    end_line(on_line);
    return;
  }
  if (byte == '\r') {
    if (returns_ > 0 && is_live_) {
      line_.clear();
      end_line(on_line, true);
      is_live_ = false;
    }
    ++returns_;
    return;
  }
  if (returns_ > 0) {
    const bool due = returns_ == 1 && now - shown_ >= live_every_;
    if (due && !line_.empty()) {
      shown_ = now;
      end_line(on_line, true);
    }
    line_.clear();
    returns_ = 0;
  }
  line_.push_back(byte);
  if (line_.size() == longest_) end_line(on_line);
}

void LineSplitter::end_line(const OnLine& on_line, bool is_live) {
  on_line(line_, is_live);
  line_.clear();
  returns_ = 0;
  is_live_ = is_live;
}

}  // namespace tutti
