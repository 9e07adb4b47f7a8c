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

// The kind of work that a thread does during a span.
enum class Activity : uint8_t {
  Step,       // a whole step, or another phase of a training
  Compute,    // forward, backward, update
  Queue,      // waiting for a batch
  Read,       // preparing a batch
  Operation,  // an operation of a communicator; its parts are nested inside
  Wait,       // waiting for other ranks
  Reduce,     // adding
  Copy,       // moving bytes
  Save,       // writing or reading a checkpoint
  Evaluate,
  Operator,  // an operator of LibTorch (--profile-steps)
};

// Returns "step", "compute", and so on.
std::string_view to_string(Activity activity);

// Options of a Timeline.
struct TimelineOptions {
  // The capacity of all threads together, 64 bytes each. Once it is reached, a thread drops its oldest spans.
  size_t most_spans = size_t{1} << 20;
  // If empty, CLOCK_MONOTONIC, which all processes of a machine share.
  std::function<std::chrono::nanoseconds()> clock = {};
};

// Records what the threads of one process did and when, as spans of time in memory (trace_events.h writes
// them to a file). The Context owns one if --timeline is given, and passes it down. Otherwise the pointer is
// null, and a SpanScope costs one comparison. Recording a span costs a fifth of a microsecond.
//
// The spans of a thread are nested. Thread-safe: each thread writes to a separate track.
class Timeline {
 public:
  // One activity of a thread, from `begin` to `end`.
  struct Span {
    int64_t begin = 0;  // nanoseconds of the clock
    int64_t end = 0;
    int64_t step = -1;
    std::string_view name;  // valid as long as the timeline
    std::string_view what;  // the object of the activity; may be empty
    Activity activity = Activity::Step;
  };
  // The spans of a thread, numbered from 0 in the order in which they ended.
  struct Track {
    std::string name;
    uint64_t first = 0;  // the earlier spans have been dropped
    uint64_t end = 0;    // one past the last
  };

  explicit Timeline(const TimelineOptions& options = {});
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  int64_t now() const { return clock_ ? clock_().count() : monotonic(); }

  // Records a span of the calling thread, which ends now. The texts are copied.
  void record(Activity activity, std::string_view name, std::string_view what, int64_t step, int64_t begin,
              int64_t end) noexcept;

  // Sets the name of the calling thread from now on. Does nothing if it has this name already.
  void name_thread(std::string_view name) noexcept;

  std::vector<Track> tracks() const;
  // Copies up to `most` of the spans that are still kept, from number `from` on; returns the number after the
  // last one.
  uint64_t read(size_t track, uint64_t from, size_t most, std::vector<Span>& into) const;

 private:
  static constexpr size_t kChunk = 512;
  // The maximum number of different texts of a thread.
  static constexpr size_t kMostTexts = 4096;
  using Chunk = std::array<Span, kChunk>;
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  struct Recording {
    mutable std::mutex mutex;
    std::string name;  // this and all below: guarded by mutex
    std::unordered_set<std::string, Hash, std::equal_to<>> texts;
    std::deque<std::unique_ptr<Chunk>> chunks;
    uint64_t first = 0;  // number of the first span in the first chunk
    uint64_t end = 0;
  };

  static int64_t monotonic() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  Recording& mine();
  Recording& new_recording(std::string_view name);
  Span& next_span(Recording& recording);
  static std::string_view keep(Recording& recording, std::string_view text);

  const std::function<std::chrono::nanoseconds()> clock_;
  std::atomic<int64_t> chunks_left_;
  mutable std::shared_mutex mutex_;
  // All below: guarded by mutex_.
  std::vector<std::unique_ptr<Recording>> recordings_;
  std::unordered_map<std::thread::id, Recording*> by_thread_;
};

// Records a span from here to the end of the block. Does nothing without a timeline. Keep the texts alive.
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

// For callers whose timeline may be null.
inline void name_thread(Timeline* timeline, std::string_view name) {
  if (timeline != nullptr) timeline->name_thread(name);
}

}  // namespace tutti
