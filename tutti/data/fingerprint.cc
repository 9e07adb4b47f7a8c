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

// Adds the columns of the sources, with the path to each: "feed 1: ".
void add_columns(const Fetched& fetched, const std::string& path, Fingerprint& lines) {
  for (size_t part = 0; part < fetched.parts.size(); ++part) {
    const std::string name = fetched.parts.size() > 1 ? fmt::format("{}feed {}: ", path, part) : path;
    add_columns(fetched.parts[part], name, lines);
  }
  for (const auto& [name, tensor] : fetched.batch.tensors()) {
    lines.emplace_back(
        path + "column " + name,
        fmt::format("{}[{}], {} examples with checksum {}", type_name(tensor.scalar_type()),
                    fmt::join(tensor.sizes().slice(1), ","), tensor.size(0), checksum_of(tensor)));
  }
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
  if (const std::string parts = feed.origins(); !parts.empty()) lines.emplace_back("parts", parts);
  // Also for the feed of a single source: a run with one is not resumed with a combined feed.
  const std::string recipe = feed.recipe();
  lines.emplace_back("combination", recipe.empty() ? "none" : recipe);
  return lines;
}

Fingerprint columns_of(const Feed& feed, int64_t lanes) {
  Fingerprint lines;
  if (feed.parts().size() > 1) {
    for (size_t part = 0; part < feed.parts().size(); ++part) {
      for (auto& [name, text] : columns_of(feed.parts()[part], lanes))
        lines.emplace_back(fmt::format("feed {}: {}", part, name), std::move(text));
    }
    return lines;
  }
  const std::vector<ExampleRange> ranges = feed.ranges(lanes);
  const std::vector<int64_t> examples =
      spread(ranges.empty() ? ExampleRange{0, feed.size()} : ranges.front());
  if (!examples.empty()) add_columns(feed.fetch(examples), "", lines);
  return lines;
}

}  // namespace tutti::data
