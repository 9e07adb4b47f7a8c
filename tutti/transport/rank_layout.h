#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tutti::comm {

// Which ranks are on which host. The ranks of each host are contiguous. A value type.
class RankLayout {
 public:
  // Takes the name of each rank's host. Returns nullopt if the ranks of some host are not contiguous.
  static std::optional<RankLayout> make(const std::vector<std::string>& host_of_rank) {
    RankLayout layout;
    std::set<std::string> seen;
    for (size_t rank = 0; rank < host_of_rank.size(); ++rank) {
      const std::string& host = host_of_rank[rank];
      if (rank == 0 || host != host_of_rank[rank - 1]) {
        if (!seen.insert(host).second) return std::nullopt;
        layout.first_.push_back(static_cast<int>(rank));
      }
      layout.host_of_.push_back(static_cast<int>(layout.first_.size()) - 1);
    }
    layout.first_.push_back(static_cast<int>(host_of_rank.size()));
    return layout;
  }

  int hosts() const { return static_cast<int>(first_.size()) - 1; }
  int world() const { return first_.back(); }
  // The ranks of a host are [first(host), first(host) + size(host)).
  int first(int host) const { return first_[static_cast<size_t>(host)]; }
  int size(int host) const { return first(host + 1) - first(host); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  // Returns the rank's index among the ranks of its host.
  int local_rank(int rank) const { return rank - first(host_of(rank)); }
  // Returns true if there are several hosts, and some of them have several ranks.
  bool has_two_levels() const { return hosts() > 1 && hosts() < world(); }

 private:
  RankLayout() = default;

  std::vector<int> host_of_;
  std::vector<int> first_;  // by host; the last entry is the world
};

}  // namespace tutti::comm
