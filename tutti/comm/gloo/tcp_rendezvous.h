#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/rendezvous.h"

namespace tutti::comm {

enum class Serve {
  Here,       // this process holds the table, at a port of all its addresses
  Elsewhere,  // another does
};

// A table at HOST:PORT that ranks on any machine reach (c10d's TCPStore). It ends with the object of the
// process that serves it; all others then get a PeerLost. One that does not answer is a Timeout. Thread-safe.
//
// Returns when the table is there: a Timeout if it does not come in time, also where somebody listens there
// who says nothing. A port that is taken is Overloaded.
std::shared_ptr<Rendezvous> tcp_rendezvous(const std::string& host, uint16_t port, Serve serve,
                                           std::chrono::milliseconds timeout);

struct FoundRendezvous {
  std::shared_ptr<Rendezvous> table;
  std::string host;
};

// One that another process holds, at the first of these hosts, or names of one host, that answers.
FoundRendezvous find_tcp_rendezvous(const std::vector<std::string>& hosts, uint16_t port,
                                    std::chrono::milliseconds timeout);

struct ServedRendezvous {
  std::shared_ptr<Rendezvous> table;
  uint16_t port = 0;
};

// Serves one at any port that is free.
ServedRendezvous serve_tcp_rendezvous(std::chrono::milliseconds timeout);

}  // namespace tutti::comm
