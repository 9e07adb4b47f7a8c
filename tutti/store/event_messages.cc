#include "tutti/store/event_messages.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/type_name.h"
#include "tutti/store/png.h"

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

// Field numbers of TensorBoard's messages.
enum EventField { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum SessionLogField { kStatus = 1 };
enum SummaryField { kValue = 1 };
enum ValueField { kTag = 1, kSimpleValue = 2, kImage = 4, kHistogram = 5, kTensor = 8, kPluginData = 9 };
enum HistogramField {
  kMin = 1,
  kMax = 2,
  kCount = 3,
  kSum = 4,
  kSumOfSquares = 5,
  kLimits = 6,
  kBuckets = 7
};
enum ImageField { kHeight = 1, kWidth = 2, kColourSpace = 3, kEncoded = 4 };
enum TensorField { kType = 1, kShape = 2, kContent = 4, kStrings = 8 };
enum ShapeField { kDimension = 2 };
enum DimensionField { kSize = 1 };
enum MetadataField { kPlugin = 1 };
enum PluginField { kPluginName = 1, kPluginContent = 2 };
enum CurveField { kCurveVersion = 1, kThresholds = 2 };

constexpr int64_t kSessionStart = 1;  // SessionLog.START
constexpr int64_t kFloatType = 1;     // DT_FLOAT
constexpr int64_t kStringType = 7;    // DT_STRING
constexpr int64_t kHistogramBuckets = 64;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

ProtoMessage event_at(int64_t step) {
  ProtoMessage event;
  event.real(kWallTime, seconds_since_1970()).integer(kStep, step);
  return event;
}

std::string summary_event(int64_t step, const ProtoMessage& value) {
  return event_at(step).message(kSummary, ProtoMessage().message(kValue, value)).bytes();
}

// --- Histograms

struct Moments {
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();
  double count = 0;
  double sum = 0;
  double sum_of_squares = 0;
};

// Passes the finite elements to `use` in double precision, in pieces, because a copy of all of them might not
// fit into memory beside the model.
template <class Use>
void for_finite_pieces(const torch::Tensor& values, const Use& use) {
  constexpr int64_t kPiece = 1 << 22;
  const torch::Tensor flat = values.detach().reshape(-1);
  for (int64_t at = 0; at < flat.numel(); at += kPiece) {
    const torch::Tensor piece = flat.narrow(0, at, std::min(kPiece, flat.numel() - at)).to(torch::kDouble);
    const torch::Tensor finite = piece.masked_select(torch::isfinite(piece));
    if (finite.numel() > 0) use(finite);
  }
}

Moments moments_of(const torch::Tensor& values) {
  Moments moments;
  for_finite_pieces(values, [&moments](const torch::Tensor& piece) {
    moments.least = std::min(moments.least, piece.min().item<double>());
    moments.greatest = std::max(moments.greatest, piece.max().item<double>());
    moments.count += static_cast<double>(piece.numel());
    moments.sum += piece.sum().item<double>();
    moments.sum_of_squares += piece.square().sum().item<double>();
  });
  return moments;
}

std::vector<double> count_buckets(const torch::Tensor& values, const Moments& moments) {
  torch::Tensor counts = torch::zeros(kHistogramBuckets, torch::kDouble);
  for_finite_pieces(values, [&](const torch::Tensor& piece) {
    counts += torch::histc(piece, kHistogramBuckets, moments.least, moments.greatest).cpu();
  });
  return {counts.data_ptr<double>(), counts.data_ptr<double>() + counts.numel()};
}

ProtoMessage histogram_message(const torch::Tensor& values, const Moments& moments) {
  std::vector<double> limits = {moments.greatest};
  std::vector<double> counts = {moments.count};
  const double width = (moments.greatest - moments.least) / kHistogramBuckets;
  // One bucket if all are equal, or so far apart that the width overflows a double.
  if (width > 0 && std::isfinite(width)) {
    counts = count_buckets(values, moments);
    limits.clear();
    for (int64_t i = 1; i < kHistogramBuckets; ++i)
      limits.push_back(moments.least + static_cast<double>(i) * width);
    limits.push_back(moments.greatest);
  }
  ProtoMessage message;
  message.real(kMin, moments.least).real(kMax, moments.greatest).real(kCount, moments.count);
  message.real(kSum, moments.sum).real(kSumOfSquares, moments.sum_of_squares);
  message.packed_reals(kLimits, limits).packed_reals(kBuckets, counts);
  return message;
}

// --- Images

// Returns the image with its channels innermost, as bytes in main memory.
torch::Tensor as_pixels(const std::string& tag, const torch::Tensor& image) {
  constexpr int64_t kMostPixels = std::numeric_limits<int32_t>::max();
  const bool has_channels = image.dim() == 3 && image.size(0) >= 1 && image.size(0) <= 4;
  if ((image.dim() != 2 && !has_channels) || image.numel() == 0 || image.numel() > kMostPixels)
    fail(ErrorKind::InvalidArgument,
         "the image '{}' has the shape [{}]; expected height x width, or 1 to 4 channels x height x width",
         tag, fmt::join(image.sizes(), ", "));
  torch::Tensor pixels = image.detach().cpu();
  if (pixels.is_floating_point()) {
    constexpr double kRounding = 1e-3;
    pixels = pixels.to(torch::kFloat);
    // Also false if there is a NaN.
    if (!pixels.ge(-kRounding).logical_and(pixels.le(1 + kRounding)).all().item<bool>())
      fail(ErrorKind::InvalidArgument,
           "the image '{}' has values from {} to {}; expected floats from 0 to 1, or uint8. Scale it first",
           tag, pixels.min().item<float>(), pixels.max().item<float>());
    pixels = pixels.clamp(0, 1).mul(255).round().to(torch::kByte);
  }
  if (pixels.scalar_type() != torch::kByte)
    fail(ErrorKind::InvalidArgument,
         "the image '{}' is of the type {}; expected floats from 0 to 1, or uint8", tag,
         type_name(pixels.scalar_type()));
  if (pixels.dim() == 2) pixels = pixels.unsqueeze(0);
  return pixels.permute({1, 2, 0}).contiguous();
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

std::string version_event() {
  return ProtoMessage().real(kWallTime, seconds_since_1970()).text(kFileVersion, "brain.Event:2").bytes();
}

std::string start_event(int64_t step) {
  const auto start = ProtoMessage().integer(kStatus, kSessionStart);
  return event_at(step).message(kSessionLog, start).bytes();
}

std::string scalar_event(const std::string& tag, int64_t step, double value) {
  return summary_event(step, ProtoMessage().text(kTag, tag).single(kSimpleValue, static_cast<float>(value)));
}

std::optional<std::string> histogram_event(const std::string& tag, int64_t step,
                                           const torch::Tensor& values) {
  const Moments moments = moments_of(values);
  if (moments.count == 0) return std::nullopt;
  return summary_event(
      step, ProtoMessage().text(kTag, tag).message(kHistogram, histogram_message(values, moments)));
}

std::string image_event(const std::string& tag, int64_t step, const torch::Tensor& image) {
  const torch::Tensor pixels = as_pixels(tag, image);
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(pixels.data_ptr()), pixels.nbytes());
  const int64_t channels = pixels.size(2);  // also the number of the colour space
  ProtoMessage message;
  message.integer(kHeight, pixels.size(0)).integer(kWidth, pixels.size(1)).integer(kColourSpace, channels);
  message.text(kEncoded, encode_png(bytes, pixels.size(0), pixels.size(1), channels));
  return summary_event(step, ProtoMessage().text(kTag, tag).message(kImage, message));
}

std::string text_event(const std::string& tag, int64_t step, const std::string& markdown) {
  const auto plugin = ProtoMessage().message(kPlugin, ProtoMessage().text(kPluginName, "text"));
  const auto tensor = ProtoMessage().integer(kType, kStringType).text(kStrings, markdown);
  return summary_event(step,
                       ProtoMessage().text(kTag, tag).message(kTensor, tensor).message(kPluginData, plugin));
}

// TensorBoard wants six rows of float32: the four counts, then precision and recall. It leaves out the
// thresholds at the end above which there is no example, so the precision there is never shown.
std::string pr_curve_event(const std::string& tag, int64_t step, const CurveCounts& counts) {
  const size_t thresholds = counts.true_positives.size();
  TUTTI_CHECK(thresholds >= 2 && counts.false_positives.size() == thresholds &&
                  counts.true_negatives.size() == thresholds && counts.false_negatives.size() == thresholds,
              "{} thresholds of the curve '{}'", thresholds, tag);
  const auto share = [](double part, double rest) { return part + rest > 0 ? part / (part + rest) : 0; };
  std::vector<double> precision;
  std::vector<double> recall;
  for (size_t i = 0; i < thresholds; ++i) {
    precision.push_back(share(counts.true_positives[i], counts.false_positives[i]));
    recall.push_back(share(counts.true_positives[i], counts.false_negatives[i]));
  }
  std::string content;
  for (const std::vector<double>* row :
       {&counts.true_positives, &counts.false_positives, &counts.true_negatives, &counts.false_negatives,
        static_cast<const std::vector<double>*>(&precision),
        static_cast<const std::vector<double>*>(&recall)}) {
    for (const double value : *row)
      append_little_endian(content, std::bit_cast<uint32_t>(static_cast<float>(value)));
  }
  constexpr int64_t kRows = 6;
  const auto count = static_cast<int64_t>(thresholds);
  ProtoMessage shape;
  for (const int64_t size : {kRows, count}) shape.message(kDimension, ProtoMessage().integer(kSize, size));
  const auto tensor =
      ProtoMessage().integer(kType, kFloatType).message(kShape, shape).text(kContent, content);
  const auto about = ProtoMessage().integer(kCurveVersion, 0).integer(kThresholds, count);
  const auto plugin = ProtoMessage().text(kPluginName, "pr_curves").message(kPluginContent, about);
  return summary_event(step, ProtoMessage()
                                 .text(kTag, tag + "/pr_curves")
                                 .message(kTensor, tensor)
                                 .message(kPluginData, ProtoMessage().message(kPlugin, plugin)));
}

}  // namespace tutti::store
