#include "tools/plot/events.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/hashes.h"

namespace tutti::plot {
namespace {

// The field numbers of TensorBoard's messages that are read.
constexpr uint64_t kEventStep = 2;
constexpr uint64_t kEventSummary = 5;
constexpr uint64_t kEventSession = 7;
constexpr uint64_t kSessionStatus = 1;
constexpr uint64_t kSummaryValue = 1;
constexpr uint64_t kValueTag = 1;
constexpr uint64_t kValueNumber = 2;
constexpr uint64_t kValueTensor = 8;
constexpr uint64_t kValueMetadata = 9;
constexpr uint64_t kMetadataPlugin = 1;
constexpr uint64_t kPluginName = 1;
constexpr uint64_t kTensorShape = 2;
constexpr uint64_t kTensorContent = 4;
constexpr uint64_t kTensorFloats = 5;  // PyTorch's writer has the numbers there
constexpr uint64_t kShapeDimension = 2;
constexpr uint64_t kDimensionSize = 1;
constexpr uint64_t kSessionStarts = 1;

template <class Number>
Number number_at(std::string_view bytes, size_t at = 0) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// One field of a protobuf message.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;           // of an integer
  std::string_view bytes = {};  // of any other field
};

// Remove a varint, or this number of bytes, from the front; return nullopt if there are not enough bytes.
std::optional<uint64_t> take_varint(std::string_view& rest) {
  constexpr size_t kLongest = 10;
  uint64_t value = 0;
  for (size_t i = 0; i < std::min(rest.size(), kLongest); ++i) {
    const auto byte = static_cast<unsigned char>(rest[i]);
    value |= static_cast<uint64_t>(byte & 0x7FU) << (7 * i);
    if (byte < 0x80U) {
      rest.remove_prefix(i + 1);
      return value;
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> take_bytes(std::string_view& rest, uint64_t count) {
  if (count > rest.size()) return std::nullopt;
  const std::string_view bytes = rest.substr(0, count);
  rest.remove_prefix(count);
  return bytes;
}

std::optional<Field> take_field(std::string_view& rest) {
  constexpr uint64_t kVarint = 0;
  constexpr uint64_t kEightBytes = 1;
  constexpr uint64_t kWithLength = 2;
  constexpr uint64_t kFourBytes = 5;
  const auto key = take_varint(rest);
  if (!key) return std::nullopt;
  const uint64_t type = *key & 7U;
  std::optional<uint64_t> length;
  if (type == kEightBytes) length = 8;
  if (type == kFourBytes) length = 4;
  if (type == kVarint || type == kWithLength) {
    const auto value = take_varint(rest);
    if (!value) return std::nullopt;
    if (type == kVarint) return Field{*key >> 3U, *value, {}};
    length = value;
  }
  if (!length) return std::nullopt;
  const auto bytes = take_bytes(rest, *length);
  return bytes ? std::optional(Field{*key >> 3U, 0, *bytes}) : std::nullopt;
}

std::vector<Field> fields_of(std::string_view message, const std::string& what) {
  std::vector<Field> fields;
  while (!message.empty()) {
    const auto field = take_field(message);
    if (!field) fail(ErrorKind::DataLoss, "{} has an event that cannot be decoded", what);
    fields.push_back(*field);
  }
  return fields;
}

// Returns the fields with this number, joined: a message may come in parts.
std::string field_of(std::string_view message, uint64_t number, const std::string& what) {
  std::string bytes;
  for (const Field& field : fields_of(message, what)) {
    if (field.number == number) bytes += field.bytes;
  }
  return bytes;
}

// Decodes the tensor of TensorBoard's PR curves: a row of float32 for each of the four counts, then precision
// and recall, which follow from them.
std::vector<Counts> counts_of(std::string_view tensor, std::string_view tag, const std::string& what) {
  constexpr size_t kRows = 6;
  std::vector<uint64_t> sizes;
  const std::string shape = field_of(tensor, kTensorShape, what);
  for (const Field& field : fields_of(shape, what)) {
    if (field.number != kShapeDimension) continue;
    for (const Field& inner : fields_of(field.bytes, what)) {
      if (inner.number == kDimensionSize) sizes.push_back(inner.value);
    }
  }
  const std::string numbers = field_of(tensor, kTensorContent, what) + field_of(tensor, kTensorFloats, what);
  const size_t columns = numbers.size() / (kRows * sizeof(float));
  if (columns == 0 || numbers.size() % (kRows * sizeof(float)) != 0 ||
      sizes != std::vector<uint64_t>{kRows, columns})
    fail(ErrorKind::DataLoss, "{} has a curve '{}' of another shape than PR curves have", what, tag);
  const auto count = [&](size_t row, size_t column) {
    const double value = number_at<float>(numbers, (row * columns + column) * sizeof(float));
    if (!std::isfinite(value) || value < 0)
      fail(ErrorKind::DataLoss, "{} has a curve '{}' that counts {} examples", what, tag, value);
    return value;
  };
  std::vector<Counts> thresholds;
  for (size_t i = 0; i < columns; ++i)
    thresholds.push_back({count(0, i), count(1, i), count(2, i), count(3, i)});
  return thresholds;
}

void add_value(std::string_view value, int64_t step, const std::string& what, PlottedRun& run) {
  std::string tag;
  std::optional<float> number;
  std::string plugin;
  std::string tensor;
  for (const Field& field : fields_of(value, what)) {
    if (field.number == kValueTag) tag = field.bytes;
    if (field.number == kValueNumber && field.bytes.size() == sizeof(float))
      number = number_at<float>(field.bytes);
    if (field.number == kValueTensor) tensor = field.bytes;
    if (field.number == kValueMetadata)
      plugin = field_of(field_of(field.bytes, kMetadataPlugin, what), kPluginName, what);
  }
  const auto at = static_cast<double>(step);
  if (number) run.scalars[tag].push_back({at, *number});
  if (plugin == "pr_curves") run.counts[tag].push_back({at, counts_of(tensor, tag, what)});
}

// Forgets the values from this step on: a run was resumed before it.
void forget_from(int64_t step, PlottedRun& run) {
  const auto first = static_cast<double>(step);
  for (auto& [tag, points] : run.scalars)
    std::erase_if(points, [&](const chart::Point& point) { return point.x >= first; });
  for (auto& [tag, curves] : run.counts)
    std::erase_if(curves, [&](const CountsAtStep& curve) { return curve.step >= first; });
}

void add_event(std::string_view event, const std::string& what, PlottedRun& run) {
  const std::vector<Field> fields = fields_of(event, what);
  int64_t step = 0;
  for (const Field& field : fields) {
    if (field.number == kEventStep) step = static_cast<int64_t>(field.value);
  }
  for (const Field& field : fields) {
    const bool is_summary = field.number == kEventSummary;
    if (!is_summary && field.number != kEventSession) continue;
    for (const Field& inner : fields_of(field.bytes, what)) {
      if (is_summary && inner.number == kSummaryValue) add_value(inner.bytes, step, what, run);
      if (!is_summary && inner.number == kSessionStatus && inner.value == kSessionStarts)
        forget_from(step, run);
    }
  }
}

uint32_t masked(std::string_view data) {
  constexpr uint32_t kMask = 0xa282ead8;
  return std::rotr(crc32c(as_bytes(data)), 15) + kMask;
}

}  // namespace

void add_events(std::string_view bytes, const std::string& what, PlottedRun& run) {
  constexpr size_t kHead = sizeof(uint64_t) + sizeof(uint32_t);
  while (bytes.size() >= kHead) {
    const auto length = number_at<uint64_t>(bytes);
    if (number_at<uint32_t>(bytes, sizeof(uint64_t)) != masked(bytes.substr(0, sizeof(uint64_t))))
      fail(ErrorKind::DataLoss, "{} is damaged, or is not an event file", what);
    bytes.remove_prefix(kHead);
    if (bytes.size() < sizeof(uint32_t) || length > bytes.size() - sizeof(uint32_t)) return;
    const std::string_view event = bytes.substr(0, length);
    if (number_at<uint32_t>(bytes, length) != masked(event))
      fail(ErrorKind::DataLoss, "{} is damaged: an event has another checksum", what);
    add_event(event, what, run);
    bytes.remove_prefix(length + sizeof(uint32_t));
  }
}

}  // namespace tutti::plot
