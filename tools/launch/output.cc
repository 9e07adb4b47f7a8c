#include "tools/launch/output.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>

namespace tutti {
namespace {

bool takes_some(int descriptor) {
  pollfd ready{descriptor, POLLOUT, 0};
  return poll(&ready, 1, 0) > 0;
}

}  // namespace

Output::Output(int descriptor, bool is_live)
    : descriptor_(descriptor), is_live_(is_live), is_terminal_(isatty(descriptor) == 1) {}

bool Output::shares_terminal(const Output& other) const {
  if (!is_live_ || !is_terminal_ || !other.is_terminal_) return false;
  struct stat own {};
  struct stat others {};
  return fstat(descriptor_, &own) == 0 && fstat(other.descriptor_, &others) == 0 &&
         own.st_rdev == others.st_rdev;
}

void Output::add(std::string_view lines) {
  if (live_.empty() || lines.empty()) {
    pending_ += lines;
    return;
  }
  const int columns = columns_of(descriptor_);
  pending_ += replaced_by("", columns);
  pending_ += lines;
  pending_ += replaced_by(live_, columns);
}

void Output::show(std::string_view line) {
  if (!is_live_) return add(line.empty() ? "" : std::string(line) + "\n");
  if (!is_terminal_) return add(std::string(line) + "\r");
  live_ = line;
  pending_ += replaced_by(live_, columns_of(descriptor_));
}

void Output::end_live() {
  if (!live_.empty()) pending_ += replaced_by("", columns_of(descriptor_));
  live_.clear();
}

// The descriptor may be blocking, and must stay so, since other processes share it. A pipe that is ready
// accepts at least PIPE_BUF bytes.
void Output::pass_on() {
  size_t done = 0;
  while (done < pending_.size() && takes_some(descriptor_)) {
    const size_t piece = std::min<size_t>(PIPE_BUF, pending_.size() - done);
    const ssize_t count = write(descriptor_, pending_.data() + done, piece);
    if (count >= 0) {
      done += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      if (errno == EAGAIN) break;
      if (errno != EPIPE) error_ = errno;
      done = pending_.size();
    }
  }
  pending_.erase(0, done);
}

}  // namespace tutti
