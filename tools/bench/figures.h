#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"

// What `tutti bench collectives` measures, and how it is told.
namespace tutti::bench {

enum class Operation {
  AllReduce,          // of a vector in any memory
  AllReduceInPlace,   // of one that all ranks share
  AllReduceAnyOrder,  // in whatever order the backend adds
  ReduceScatter,
  AllGather,
  AllToAll,
  Broadcast,
  Barrier,
};

std::string_view name_of(Operation operation);
const std::vector<Operation>& all_operations();

// "all", or names with commas between them.
std::vector<Operation> parse_operations(std::string_view text);

// Bytes: "4,64K,1M", or "4..64M" for every fourth power of two from the one to the other. K, M and G are
// powers of 1024, with or without B or iB behind them. At least 1 B, at most 16 GiB.
std::vector<int64_t> parse_sizes(std::string_view text);

// "1 KiB", "1.5 MiB".
std::string size_text(int64_t bytes);

// What came of one operation at one size.
struct Row {
  Operation operation = Operation::Barrier;
  int64_t bytes = 0;  // of the whole vector; a barrier has none
  int64_t repetitions = 0;
  double median = 0;  // seconds
  double p99 = 0;
};

// To so many parts of one; what is no number is 0.
double round_to(double value, double digits);

// The value that so large a share of the values does not exceed: 0.5 is the median. At least one value.
double quantile(std::vector<double> values, double share);

// How often a rank sends, and receives, the whole size at the very least: the bus bandwidth is so many times
// size / time (as in NVIDIA's nccl-tests).
double bus_factor(Operation operation, int ranks);
// Bytes a second.
double algorithm_bandwidth(const Row& row);
double bus_bandwidth(const Row& row, int ranks);

// Lines of one table, without the newline.
std::string heading();
std::string line_of(const Row& row, int ranks);
// What its columns are.
std::string legend();

Json to_json(const std::vector<Row>& rows, int ranks, std::string_view backend);

}  // namespace tutti::bench
