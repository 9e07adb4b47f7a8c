#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tutti/net/stream.h"

namespace tutti::net {

// Sends a beat on each of a set of connections once a second, in a thread of its own. Thread-safe.
class Heart {
 public:
  Heart();
  ~Heart();
  Heart(const Heart&) = delete;
  Heart& operator=(const Heart&) = delete;

  // The heart of this process, which exists as long as someone holds it: a process has many connections, and
  // one thread is enough for all.
  static std::shared_ptr<Heart> of_process();

 private:
  friend class Beating;
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Stream*> streams_;  // guarded by mutex_
  bool ends_ = false;          // guarded by mutex_
  std::thread thread_;         // last: it uses all of the above
};

// The connection beats as long as this object lives.
class Beating {
 public:
  explicit Beating(Stream& stream);
  ~Beating();
  Beating(const Beating&) = delete;
  Beating& operator=(const Beating&) = delete;

 private:
  Stream& stream_;
  const std::shared_ptr<Heart> heart_;
};

}  // namespace tutti::net
