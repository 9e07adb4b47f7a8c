#include "tools/launch/output.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <unistd.h>

#include <climits>

namespace tutti {
namespace {

bool takes_some(int descriptor) {
  pollfd ready{descriptor, POLLOUT, 0};
  return poll(&ready, 1, 0) > 0;
}

}  // namespace

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
