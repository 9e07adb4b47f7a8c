#include "tutti/net/heart.h"

#include <chrono>

#include "tutti/base/start_thread.h"

namespace tutti::net {

Heart::Heart() : thread_(start_thread("sending beats to other tasks", [this] { run(); })) {}

Heart::~Heart() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<Heart> Heart::of_process() {
  static std::mutex mutex;
  static std::weak_ptr<Heart> current;  // guarded by mutex
  const std::lock_guard lock(mutex);
  std::shared_ptr<Heart> heart = current.lock();
  if (heart == nullptr) current = heart = std::make_shared<Heart>();
  return heart;
}

void Heart::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kBetweenBeats, [this] { return ends_; }))
    for (Stream* const stream : streams_) stream->beat();
}

Beating::Beating(Stream& stream) : stream_(stream), heart_(Heart::of_process()) {
  const std::lock_guard lock(heart_->mutex_);
  heart_->streams_.insert(&stream_);
}

Beating::~Beating() {
  const std::lock_guard lock(heart_->mutex_);
  heart_->streams_.erase(&stream_);
}

}  // namespace tutti::net
