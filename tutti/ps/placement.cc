#include "tutti/ps/placement.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::ps {
namespace {

constexpr std::string_view kSplit = "split:";

int64_t parse_size(std::string_view text, std::string_view rule) {
  const uint64_t bytes = parse_bytes(text).value_or(0);
  if (bytes == 0)
    fail(ErrorKind::InvalidArgument,
         "--placement {}: '{}' is not a size; write for example split:256K or split:1M", rule, text);
  return static_cast<int64_t>(std::min<uint64_t>(bytes, std::numeric_limits<int64_t>::max()));
}

int64_t row_size(const torch::Tensor& tensor) {
  return tensor.dim() == 0 || tensor.size(0) == 0 ? tensor.numel() : tensor.numel() / tensor.size(0);
}

// Cuts one parameter into ranges, without servers. Rows are divided evenly; the first ranges have one row
// more.
std::vector<ParameterRange> cut(const torch::Tensor& tensor, size_t parameter, const PlacementRule& rule) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  const bool whole = rule.kind != PlacementRule::Kind::Split || bytes <= rule.bytes || tensor.dim() == 0;
  const int64_t rows = whole ? 1 : tensor.size(0);
  const int64_t count = whole ? 1 : std::min(rows, (bytes + rule.bytes - 1) / rule.bytes);
  const int64_t row = whole ? tensor.numel() : row_size(tensor);
  std::vector<ParameterRange> result;
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t end = begin + (rows / count + (i < rows % count ? 1 : 0)) * row;
    result.push_back({parameter, begin, end, 0});
    begin = end;
  }
  return result;
}

std::vector<Section> sections_of(const std::vector<BlockRange>& block_ranges) {
  std::vector<Section> sections;
  for (const BlockRange& range : block_ranges) {
    const auto options = torch::TensorOptions().dtype(range.type);
    const int64_t size = range.end - range.begin;
    sections.push_back(
        {torch::zeros({size}, options), torch::empty({size}, options), range.block, range.begin});
  }
  return sections;
}

}  // namespace

PlacementRule parse_placement(std::string_view text) {
  if (text == "round-robin") return {};
  if (text == "greedy") return {PlacementRule::Kind::Greedy, 0};
  if (text.starts_with(kSplit))
    return {PlacementRule::Kind::Split, parse_size(text.substr(kSplit.size()), text)};
  fail(ErrorKind::InvalidArgument, "--placement: '{}' is not round-robin, greedy or split:SIZE", text);
}

Placement::Placement(const Parameters& parameters, int servers, const PlacementRule& rule,
                     const PinnedServers& pinned)
    : servers_(servers) {
  TUTTI_CHECK(servers > 0, "{} servers", servers);
  const PinnedServers pins = pinned.empty() ? PinnedServers(parameters.trained().size()) : pinned;
  TUTTI_CHECK(pins.size() == parameters.trained().size(), "{} pins", pins.size());
  // Pinned parameters count towards the load before the others are placed.
  std::vector<int64_t> load(static_cast<size_t>(servers), 0);
  for (size_t i = 0; i < pins.size(); ++i) {
    if (pins[i])
      load.at(static_cast<size_t>(*pins[i])) += static_cast<int64_t>(parameters.trained()[i].tensor.nbytes());
  }
  int dealt = 0;
  for (size_t i = 0; i < pins.size(); ++i) {
    const Parameters::View& view = parameters.trained()[i];
    if (pins[i]) {
      add(view, {i, 0, view.tensor.numel(), *pins[i]});
      continue;
    }
    for (ParameterRange range : cut(view.tensor, i, rule)) {
      const auto least = std::min_element(load.begin(), load.end()) - load.begin();
      range.server = rule.kind == PlacementRule::Kind::RoundRobin ? dealt % servers : static_cast<int>(least);
      load[static_cast<size_t>(range.server)] +=
          (range.end - range.begin) * static_cast<int64_t>(view.tensor.element_size());
      add(view, range);
    }
    ++dealt;
  }
}

void Placement::add(const Parameters::View& view, const ParameterRange& range) {
  parameter_ranges_.push_back(range);
  block_ranges_.push_back(
      {view.block, view.offset + range.begin, view.offset + range.end, view.tensor.scalar_type()});
}

std::vector<BlockRange> Placement::block_ranges_of(int server) const {
  std::vector<BlockRange> block_ranges;
  for (size_t i = 0; i < parameter_ranges_.size(); ++i) {
    if (parameter_ranges_[i].server == server) block_ranges.push_back(block_ranges_[i]);
  }
  std::sort(block_ranges.begin(), block_ranges.end(), [](const BlockRange& a, const BlockRange& b) {
    return std::pair(a.block, a.begin) < std::pair(b.block, b.begin);
  });
  return block_ranges;
}

std::vector<std::string> Placement::lines(const Parameters& parameters, std::string_view job) const {
  std::vector<std::string> lines;
  for (const ParameterRange& range : parameter_ranges_) {
    const Parameters::View& view = parameters.trained()[range.parameter];
    const int64_t row = std::max<int64_t>(1, row_size(view.tensor));
    const bool whole = range.end - range.begin == view.tensor.numel();
    const std::string rows = whole ? "" : fmt::format(" rows {}..{}", range.begin / row, range.end / row);
    lines.push_back(fmt::format("{}{}: (Parameter {}): /job:{}/replica:0/task:{}/device:CPU:0", view.name,
                                rows, describe(view.tensor), job, range.server));
  }
  return lines;
}

Shard::Shard(const std::vector<BlockRange>& block_ranges, const OptimizerOptions& optimizer,
             std::vector<GroupRange> ranges)
    : sections_(sections_of(block_ranges)), optimizer_(sections_, optimizer, std::move(ranges)) {}

int64_t Shard::bytes() const {
  int64_t bytes = 0;
  for (const Section& section : sections_) bytes += static_cast<int64_t>(section.values.nbytes());
  return bytes;
}

}  // namespace tutti::ps
