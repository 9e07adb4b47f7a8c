#include "tutti/comm/hosts.h"

#include <set>

namespace tutti::comm {

std::optional<RankLayout> RankLayout::of(const std::vector<std::string>& host_of_rank) {
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

}  // namespace tutti::comm
