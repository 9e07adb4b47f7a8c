#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/rendezvous.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

struct GlooOptions {
  int rank = 0;
  int world = 1;
  std::vector<std::string> who = {};  // by rank, for error messages; empty: "rank 3"
  // The network interface is the one towards this host; "" is this machine alone. Where that leads a rank to
  // itself (as at rank 0, whose own name it often is), it takes the one towards a rank on another machine.
  std::string peer_host = "";
  std::chrono::milliseconds timeout{60000};  // for connecting
};

// Whether this build can do it.
bool gloo_built();

// TCP, over the Gloo inside LibTorch. Every rank calls it with a table of its own making, or one part of a
// table that serves nothing else (with_prefix); it has to last as long as the transport. Returns when all
// ranks are connected; whoever has not come is named in the Timeout. Without Gloo's headers at build time:
// Unimplemented.
std::unique_ptr<Transport> gloo_transport(std::shared_ptr<Rendezvous> table, const GlooOptions& options);

}  // namespace tutti::comm
