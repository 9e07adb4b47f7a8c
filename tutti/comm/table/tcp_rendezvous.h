#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/rendezvous.h"

namespace tutti::comm {

struct ServeOptions {
  // The names or numeric addresses at which others can connect. Those that do not belong to this machine are
  // skipped. Empty: all addresses of this machine.
  std::vector<std::string> hosts = {"127.0.0.1"};
  uint16_t port = 0;     // 0: any free port
  std::string key = "";  // only clients that know it are admitted
  // Called from another thread with a line for the log when a client that has another key is refused.
  std::function<void(const std::string& text)> report = {};
  // How long the table's destructor waits for its clients to leave.
  std::chrono::milliseconds farewell{2000};
};

struct ServedRendezvous {
  std::shared_ptr<Rendezvous> table;
  uint16_t port = 0;
};

// Serves a table that ranks on any machine can reach, until the returned table is destroyed. Throws
// Overloaded if the port is taken, and InvalidArgument if none of the hosts is this machine. Thread-safe.
ServedRendezvous serve_tcp_rendezvous(const ServeOptions& options);

struct FindOptions {
  std::vector<std::string> hosts;  // names or numeric addresses
  uint16_t port = 0;
  std::string key = "";
  // One of the addresses may lead to another machine, as those of containers do, so that a table there is not
  // an error as long as another one may answer.
  bool several_machines = false;
  std::chrono::milliseconds timeout{60000};
};

struct FoundRendezvous {
  std::shared_ptr<Rendezvous> table;
  std::string host;
};

// Waits until one of these hosts answers, and returns the table that it serves. Throws a Timeout that says
// whether no process listens there, or one that is not a table, and InvalidArgument if only tables with
// another key answer. Calls of a table that has ended throw PeerLost. Thread-safe.
FoundRendezvous find_tcp_rendezvous(const FindOptions& options);

}  // namespace tutti::comm
