#include "tutti/store/event_encoding.h"

#include <bit>

#include "tutti/base/crc32c.h"
#include "tutti/base/file.h"

namespace tutti::store {
namespace {

// Wire types of protobuf.
constexpr int kVarint = 0;
constexpr int kEightBytes = 1;
constexpr int kWithLength = 2;
constexpr int kFourBytes = 5;

template <class Unsigned>
void append_little_endian(std::string& bytes, Unsigned value) {
  for (size_t i = 0; i < sizeof(value); ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

// Records may contain records, so checksums are masked: the CRC of data with embedded CRCs is degenerate.
uint32_t masked_checksum(std::string_view data) {
  constexpr uint32_t kMask = 0xa282ead8;
  return std::rotr(crc32c(as_bytes(data)), 15) + kMask;
}

}  // namespace

void ProtoMessage::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
  bytes_.push_back(static_cast<char>(value));
}

void ProtoMessage::key(int field, int wire_type) { varint(static_cast<uint64_t>(field) << 3 | wire_type); }

ProtoMessage& ProtoMessage::integer(int field, int64_t value) {
  key(field, kVarint);
  varint(static_cast<uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::real(int field, double value) {
  key(field, kEightBytes);
  append_little_endian(bytes_, std::bit_cast<uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::single(int field, float value) {
  key(field, kFourBytes);
  append_little_endian(bytes_, std::bit_cast<uint32_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::text(int field, std::string_view value) {
  key(field, kWithLength);
  varint(value.size());
  bytes_.append(value);
  return *this;
}

ProtoMessage& ProtoMessage::message(int field, const ProtoMessage& value) {
  return text(field, value.bytes());
}

ProtoMessage& ProtoMessage::packed_reals(int field, std::span<const double> values) {
  key(field, kWithLength);
  varint(values.size() * sizeof(double));
  for (const double value : values) append_little_endian(bytes_, std::bit_cast<uint64_t>(value));
  return *this;
}

std::string frame_record(std::string_view data) {
  std::string record;
  append_little_endian(record, static_cast<uint64_t>(data.size()));
  append_little_endian(record, masked_checksum(record));
  record.append(data);
  append_little_endian(record, masked_checksum(data));
  return record;
}

}  // namespace tutti::store
