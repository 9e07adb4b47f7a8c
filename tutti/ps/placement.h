#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"

namespace tutti::ps {

// The rule by which parameters are distributed over the servers.
struct PlacementRule {
  enum class Kind {
    RoundRobin,  // in the order of creation in the module
    Greedy,      // each to the server with the fewest bytes so far
    Split,       // like Greedy, after parameters above `bytes` were cut along dimension 0
  };
  Kind kind = Kind::RoundRobin;
  int64_t bytes = 0;  // Split only: the maximum size of a range
};

// Parses "round-robin", "greedy" or "split:256K". Throws InvalidArgument for anything else.
PlacementRule parse_placement(std::string_view text);

// A contiguous range of one parameter on one server. A parameter that is not cut is a single range.
struct ParameterRange {
  size_t parameter;  // index in Parameters::trained()
  int64_t begin;     // element offsets, in memory order
  int64_t end;
  int server;
};

// A contiguous range of one block of the parameters.
struct BlockRange {
  size_t block;
  int64_t begin;  // element offsets in the block's vector
  int64_t end;
  torch::ScalarType type;
};

// For each parameter of Parameters::trained(): the server that it is pinned to, or nullopt (pinned_servers).
using PinnedServers = std::vector<std::optional<int>>;

// The assignment of parameters to servers. It depends only on the model, the pins and the rule, so that every
// worker computes the same one. Pinned parameters are not cut; the rule distributes the others.
class Placement {
 public:
  Placement(const Parameters& parameters, int servers, const PlacementRule& rule = {},
            const PinnedServers& pinned = {});

  int servers() const { return servers_; }
  const std::vector<ParameterRange>& parameter_ranges() const { return parameter_ranges_; }
  // Returns the ranges that a server holds, in memory order.
  std::vector<BlockRange> block_ranges_of(int server) const;

  // Returns one line per range: "conv1.weight: (Parameter float32[32,1,5,5]):
  // /job:ps/replica:0/task:0/device:CPU:0". The lines of a parameter that is cut also name its rows.
  std::vector<std::string> lines(const Parameters& parameters, std::string_view job) const;

 private:
  void add(const Parameters::View& view, const ParameterRange& range);

  int servers_;
  std::vector<ParameterRange> parameter_ranges_;
  std::vector<BlockRange> block_ranges_;  // [i] is the range of parameter_ranges_[i]
};

// One server's part of the parameters and the optimiser that updates it. Not thread-safe.
class Shard {
 public:
  // Values are zero. Gradients are uninitialised, so that unused memory is never committed.
  // `ranges` are where the optimiser's groups lie in all parameters.
  Shard(const std::vector<BlockRange>& block_ranges, const OptimizerOptions& optimizer,
        std::vector<GroupRange> ranges = {});

  // Returns the sections that this server holds, one for each range, in their order.
  std::span<const Section> sections() const { return sections_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  int64_t bytes() const;

 private:
  const std::vector<Section> sections_;
  Optimizer optimizer_;
};

}  // namespace tutti::ps
