#include "tests/simulation/network.h"

#include <utility>

namespace tutti::simulation {

Time Network::delay() {
  Random& random = world_.random();
  if (delays_.slow_chance > 0 && random.chance(delays_.slow_chance)) return random.draw(0, delays_.slowest);
  return random.draw(20, delays_.most);
}

void Network::enter(Process& process, const std::string& name, int rank, int world) {
  Room& room = rooms_[name];
  const auto size = static_cast<size_t>(world);
  room.members.resize(size);
  room.next.resize(size);
  room.broken.resize(size);
  room.left.resize(size);
  const auto index = static_cast<size_t>(rank);
  if (room.members[index] != nullptr)
    world_.violate("{} takes rank {} of {}, which {} has", process.name(), rank, name,
                   room.members[index]->name());
  if (mistake_ == Mistake::ReusedRoom) room.broken[index].reset();
  room.left[index].reset();
  room.members[index] = &process;
  places_[&process] = {&room, rank};
}

void Network::leave(const Process& process) { leave(process, false); }

Network::Operation& Network::operation(Room& room, int64_t number, const std::string& what) {
  while (static_cast<int64_t>(room.operations.size()) <= number) {
    const size_t world = room.members.size();
    room.operations.push_back({what, Parts(world), std::vector<int64_t>(world), std::vector<char>(world),
                               std::vector<char>(world)});
  }
  return room.operations[static_cast<size_t>(number)];
}

Parts Network::exchange(Process& process, const std::string& what, Part part, Time timeout) {
  const auto own = std::make_shared<const Part>(std::move(part));
  const auto found = places_.find(&process);
  if (found == places_.end()) {
    world_.violate("{} takes part in '{}' without a transport", process.name(), what);
    process.kill();
  }
  Room& room = *found->second.room;
  const auto rank = static_cast<size_t>(found->second.rank);
  if (room.broken[rank]) throw Error(*room.broken[rank]);
  const int64_t number = room.next[rank]++;
  Operation& op = operation(room, number, what);
  if (op.what != what) {
    world_.violate("{} takes part in '{}' while others are at '{}'", process.name(), what, op.what);
    process.kill();
  }
  if (op.parts[rank] == nullptr) ++op.arrived;
  op.parts[rank] = own;
  op.waits[rank] = process.begin_wait();
  if (op.arrived == static_cast<int>(op.parts.size())) {
    for (int r = 0; r < op.arrived; ++r)
      world_.after(delay(), [this, &room, number, r] { deliver(room, number, r); });
  }
  for (size_t other = 0; other < op.parts.size(); ++other) {
    if (room.left[other] && op.parts[other] == nullptr)
      world_.after(delay(), [this, &room, rank, error = *room.left[other]] {
        give_up(room, static_cast<int>(rank), error);
      });
  }
  if (mistake_ != Mistake::NobodyIsTold)
    world_.after(timeout,
                 [this, &room, &op, rank, wait = op.waits[rank]] { time_out(room, op, rank, wait); });
  while (!op.done[rank] && !room.broken[rank]) process.wait();
  op.waits[rank] = 0;
  if (!op.done[rank]) throw Error(*room.broken[rank]);
  return op.parts;
}

void Network::deliver(Room& room, int64_t number, int rank) {
  Operation& op = room.operations[static_cast<size_t>(number)];
  const auto index = static_cast<size_t>(rank);
  if (op.waits[index] == 0 || op.lost[index] || room.broken[index] || room.members[index] == nullptr) return;
  op.done[index] = 1;
  room.members[index]->wake(op.waits[index]);
}

// A stopped process notices when it goes on.
void Network::time_out(Room& room, Operation& op, size_t rank, int64_t wait) {
  constexpr Time kAgain = 10 * kMillisecond;
  if (op.waits[rank] != wait || op.done[rank] || room.members[rank] == nullptr) return;
  const Process& process = *room.members[rank];
  if (process.stopped())
    return world_.after(kAgain, [this, &room, &op, rank, wait] { time_out(room, op, rank, wait); });
  give_up(room, static_cast<int>(rank),
          {ErrorKind::Timeout, fmt::format("{} waits for '{}'", process.name(), op.what)});
}

// This rank knows from here on that the transport is broken. The first reason counts.
void Network::fail_rank(Room& room, int rank, const Error& error) {
  const auto index = static_cast<size_t>(rank);
  if (room.broken[index] || room.members[index] == nullptr) return;
  room.broken[index] = error;
  if (room.next[index] == 0) return;
  Operation& op = room.operations[static_cast<size_t>(room.next[index] - 1)];
  if (op.waits[index] != 0) room.members[index]->wake(op.waits[index]);
}

// The rank fails, and tells the others unless it is stopped.
void Network::give_up(Room& room, int rank, const Error& error) {
  const Process* const process = room.members[static_cast<size_t>(rank)];
  if (room.broken[static_cast<size_t>(rank)] || process == nullptr) return;
  fail_rank(room, rank, error);
  if (process->stopped()) return;
  for (int other = 0; other < static_cast<int>(room.members.size()); ++other) {
    if (other != rank) world_.after(delay(), [this, &room, other, error] { fail_rank(room, other, error); });
  }
}

// A rank that has all that another one had to send does not mind that it has left, before its next operation.
bool Network::misses(Room& room, size_t rank, size_t other) {
  if (room.next[rank] == 0) return true;
  const Operation& op = room.operations[static_cast<size_t>(room.next[rank] - 1)];
  return op.waits[rank] == 0 || op.parts[other] == nullptr || op.lost[rank] != 0;
}

// Messages that a process has sent before its end arrive before the end of the connection, or are lost.
void Network::leave(const Process& process, bool dies) {
  const auto found = places_.find(&process);
  if (found == places_.end()) return;
  Room* const room = found->second.room;
  const auto own = static_cast<size_t>(found->second.rank);
  places_.erase(found);
  if (room->members[own] == &process) room->members[own] = nullptr;
  if (mistake_ == Mistake::NobodyIsTold) return;
  for (size_t other = 0; other < room->members.size(); ++other) {
    if (room->members[other] == nullptr) continue;
    for (auto op = room->operations.rbegin(); op != room->operations.rend(); ++op) {
      if (op->parts[own] == nullptr) continue;
      if (dies && !op->done[other] && world_.random().chance(delays_.lost_with_sender)) op->lost[other] = 1;
      break;
    }
    // Later than what it has sent, unless that is slow.
    const Error error(ErrorKind::PeerLost, fmt::format("{} has left", process.name()));
    world_.after(delays_.most + delay(), [this, room, other, error, own] {
      if (mistake_ == Mistake::EmptyIsAnAnswer && room->members[other] != nullptr && room->next[other] > 0) {
        Operation& op = operation(*room, room->next[other] - 1, "");
        for (auto& part : op.parts) {
          if (part == nullptr) part = std::make_shared<const Part>();
        }
        op.done[other] = 1;
        if (op.waits[other] != 0) room->members[other]->wake(op.waits[other]);
        return;
      }
      room->left[own] = error;
      if (room->members[other] != nullptr && misses(*room, other, own))
        give_up(*room, static_cast<int>(other), error);
    });
  }
}

}  // namespace tutti::simulation
