#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tutti::store {

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
