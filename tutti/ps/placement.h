#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/params/parameters.h"

namespace tutti::ps {

// How parameters are dealt out to servers.
struct PlacementRule {
  enum class Kind {
    RoundRobin,  // in the order in which the module created them
    Greedy,      // each to the server that has the fewest bytes so far
    Split,       // as Greedy, after those above so many bytes were cut along their first dimension
  };
  Kind kind = Kind::RoundRobin;
  int64_t bytes = 0;  // of Split: the most that a piece has
};

// "round-robin", "greedy", or "split:256K". Anything else is an InvalidArgument.
PlacementRule parse_placement(std::string_view text);

// A stretch of one parameter, which one server has. A parameter that is not cut is one.
struct Piece {
  size_t parameter;  // of Parameters::trained()
  int64_t begin;     // elements of it, as they lie in memory
  int64_t end;
  int server;
};

// The server that a parameter of Parameters::trained() is pinned to, if it is (pinned_servers).
using PinnedServers = std::vector<std::optional<int>>;

// Which server has what: a function of the model, its pins and the rule alone, so that every worker finds the
// same. A parameter that is pinned is there as a whole; the rule deals out the others.
class Placement {
 public:
  Placement(const Parameters& parameters, int servers, const PlacementRule& rule = {},
            const PinnedServers& pinned = {});

  int servers() const { return servers_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  // What a server has of each block of the parameters: stretches in the order of memory.
  struct Part {
    size_t block;
    int64_t begin;  // elements of the block's vector
    int64_t end;
  };
  std::vector<Part> parts_of(int server) const;

  // A line each: "conv1.weight: (Parameter float32[32,1,5,5]): /job:ps/replica:0/task:0/device:CPU:0". Of one
  // that is cut a line a piece, with its rows.
  std::vector<std::string> lines(const Parameters& parameters, std::string_view job) const;

 private:
  void add(const Parameters::View& view, const Piece& piece);

  int servers_;
  std::vector<Piece> pieces_;
  std::vector<Part> parts_;  // beside the pieces
};

}  // namespace tutti::ps
