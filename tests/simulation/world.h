#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace tutti::simulation {

using Time = int64_t;  // microseconds since the start of the job
inline constexpr Time kMillisecond = 1000;
inline constexpr Time kSecond = 1'000'000;

uint64_t mix(uint64_t a, uint64_t b);
template <class... More>
uint64_t mix(uint64_t a, uint64_t b, More... more) {
  return mix(mix(a, b), static_cast<uint64_t>(more)...);
}

// Random numbers that are the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // From `least` to `most`, both included.
  int64_t draw(int64_t least, int64_t most);
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }

 private:
  uint64_t state_;
};

// Time, the events to come, the random numbers and the log of one simulation: everything that happens is an
// event here. Events of the same time happen in the order in which they were added. Not thread-safe.
class World {
 public:
  World(uint64_t seed, bool prints) : random_(seed), prints_(prints) {}

  Time now() const { return now_; }
  Random& random() { return random_; }
  void at(Time time, std::function<void()> event);
  void after(Time time, std::function<void()> event) { at(now_ + time, std::move(event)); }
  // Makes the next event happen. Returns false if there is none.
  bool next();
  int64_t events() const { return count_; }

  // Adds a line to the log, of which the hash is kept.
  template <class... Args>
  void log(fmt::format_string<Args...> text, Args&&... args) {
    add_line(fmt::format(text, std::forward<Args>(args)...));
  }
  uint64_t log_hash() const { return hash_; }

  // A promise was broken. The first one counts.
  template <class... Args>
  void violate(fmt::format_string<Args...> text, Args&&... args) {
    if (violation_) return;
    violation_ = fmt::format(text, std::forward<Args>(args)...);
    log("VIOLATION: {}", *violation_);
  }
  const std::optional<std::string>& violation() const { return violation_; }

 private:
  struct Event {
    Time time = 0;
    int64_t number = 0;
    std::function<void()> happens;
    bool operator<(const Event& other) const {  // the queue has the largest on top
      return std::pair(time, number) > std::pair(other.time, other.number);
    }
  };
  void add_line(const std::string& line);

  Random random_;
  const bool prints_;
  Time now_ = 0;
  int64_t added_ = 0;
  int64_t count_ = 0;
  uint64_t hash_ = 0;
  std::priority_queue<Event> events_;
  std::optional<std::string> violation_;
};

}  // namespace tutti::simulation
