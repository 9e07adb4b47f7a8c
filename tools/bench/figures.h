#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"

// The figures that `tutti bench collectives` measures, and their output.
namespace tutti::bench {

enum class Collective {
  AllReduce,          // a vector in any memory
  AllReduceInPlace,   // a vector that all ranks share
  AllReduceAnyOrder,  // summed in the order that the backend chooses
  ReduceScatter,
  AllGather,
  AllToAll,
  Broadcast,
  Barrier,
};

std::string_view name_of(Collective operation);
const std::vector<Collective>& all_operations();

// Parses "all", or names separated by commas.
std::vector<Collective> parse_operations(std::string_view text);

// Parses sizes in bytes: "4,64K,1M", or "4..64M" for the sizes from 4 on, each 4 times the previous one, and
// 64M. K, M and G are powers of 1024, with or without B or iB. At least 1 B, at most 16 GiB.
std::vector<int64_t> parse_sizes(std::string_view text);

// Returns a text such as "1 KiB" or "1.5 MiB".
std::string size_text(int64_t bytes);

// The result of one operation at one size.
struct Row {
  Collective operation = Collective::Barrier;
  int64_t bytes = 0;  // of the whole vector; a barrier has none
  int64_t repetitions = 0;
  double median = 0;  // seconds
  double p99 = 0;
};

// Rounds to multiples of 1 / `digits`; NaN and infinity become 0.
double round_to(double value, double digits);

// Returns the smallest value not exceeded by this share of the values: 0.5 is the median. Needs a value.
double quantile(std::vector<double> values, double share);

// Returns the factor for the bus bandwidth, factor * size / time: the minimum number of times that a rank
// sends and receives the whole size (as in NVIDIA's nccl-tests).
double bus_factor(Collective operation, int ranks);
// In bytes per second.
double algorithm_bandwidth(const Row& row);
double bus_bandwidth(const Row& row, int ranks);

// Return lines of a table, without the newline.
std::string heading();
std::string line_of(const Row& row, int ranks);
// Explains the columns.
std::string legend();

Json to_json(const std::vector<Row>& rows, int ranks, std::string_view backend);

}  // namespace tutti::bench
