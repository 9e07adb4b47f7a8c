#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <torch/types.h>

#include "tutti/base/file.h"

namespace tutti::store {

struct EventWriterOptions {
  // Set if the run resumes after this step. TensorBoard then discards the events of later steps in earlier
  // files of the directory.
  std::optional<int64_t> resumed_after;
  std::chrono::milliseconds flush_every{30000};
  size_t flush_bytes = 1 << 20;
};

// Writes one event file for TensorBoard (events.out.tfevents.*) into `logdir`. Events are buffered for up to
// flush_every; if a flush fails, they stay buffered for the next one. Not thread-safe. The destructor flushes
// and ignores errors: call flush() to get them, and also before each checkpoint, so that no event from before
// the checkpoint can be lost.
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

  // Writes buffered events to the file, without waiting for the device.
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

// Encodes one protobuf message, field by field. It supports as much of the wire format as TensorBoard's
// events need, so that no protobuf library is required.
class ProtoMessage {
 public:
  ProtoMessage& integer(int field, int64_t value);
  ProtoMessage& real(int field, double value);
  ProtoMessage& single(int field, float value);
  ProtoMessage& text(int field, std::string_view value);
  ProtoMessage& message(int field, const ProtoMessage& value);
  ProtoMessage& packed_reals(int field, std::span<const double> values);

  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int wire_type);
  void varint(uint64_t value);

  std::string bytes_;
};

// Returns a record in TensorFlow's format: length, masked CRC-32C of the length, data, masked CRC-32C of the
// data.
std::string frame_record(std::string_view data);

}  // namespace tutti::store
