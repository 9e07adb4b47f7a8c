#include "tutti/data/fingerprint.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "tutti/base/crc32c.h"
#include "tutti/base/file.h"
#include "tutti/base/type_name.h"

namespace tutti::data {
namespace {

constexpr int64_t kExamples = 16;

// Returns examples from the first to the last, as far apart as possible.
std::vector<int64_t> spread(const ExampleRange& range) {
  const int64_t count = std::min(range.size(), kExamples);
  std::vector<int64_t> examples;
  for (int64_t i = 0; i < count; ++i) {
    // Divides before it multiplies, since the product of two large numbers would overflow.
    const int64_t step = count > 1 ? (range.size() - 1) / (count - 1) : 0;
    const int64_t rest = count > 1 ? (range.size() - 1) % (count - 1) : 0;
    examples.push_back(range.begin + step * i + (count > 1 ? rest * i / (count - 1) : 0));
  }
  return examples;
}

std::string checksum_of(const torch::Tensor& tensor) {
  const torch::Tensor bytes = tensor.detach().cpu().contiguous();
  return fmt::format("{:08x}", crc32c({static_cast<const std::byte*>(bytes.data_ptr()), bytes.nbytes()}));
}

}  // namespace

Fingerprint order_of(const Feed& feed, int64_t lanes) {
  Fingerprint lines = {{"examples", std::to_string(feed.size())},
                       {"order", feed.order() == Order::Shuffled ? "shuffled" : "as they are"}};
  std::string ranges;
  for (const ExampleRange& range : feed.ranges(lanes))
    ranges += fmt::format("{} {} ", range.begin, range.end);
  lines.emplace_back(
      "examples of each lane",
      ranges.empty() ? "all" : fmt::format("ranges with checksum {:08x}", crc32c(as_bytes(ranges))));
  if (const std::string parts = feed.source().parts(); !parts.empty()) lines.emplace_back("parts", parts);
  return lines;
}

Fingerprint columns_of(const Feed& feed, int64_t lanes) {
  const std::vector<ExampleRange> ranges = feed.ranges(lanes);
  const std::vector<int64_t> examples =
      spread(ranges.empty() ? ExampleRange{0, feed.size()} : ranges.front());
  if (examples.empty()) return {};
  const Batch batch = feed.fetch(examples);
  Fingerprint lines;
  for (const auto& [name, tensor] : batch.tensors()) {
    lines.emplace_back(
        "column " + name,
        fmt::format("{}[{}], {} examples with checksum {}", type_name(tensor.scalar_type()),
                    fmt::join(tensor.sizes().slice(1), ","), examples.size(), checksum_of(tensor)));
  }
  return lines;
}

}  // namespace tutti::data
