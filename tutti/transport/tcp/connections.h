#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/net/credentials.h"
#include "tutti/net/socket.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/rendezvous.h"

namespace tutti::comm::tcp {

// Two connections to each other rank, by rank. None to the own rank.
struct Connections {
  std::vector<net::Socket> exchanges;
  std::vector<net::Socket> messages;
};

// Connects this rank with all others, which must call this with the same board, that nothing else uses. A
// process that cannot read the board cannot connect. Waits until all ranks are connected. `self` are the
// ranks and their names; `peer_host` and `credentials` are explained in TcpOptions.
Connections connect_ranks(const std::shared_ptr<Rendezvous>& board, const FailuresOptions& self,
                          const std::string& peer_host, uint16_t port, const net::Credentials& credentials,
                          std::chrono::milliseconds timeout);

}  // namespace tutti::comm::tcp
