#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/peers/collectives.h"
#include "tutti/comm/communicator.h"

// All-reduces that the ranks of one job measure in turn, so that other load affects all of them equally.
namespace bench {

// A size of the vectors, of float32, and how often it is measured.
struct Size {
  const char* name;
  int64_t elements;
  int iterations;  // between two readings of the clock
  int rounds;
};

struct Turn {
  std::string name;
  std::function<void()> run;
};

using Comms = std::map<std::string, std::shared_ptr<tutti::comm::Communicator>>;
using Peers = std::map<std::string, AllReduce>;

// A backend for connect(): tcp with checksums also within a host.
inline constexpr const char* kTcpWithChecksums = "tcp with checksums";

// Connects the ranks with each of these backends, as in training.
Comms connect(const std::vector<const char*>& backends);

// Returns the peers that this build has. Their ranks meet in a file.
Peers peers_of(const tutti::comm::Communicator& comm, const std::string& file,
               const std::string& address = "127.0.0.1");

Turn ours(const Comms& comms, const char* backend, const torch::Tensor& tensor);
void add_peers(const Peers& peers, torch::Tensor tensor, std::vector<Turn>& turns);

// Returns the median time of each turn on this rank, in microseconds. The first rounds are not counted.
std::vector<double> take_turns(const Size& size, const std::vector<Turn>& turns,
                               tutti::comm::Communicator& comm);

}  // namespace bench
