#include "tools/launch/line_splitter.h"

namespace tutti {

std::optional<std::string> take_line(std::string& received) {
  const size_t end = received.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = received.substr(0, end);
  received.erase(0, end + 1);
  return line;
}

void LineSplitter::feed(std::string_view bytes, Time now, const Take& take) {
  for (const char byte : bytes) put(byte, now, take);
}

void LineSplitter::finish(const Take& take) {
  if (!line_.empty()) end_line(take);
}

void LineSplitter::put(char byte, Time now, const Take& take) {
  if (byte == '\n') {
    end_line(take);
    return;
  }
  if (returned_) {
    const bool due = now - shown_ >= std::chrono::seconds(1);
    if (due && !line_.empty()) {
      shown_ = now;
      end_line(take);
    }
    line_.clear();
  }
  returned_ = byte == '\r';
  if (returned_) return;
  line_.push_back(byte);
  if (line_.size() == longest_) end_line(take);
}

void LineSplitter::end_line(const Take& take) {
  take(line_);
  line_.clear();
  returned_ = false;
}

}  // namespace tutti
