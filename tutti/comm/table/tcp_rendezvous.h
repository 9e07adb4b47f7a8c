#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/rendezvous.h"

namespace tutti::comm {

struct ServeOptions {
  // The names or numeric addresses at which others can connect. Those that do not belong to this machine are
  // skipped. Empty: all addresses of this machine.
  std::vector<std::string> hosts = {"127.0.0.1"};
  uint16_t port = 0;              // 0: any free port
  std::string key = "";           // only clients that know it are admitted
  std::string purpose = "ranks";  // of those who use it; others do not find it
  // Called from another thread with a line for the log when a client is refused.
  std::function<void(const std::string& text)> report = {};
  // How long the table's destructor waits for its clients to leave.
  std::chrono::milliseconds farewell{2000};
};

// A table as used by the process that serves it.
class ServedTable : public Rendezvous {
 public:
  // Admits no further clients. Those who are connected stay. The port is free afterwards.
  virtual void stop_listening() = 0;
};

struct ServedRendezvous {
  std::shared_ptr<ServedTable> table;
  uint16_t port = 0;
};

// Serves a table that ranks on any machine can reach, until the returned table is destroyed. Throws
// Overloaded if the port is taken, and InvalidArgument if none of the hosts is this machine. Thread-safe.
ServedRendezvous serve_tcp_rendezvous(const ServeOptions& options);

struct FindOptions {
  std::vector<std::string> hosts;  // names or numeric addresses
  uint16_t port = 0;
  std::string key = "";
  std::string purpose = "ranks";
  // One of the addresses may lead to another machine, as those of containers do, so that a table there is not
  // an error as long as another one may answer.
  bool several_machines = false;
  std::chrono::milliseconds timeout{60000};
};

struct FoundRendezvous {
  std::shared_ptr<Rendezvous> table;
  std::string host;
};

// The results of one attempt, for an error message if there is no table.
struct FindAttempt {
  std::optional<FoundRendezvous> found;
  std::string nobody = "";    // why there was no connection
  std::string somebody = "";  // the host where a process listens that does not answer like such a table
  std::string refused = "";   // the host with a table that has another key
};

// Tries all hosts once, each of their addresses for `timeout`, but at most three seconds. Throws an error if
// the system has no sockets left. Thread-safe.
FindAttempt try_tcp_rendezvous(const FindOptions& options);

// Waits until one of these hosts answers, and returns the table that it serves. Throws a Timeout that says
// whether no process listens there, or one that is not a table, and InvalidArgument if only tables with
// another key answer. Calls of a table that has ended throw PeerLost. Thread-safe.
FoundRendezvous find_tcp_rendezvous(const FindOptions& options);

}  // namespace tutti::comm
