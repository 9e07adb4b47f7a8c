#include "tutti/base/timeline.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

namespace tutti {

std::string_view to_string(Activity activity) {
  switch (activity) {
    case Activity::Step:
      return "step";
    case Activity::Compute:
      return "compute";
    case Activity::Queue:
      return "queue";
    case Activity::Read:
      return "read";
    case Activity::Operation:
      return "operation";
    case Activity::Wait:
      return "wait";
    case Activity::Reduce:
      return "reduce";
    case Activity::Copy:
      return "copy";
    case Activity::Save:
      return "save";
    case Activity::Evaluate:
      return "evaluate";
    case Activity::Operator:
      return "operator";
  }
  return "?";
}

Timeline::Timeline(const TimelineOptions& options)
    : clock_(options.clock), chunks_left_(static_cast<int64_t>(options.most_spans / kChunk)) {}

Timeline::~Timeline() = default;

Timeline::Recording& Timeline::mine() {
  const auto id = std::this_thread::get_id();
  {
    const std::shared_lock lock(mutex_);
    const auto found = by_thread_.find(id);
    if (found != by_thread_.end()) return *found->second;
  }
  return new_recording("");
}

Timeline::Recording& Timeline::new_recording(std::string_view name) {
  const std::unique_lock lock(mutex_);
  recordings_.push_back(std::make_unique<Recording>());
  Recording& recording = *recordings_.back();
  recording.name = name.empty() ? fmt::format("thread {}", recordings_.size() - 1) : std::string(name);
  by_thread_[std::this_thread::get_id()] = &recording;
  return recording;
}

// The system reuses the ids of threads that have ended: a thread whose name differs gets a new track, even if
// its id is known.
void Timeline::name_thread(std::string_view name) noexcept {
  try {
    const auto id = std::this_thread::get_id();
    {
      const std::shared_lock lock(mutex_);
      const auto found = by_thread_.find(id);
      if (found != by_thread_.end() && found->second->name == name) return;
    }
    new_recording(name);
  } catch (const std::exception&) {
    // The thread keeps its old name.
  }
}

std::string_view Timeline::keep(Recording& recording, std::string_view text) {
  if (text.empty()) return {};
  const auto found = recording.texts.find(text);
  if (found != recording.texts.end()) return *found;
  if (recording.texts.size() >= kMostTexts) return "(too many different names)";
  return *recording.texts.emplace(text).first;
}

Timeline::Span& Timeline::next_span(Recording& recording) {
  const size_t at = recording.end % kChunk;
  if (at == 0) {
    if (chunks_left_.fetch_sub(1, std::memory_order_relaxed) > 0 || recording.chunks.empty()) {
      recording.chunks.push_back(std::make_unique<Chunk>());
    } else {
      recording.chunks.push_back(std::move(recording.chunks.front()));
      recording.chunks.pop_front();
      recording.first += kChunk;
    }
  }
  return (*recording.chunks.back())[at];
}

void Timeline::record(Activity activity, std::string_view name, std::string_view what, int64_t step,
                      int64_t begin, int64_t end) noexcept {
  try {
    Recording& recording = mine();
    const std::lock_guard lock(recording.mutex);
    const std::string_view kept_name = keep(recording, name);
    const std::string_view kept_what = keep(recording, what);
    next_span(recording) = {begin, end, step, kept_name, kept_what, activity};
    ++recording.end;
  } catch (const std::exception&) {
    // Out of memory: this span is not recorded, and the thread continues.
  }
}

std::vector<Timeline::Track> Timeline::tracks() const {
  std::vector<Track> tracks;
  const std::shared_lock lock(mutex_);
  for (const auto& recording : recordings_) {
    const std::lock_guard guard(recording->mutex);
    tracks.push_back({recording->name, recording->first, recording->end});
  }
  return tracks;
}

uint64_t Timeline::read(size_t track, uint64_t from, size_t most, std::vector<Span>& into) const {
  const Recording* recording = nullptr;
  {
    const std::shared_lock lock(mutex_);
    recording = recordings_.at(track).get();
  }
  const std::lock_guard lock(recording->mutex);
  const uint64_t begin = std::max(from, recording->first);
  const uint64_t end = std::max(begin, std::min<uint64_t>(recording->end, begin + most));
  into.clear();
  for (uint64_t number = begin; number < end; ++number) {
    const uint64_t at = number - recording->first;
    into.push_back((*recording->chunks[at / kChunk])[at % kChunk]);
  }
  return end;
}

}  // namespace tutti
