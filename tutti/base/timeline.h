#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace tutti {

// What a thread does with a stretch of its time.
enum class Activity : uint8_t {
  Step,       // all of a step, or of another part of a training
  Compute,    // forward, backward, update
  Queue,      // waits for a batch
  Read,       // makes a batch
  Operation,  // is in a communicator's operation; what it does there lies inside
  Wait,       // waits for other ranks
  Reduce,     // adds
  Copy,       // moves bytes
  Save,       // writes or reads a checkpoint
  Evaluate,
  Operator,  // of LibTorch (--profile-steps)
};

// "step", "compute", ...
std::string_view to_string(Activity activity);

struct TimelineOptions {
  // Of all threads together, 64 bytes each. When there are so many, a thread that goes on forgets its oldest.
  size_t most_spans = size_t{1} << 20;
  // Empty: CLOCK_MONOTONIC, which all processes of a machine have in common.
  std::function<std::chrono::nanoseconds()> clock = {};
};

// What the threads of one process did, and when: spans of time, kept in memory (trace_events.h makes a file
// of them). The Context has one where --timeline asks for it and hands it down; where it is off there is
// none, and a SpanScope without one costs a comparison. A span costs a fifth of a microsecond.
//
// Spans of a thread nest. Thread-safe: each thread writes to a track of its own.
class Timeline {
 public:
  struct Span {
    int64_t begin = 0;  // nanoseconds of the clock
    int64_t end = 0;
    int64_t step = -1;
    std::string_view name;  // lives as long as the timeline
    std::string_view what;  // that it was done to; may be empty
    Activity activity = Activity::Step;
  };
  // The spans of a thread, numbered from 0 in the order in which they ended.
  struct Track {
    std::string name;
    uint64_t first = 0;  // those before are forgotten
    uint64_t end = 0;    // one past the last
  };

  explicit Timeline(const TimelineOptions& options = {});
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  int64_t now() const { return clock_ ? clock_().count() : monotonic(); }

  // Of this thread, which is now in the span's end. Texts are copied.
  void record(Activity activity, std::string_view name, std::string_view what, int64_t step, int64_t begin,
              int64_t end) noexcept;

  // What this thread is called, from here on; the same as before is fine.
  void name_thread(std::string_view name) noexcept;

  std::vector<Track> tracks() const;
  // Copies what is still there of the spans from number `from` on, at most so many; returns the number after
  // the last.
  uint64_t read(size_t track, uint64_t from, size_t most, std::vector<Span>& into) const;

 private:
  static constexpr size_t kChunk = 512;
  // Different texts that a thread may have.
  static constexpr size_t kMostTexts = 4096;
  using Chunk = std::array<Span, kChunk>;
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  struct Recording {
    mutable std::mutex mutex;
    std::string name;  // all below: guarded by mutex
    std::unordered_set<std::string, Hash, std::equal_to<>> texts;
    std::deque<std::unique_ptr<Chunk>> chunks;
    uint64_t first = 0;  // of the first chunk
    uint64_t end = 0;
  };

  static int64_t monotonic() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  Recording& mine();
  Recording& new_recording(std::string_view name);
  Span& room(Recording& recording);
  static std::string_view keep(Recording& recording, std::string_view text);

  const std::function<std::chrono::nanoseconds()> clock_;
  std::atomic<int64_t> chunks_left_;
  mutable std::shared_mutex mutex_;
  // All below: guarded by mutex_.
  std::vector<std::unique_ptr<Recording>> recordings_;
  std::unordered_map<std::thread::id, Recording*> by_thread_;
};

// A span from here to the end of the block; nothing where there is no timeline. The texts outlive it.
class SpanScope {
 public:
  SpanScope(Timeline* timeline, Activity activity, const char* name, int64_t step = -1, const char* what = "")
      : timeline_(timeline), activity_(activity), name_(name), what_(what), step_(step) {
    if (timeline_ != nullptr) begin_ = timeline_->now();
  }
  ~SpanScope() {
    if (timeline_ != nullptr) timeline_->record(activity_, name_, what_, step_, begin_, timeline_->now());
  }
  SpanScope(const SpanScope&) = delete;
  SpanScope& operator=(const SpanScope&) = delete;

 private:
  Timeline* const timeline_;
  const Activity activity_;
  const char* const name_;
  const char* const what_;
  const int64_t step_;
  int64_t begin_ = 0;
};

// For code that has a timeline only at times.
inline void name_thread(Timeline* timeline, std::string_view name) {
  if (timeline != nullptr) timeline->name_thread(name);
}

}  // namespace tutti
