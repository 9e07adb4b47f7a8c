#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/mistakes.h"
#include "tests/simulation/process.h"
#include "tests/simulation/state.h"
#include "tutti/base/error.h"

namespace tutti::simulation {

// One rank's contribution to an operation in which all ranks take part.
struct Part {
  std::vector<LaneTerm> terms = {};
  bool change = false;
  bool leaves = false;
  int64_t number = 0;
  State state = {};
};
using Parts = std::vector<std::shared_ptr<const Part>>;  // by rank

struct NetworkDelays {
  Time most = 500;         // of a message
  double slow_chance = 0;  // of a message that takes up to `slowest`
  Time slowest = 0;
  double lost_with_sender = 0.5;  // of a message under way whose sender is killed
};

// The transports of one job. One operation follows the other, in each of which every rank gets the parts of
// all. As the production transports do, all ranks fail with the same error once one of them is lost or late;
// a rank that had all parts before has completed the operation all the same.
class Network {
 public:
  Network(World& world, const NetworkDelays& delays, Mistake mistake)
      : world_(world), delays_(delays), mistake_(mistake) {}

  // The process takes part in the transport of this name, and can be reached.
  void enter(Process& process, const std::string& name, int rank, int world);
  // It closes its transport.
  void leave(const Process& process);
  // Called in the process. Throws PeerLost and Timeout.
  Parts exchange(Process& process, const std::string& what, Part part, Time timeout);
  // The kernel closes the connections of a process that has ended. If it was killed, some of what it has sent
  // is lost.
  void ended(const Process& process, bool killed) { leave(process, killed); }

 private:
  struct Operation {
    std::string what;
    Parts parts;
    std::vector<int64_t> waits;  // by rank; 0: does not wait
    std::vector<char> done;
    std::vector<char> lost;  // a part that this rank misses is lost
    int arrived = 0;
  };
  struct Room {
    std::vector<Process*> members;  // by rank; null: not there yet, or gone
    std::vector<int64_t> next;      // the number of each rank's next operation
    std::deque<Operation> operations;
    std::vector<std::optional<Error>> broken;
    std::vector<std::optional<Error>> left;  // by rank; not empty: it has left, as the others know
  };
  struct Place {
    Room* room = nullptr;
    int rank = 0;
  };
  Operation& operation(Room& room, int64_t number, const std::string& what);
  void deliver(Room& room, int64_t number, int rank);
  void time_out(Room& room, Operation& op, size_t rank, int64_t wait);
  void fail_rank(Room& room, int rank, const Error& error);
  void give_up(Room& room, int rank, const Error& error);
  static bool misses(Room& room, size_t rank, size_t other);
  void leave(const Process& process, bool dies);
  Time delay();

  World& world_;
  const NetworkDelays delays_;
  const Mistake mistake_;
  std::map<std::string, Room> rooms_;  // by name
  std::map<const Process*, Place> places_;
};

}  // namespace tutti::simulation
