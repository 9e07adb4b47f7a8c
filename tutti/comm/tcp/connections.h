#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/comm/failure_board.h"
#include "tutti/comm/rendezvous.h"

namespace tutti::comm::tcp {

// Two connections to each other rank, by rank: non-blocking sockets. None to the own rank.
struct Connections {
  std::vector<FileDescriptor> exchanges;
  std::vector<FileDescriptor> messages;
};

// Connects this rank with all others, which must call this with the same table, that nothing else uses. A
// process that cannot read the table cannot connect. Waits until all ranks are connected. `board` are the
// ranks and their names; `peer_host` is explained in TcpOptions.
Connections connect_ranks(const std::shared_ptr<Rendezvous>& table, const BoardOptions& board,
                          const std::string& peer_host, uint16_t port, std::chrono::milliseconds timeout);

}  // namespace tutti::comm::tcp
