#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

namespace tutti::store {

// The counts of a classifier of two classes at thresholds that are evenly spaced from 0 to 1: for each class,
// the number of examples with a probability above the threshold, and the number of the others. They may be
// weighted.
struct CurveCounts {
  std::vector<double> true_positives;
  std::vector<double> false_positives;
  std::vector<double> true_negatives;
  std::vector<double> false_negatives;
};

// TensorBoard's events, encoded as its protobuf messages. They have the time at which they were made.
std::string version_event();
// TensorBoard takes the second start event in a directory for a restart, and then discards the events of this
// step and later ones.
std::string start_event(int64_t step);
std::string scalar_event(const std::string& tag, int64_t step, double value);
// nullopt without a finite element.
std::optional<std::string> histogram_event(const std::string& tag, int64_t step, const torch::Tensor& values);
std::string image_event(const std::string& tag, int64_t step, const torch::Tensor& image);
std::string text_event(const std::string& tag, int64_t step, const std::string& markdown);
std::string pr_curve_event(const std::string& tag, int64_t step, const CurveCounts& counts);

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
