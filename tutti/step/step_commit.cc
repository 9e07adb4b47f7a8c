#include "tutti/step/step_commit.h"

#include <atomic>

#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr uint64_t kClosed = uint64_t{1} << 63;

}  // namespace

bool StepCommit::Point::arrive() {
  const std::atomic_ref<uint64_t> count(count_);
  uint64_t seen = count.load(std::memory_order_acquire);
  do {
    if ((seen & kClosed) != 0) return false;
  } while (!count.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel));
  ++arrivals_;
  return true;
}

bool StepCommit::Point::close() {
  const uint64_t count = std::atomic_ref<uint64_t>(count_).fetch_or(kClosed, std::memory_order_acq_rel);
  return (count & ~kClosed) >= arrivals_ * world_;
}

void StepCommit::run(const std::function<void()>& meet, const std::function<void()>& take,
                     const std::function<void()>& take_back) {
  if (!updated_.arrive()) {
    take_back();
    fail(ErrorKind::PeerLost, "the other workers have given up the step in which this one was late");
  }
  try {
    meet();
  } catch (const Error&) {
    if (!updated_.close()) {
      take_back();
      throw;
    }
  }
  take();
  if (!taken_.arrive()) {
    is_left_behind_ = true;
    fail(ErrorKind::PeerLost, "the other workers have gone on without this one, which was late");
  }
  try {
    meet();
  } catch (const Error&) {
    taken_.close();  // the next operation throws this error
  }
}

}  // namespace tutti
