#include "tools/bench/figures.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/base/version.h"

namespace tutti::bench {
namespace {

constexpr int64_t kLargest = int64_t{16} << 30;
constexpr int64_t kStep = 4;  // factor between consecutive sizes of "4..64M"

struct Known {
  Collective operation;
  std::string_view name;
};

constexpr std::array<Known, 8> kKnown = {{
    {Collective::AllReduce, "all_reduce"},
    {Collective::AllReduceInPlace, "all_reduce_in_place"},
    {Collective::AllReduceAnyOrder, "all_reduce_any_order"},
    {Collective::ReduceScatter, "reduce_scatter"},
    {Collective::AllGather, "all_gather"},
    {Collective::AllToAll, "all_to_all"},
    {Collective::Broadcast, "broadcast"},
    {Collective::Barrier, "barrier"},
}};

[[noreturn]] void fail_size(std::string_view text) {
  fail(ErrorKind::InvalidArgument,
       "--sizes: '{}' is not a size; write sizes from 1 to 16G, such as 4,64K,1M, or a range such as 4..64M",
       text);
}

// Returns the power of 1024 for "", "B", "K", "KB", "KiB", "M", ..., or nullopt.
std::optional<int64_t> unit_of(std::string unit) {
  for (char& letter : unit) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  if (unit.empty() || unit == "B") return 1;
  const size_t power = std::string_view("KMG").find(unit.front());
  const std::string rest = unit.substr(1);
  if (power == std::string::npos || (!rest.empty() && rest != "B" && rest != "IB")) return std::nullopt;
  return int64_t{1} << (10 * (power + 1));
}

int64_t parse_size(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = parse_int(text.substr(0, digits));
  const auto unit = unit_of(std::string(text.substr(digits)));
  if (!number || !unit || *number < 1 || *number > kLargest / *unit) fail_size(text);
  return *number * *unit;
}

}  // namespace

double round_to(double value, double digits) {
  return std::isfinite(value) ? std::round(value * digits) / digits : 0;
}

std::string_view name_of(Collective operation) {
  for (const Known& known : kKnown) {
    if (known.operation == operation) return known.name;
  }
  return "unknown";
}

const std::vector<Collective>& all_operations() {
  static const std::vector<Collective> kAll = [] {
    std::vector<Collective> all;
    for (const Known& known : kKnown) all.push_back(known.operation);
    return all;
  }();
  return kAll;
}

std::vector<Collective> parse_operations(std::string_view text) {
  if (text == "all") return all_operations();
  std::vector<std::string> names = {"all"};
  for (const Known& known : kKnown) names.emplace_back(known.name);
  std::vector<Collective> operations;
  for (const std::string& name : split(text, ',')) {
    const auto known =
        std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& each) { return each.name == name; });
    if (known == kKnown.end()) {
      fail(ErrorKind::InvalidArgument, "--operation: '{}' is not one of {}{}", name, fmt::join(names, ", "),
           did_you_mean(name, names));
    }
    operations.push_back(known->operation);
  }
  return operations;
}

std::vector<int64_t> parse_sizes(std::string_view text) {
  std::vector<int64_t> sizes;
  for (const std::string& piece : split(text, ',')) {
    const size_t dots = piece.find("..");
    if (dots == std::string::npos) {
      sizes.push_back(parse_size(piece));
      continue;
    }
    const int64_t first = parse_size(std::string_view(piece).substr(0, dots));
    const int64_t last = parse_size(std::string_view(piece).substr(dots + 2));
    if (first > last) fail_size(piece);
    for (int64_t size = first; size <= last; size *= kStep) sizes.push_back(size);
    if (sizes.back() != last) sizes.push_back(last);
  }
  return sizes;
}

std::string size_text(int64_t bytes) {
  std::string text = human_bytes(static_cast<uint64_t>(bytes));
  if (const size_t at = text.find(".0 "); at != std::string::npos) text.erase(at, 2);
  return text;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const double at = std::clamp(std::ceil(share * count) - 1, 0.0, count - 1);
  return values[static_cast<size_t>(at)];
}

double bus_factor(Collective operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (operation) {
    case Collective::AllReduce:
    case Collective::AllReduceInPlace:
    case Collective::AllReduceAnyOrder:
      return 2 * others;
    case Collective::ReduceScatter:
    case Collective::AllGather:
    case Collective::AllToAll:
      return others;
    case Collective::Broadcast:
      return 1;
    case Collective::Barrier:
      return 0;
  }
  return 0;
}

double algorithm_bandwidth(const Row& row) {
  return row.median > 0 ? static_cast<double>(row.bytes) / row.median : 0;
}

double bus_bandwidth(const Row& row, int ranks) {
  return algorithm_bandwidth(row) * bus_factor(row.operation, ranks);
}

std::string heading() {
  return fmt::format("{:<20} {:>10} {:>11} {:>12} {:>12} {:>9} {:>9}", "operation", "size", "repetitions",
                     "median us", "99 % us", "GB/s", "bus GB/s");
}

std::string line_of(const Row& row, int ranks) {
  const std::string lead = fmt::format("{:<20} {:>10} {:>11} {:>12.1f} {:>12.1f}", name_of(row.operation),
                                       row.bytes > 0 ? size_text(row.bytes) : "-", row.repetitions,
                                       row.median * 1e6, row.p99 * 1e6);
  if (row.bytes == 0) return fmt::format("{} {:>9} {:>9}", lead, "-", "-");
  return fmt::format("{} {:>9.3f} {:>9.3f}", lead, algorithm_bandwidth(row) / 1e9,
                     bus_bandwidth(row, ranks) / 1e9);
}

std::string legend() {
  return "us: microseconds from a common start until the last rank is done: the median and the 99th "
         "percentile of all\n"
         "    repetitions. Each repetition begins after a barrier, whose time is not counted.\n"
         "GB/s: size / median, in 10^9 bytes per second. The size is the size of the whole vector: the input "
         "of reduce_scatter,\n"
         "    the output of all_gather, and the vector of each rank in all other operations.\n"
         "bus GB/s: GB/s times the least part of the vector that each of the n ranks must send: 2(n-1)/n "
         "for all_reduce,\n"
         "    1 for broadcast, otherwise (n-1)/n. It does not depend on n: compare it with the speed of "
         "the link.";
}

Json to_json(const std::vector<Row>& rows, int ranks, std::string_view backend) {
  Json list = Json::array();
  for (const Row& row : rows) {
    list.push_back({{"operation", name_of(row.operation)},
                    {"bytes", row.bytes},
                    {"repetitions", row.repetitions},
                    {"median_us", round_to(row.median * 1e6, 1e3)},
                    {"p99_us", round_to(row.p99 * 1e6, 1e3)},
                    {"gb_per_s", round_to(algorithm_bandwidth(row) / 1e9, 1e6)},
                    {"bus_gb_per_s", round_to(bus_bandwidth(row, ranks) / 1e9, 1e6)}});
  }
  return {{"tutti_version", version()},
          {"ranks", ranks},
          {"comm", backend},
          {"type", "float32"},
          {"rows", std::move(list)}};
}

}  // namespace tutti::bench
