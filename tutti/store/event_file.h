#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <torch/types.h>

#include "tutti/base/file.h"

namespace tutti::store {

struct EventWriterOptions {
  // The run goes on after this step; nothing: it begins. TensorBoard forgets what earlier files in the
  // directory say about later steps.
  std::optional<int64_t> resumed_after;
  std::chrono::milliseconds flush_every{30000};
  size_t flush_bytes = 1 << 20;
};

// Writes one event file of TensorBoard (events.out.tfevents.*) into `logdir`. What is given is held back for
// up to flush_every; a flush that fails keeps it for the next one. Not thread-safe. The destructor flushes
// and keeps quiet about a failure: call flush() to hear of it, also before a checkpoint, so that no event is
// older than the checkpoint and lost.
class EventWriter {
 public:
  explicit EventWriter(const std::string& logdir, const EventWriterOptions& options = {});
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  void scalar(const std::string& tag, int64_t step, double value);
  // The finite elements in 64 equal buckets between the least and the greatest; without a finite element,
  // nothing.
  void histogram(const std::string& tag, int64_t step, const torch::Tensor& values);
  // Markdown, for TensorBoard's text page.
  void text(const std::string& tag, int64_t step, const std::string& markdown);

  // Hands what is held back to the operating system.
  void flush();

  const std::string& path() const { return path_; }

 private:
  void append(const std::string& event);

  EventWriterOptions options_;
  std::string path_;
  FileDescriptor fd_;
  uint64_t written_ = 0;
  std::string held_;
  std::chrono::steady_clock::time_point last_flush_;
};

}  // namespace tutti::store
