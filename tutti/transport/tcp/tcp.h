#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/net/credentials.h"
#include "tutti/transport/rendezvous.h"
#include "tutti/transport/transport.h"

namespace tutti::comm {

struct TcpOptions {
  int rank = 0;
  int world = 1;
  std::vector<std::string> who = {};         // by rank, for error messages; empty: "rank 3"
  std::string holder = "rank 0 of the job";  // the rank that holds the board, for error messages
  // Uses the network interface that routes to this host; "" means only this machine. If that is the loopback
  // (as at rank 0, whose own name it often is), uses the one that routes to a rank on another machine.
  std::string peer_host = "";
  // At which a rank other than 0 listens while they connect, if nobody else does; 0: any.
  uint16_t port = 0;
  // Certificates, if the ranks encrypt what they send to each other, and whether it has checksums if not. All
  // ranks have them, or none; each requires from the others a certificate of its authority, for any name,
  // since ranks are found by their numeric addresses. The secret is not used: the board has a key.
  net::Credentials credentials = {};
  // The kind of the failure if a message was changed on its way. PeerLost: the connection counts as lost, for
  // ranks that then connect again.
  ErrorKind if_changed = ErrorKind::DataLoss;
  std::chrono::milliseconds timeout{60000};  // for connecting
};

// Returns a transport over TCP that adds on the way. Every rank calls this with the same board, or a part of
// one, that nothing else uses (with_prefix); it must exist as long as the transport. Waits until all ranks
// are connected. Throws a Timeout that names the missing ranks.
std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Rendezvous> board, const TcpOptions& options);

}  // namespace tutti::comm
