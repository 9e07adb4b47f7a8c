#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/members_keeper.h"
#include "tools/launch/outcome.h"
#include "tutti/comm/rendezvous.h"

namespace tutti {

// The keeper of the list of members at its board: reads what the workers call, and publishes what the keeper
// decides. Has no clock and knows no processes. Not thread-safe.
class KeeperBoard {
 public:
  // Publishes the first epoch. The keeper must outlive this.
  KeeperBoard(MembersKeeper& keeper, std::shared_ptr<comm::Rendezvous> board);

  // Reads the calls, decides and publishes.
  void look(MembersKeeper::Time now);
  // Workers that have come back and have become members since the last call.
  std::vector<comm::Member> take_joined();

 private:
  void read_calls(MembersKeeper::Time now);
  void publish();

  MembersKeeper& keeper_;
  const std::shared_ptr<comm::Rendezvous> board_;
  std::map<std::string, std::string> read_;  // the calls that the keeper knows, by key
  size_t published_ = 0;                     // epochs
  std::optional<uint64_t> published_change_;
  std::vector<comm::Member> joined_;
};

// Returns true if the others may go on although the process of this worker has ended like this: it was
// killed, has left because of a signal, or only says that it has lost the others, which had gone on without
// it.
bool may_lose(const MembersKeeper& keeper, int worker, const Outcome& outcome);

}  // namespace tutti
