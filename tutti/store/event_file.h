#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/base/file.h"
#include "tutti/store/event_messages.h"

namespace tutti::store {

// Options of an EventWriter.
struct EventWriterOptions {
  // Set if the run resumes after this step. TensorBoard then discards the events of later steps in earlier
  // files of the directory.
  std::optional<int64_t> resumed_after;
  // False for a file that adds to the other files of the directory: TensorBoard then discards no events of
  // them.
  bool begins_run = true;
  std::chrono::milliseconds flush_every{30000};  // the longest time that an event is buffered
  size_t flush_bytes = 1 << 20;                  // the number of buffered bytes that are written at once
};

// Writes one event file for TensorBoard (events.out.tfevents.*) into `logdir`. Events are buffered for up to
// flush_every; if a flush fails, they stay buffered for the next one. Thread-safe. The destructor flushes and
// ignores errors: call flush() to get them, and also before each checkpoint, so that no event from before the
// checkpoint can be lost.
class EventWriter {
 public:
  explicit EventWriter(const std::string& logdir, const EventWriterOptions& options = {});
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  void scalar(const std::string& tag, int64_t step, double value);
  // Writes the finite elements in 64 equal buckets between the minimum and the maximum. Writes nothing
  // without a finite element.
  void histogram(const std::string& tag, int64_t step, const torch::Tensor& values);
  // Writes one image of the shape HW (grey) or CHW with 1 to 4 channels (grey, grey and alpha, RGB, RGBA), of
  // the type uint8 or of floats from 0 to 1, from any device. Another shape, type or range is an
  // InvalidArgument. It is stored as PNG, so a build without zlib throws Unimplemented.
  void image(const std::string& tag, int64_t step, const torch::Tensor& image);
  // Writes Markdown for TensorBoard's text page.
  void text(const std::string& tag, int64_t step, const std::string& markdown);
  // Writes a curve for TensorBoard's page of PR curves, under the tag TAG/pr_curves, so that TAG may also be
  // the tag of a scalar.
  void pr_curve(const std::string& tag, int64_t step, const CurveCounts& counts);
  // Adds an encoded event (event_messages.h).
  void add(const std::string& event);

  // Writes buffered events to the file, without waiting for the device.
  void flush();

  const std::string& path() const { return path_; }

 private:
  void write_held();

  const EventWriterOptions options_;
  std::string path_;
  FileDescriptor fd_;

  std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t written_ = 0;
  std::string held_;
  std::chrono::steady_clock::time_point last_flush_;
};

// Passes events from any place in a program to the event file of a log directory. Only one file of a
// directory may grow at a time, since TensorBoard reads one after the other; so the training that opens the
// file and the rest of the program share it. Thread-safe.
class EventStream {
 public:
  // If no training opens a file, the destructor writes the added events to a file in `folder`; "": writes
  // none.
  explicit EventStream(std::string folder) : folder_(std::move(folder)) {}
  ~EventStream();
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  // Opens a new file, which gets all events that are added from now on, and up to 16 MiB of events that were
  // added before.
  std::shared_ptr<EventWriter> open(const std::string& folder, const EventWriterOptions& options = {});
  // For a process that writes no events: discards all events that were added or will be added.
  void drop();
  bool is_dropped() const;
  void add(const std::string& event);

 private:
  const std::string folder_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<EventWriter> writer_;  // shared with the training, which may begin a new file
  std::vector<std::string> waiting_;     // until a file is opened
  size_t waiting_bytes_ = 0;
  bool dropped_ = false;
};

// Shows values that the program computes in TensorBoard, beside Tutti's values, from any thread. Does nothing
// in a process that writes no events. Copies write to the same stream.
class Events {
 public:
  Events() = default;  // writes nothing
  explicit Events(std::shared_ptr<EventStream> stream) : stream_(std::move(stream)) {}

  // False if this process writes no events: then there is no need to compute the values.
  explicit operator bool() const { return stream_ && !stream_->is_dropped(); }

  // See EventWriter.
  void scalar(const std::string& tag, int64_t step, double value) const;
  void histogram(const std::string& tag, int64_t step, const torch::Tensor& values) const;
  void image(const std::string& tag, int64_t step, const torch::Tensor& image) const;
  void text(const std::string& tag, int64_t step, const std::string& markdown) const;
  void pr_curve(const std::string& tag, int64_t step, const CurveCounts& counts) const;

 private:
  std::shared_ptr<EventStream> stream_;
};

}  // namespace tutti::store
