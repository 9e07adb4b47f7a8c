#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// Which ranks are on which host: those of each are a run. A value.
class Placement {
 public:
  // Of every rank, what its host is called. Nothing where the ranks of some host are not a run.
  static std::optional<Placement> of(const std::vector<std::string>& host_of_rank);

  int hosts() const { return static_cast<int>(first_.size()) - 1; }
  int world() const { return first_.back(); }
  // A host has the ranks [first(host), first(host) + size(host)).
  int first(int host) const { return first_[static_cast<size_t>(host)]; }
  int size(int host) const { return first(host + 1) - first(host); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  // Among the ranks of its host.
  int local_rank(int rank) const { return rank - first(host_of(rank)); }
  // Whether there are several hosts, some of them with several ranks.
  bool has_two_levels() const { return hosts() > 1 && hosts() < world(); }

 private:
  Placement() = default;

  std::vector<int> host_of_;
  std::vector<int> first_;  // the world at the end
};

// For those who would rather make use of it themselves that each host's ranks share memory: what they move
// with all_to_all_uneven() of the communicator goes straight over the network.
struct Hosts {
  Placement placement;
  // The ranks of this host, in their order, with SharedVectors. All hosts call the same operations of it in
  // the same order; it fails with the communicator, and the other way round, with one text. What it is split
  // into does not.
  Communicator& inside;
};

}  // namespace tutti::comm
