#include "tutti/transport/tcp/flows.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <poll.h>
#include <sched.h>
#include <string_view>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"

namespace tutti::comm::tcp {
namespace {

// Bytes moved by one call of the system: few enough that many of them are still in the cache when they are
// added.
constexpr size_t kAtOnce = size_t{1} << 20;

// Until a thread that waits in poll(2) runs again, a small exchange could be over. So it looks again and
// again for a while before it waits, and lets others have the core in between. This takes a sum of 4 KB among
// two ranks from 52 to 9 us, and one of 1 MB among four to three quarters of its time; larger ones gain
// nothing.
constexpr uint64_t kSmall = uint64_t{4} << 20;  // bytes in both directions
constexpr std::chrono::microseconds kLooksFor{50};

class Looks {
  using Clock = std::chrono::steady_clock;

 public:
  explicit Looks(std::span<const Flow> flows) {
    uint64_t bytes = 0;
    for (const Flow& flow : flows) bytes += flow.size;
    is_small_ = bytes <= kSmall;
  }
  void begin_anew() { end_ = {}; }
  // Returns false if it is time to wait.
  bool again(std::span<Flow> flows) {
    if (!is_small_) return false;
    const auto now = Clock::now();
    if (end_ == Clock::time_point()) end_ = now + kLooksFor;
    if (now >= end_) return false;
    ::sched_yield();
    for (Flow& flow : flows) flow.blocked = false;
    return true;
  }

 private:
  bool is_small_;
  Clock::time_point end_;  // the beginning of time: it has not looked since something moved
};

// Waits until one of the blocked flows can go on.
void await(std::span<Flow> flows, std::chrono::steady_clock::time_point deadline) {
  std::vector<pollfd> ready;
  std::vector<Flow*> waiting;
  for (Flow& flow : flows) {
    if (!flow.blocked || flow.is_done()) continue;
    const bool out = flow.way == Flow::Way::Out;
    ready.push_back({flow.socket->descriptor(), static_cast<short>(out ? POLLOUT : POLLIN), 0});
    waiting.push_back(&flow);
  }
  TUTTI_CHECK(!ready.empty(), "{} flows wait for one another", flows.size());
  if (::poll(ready.data(), ready.size(), poll_time(deadline)) == 0)
    throw Closed(waiting.front()->peer, errno_text(ETIMEDOUT));
  for (size_t i = 0; i < ready.size(); ++i) waiting[i]->blocked = ready[i].revents == 0;
}

}  // namespace

bool move_some(Flow& flow) {
  std::array<Bytes, 8> places;
  std::array<ConstBytes, 8> parts;
  size_t count = 0;
  size_t wanted = 0;
  while (count < places.size() && wanted < kAtOnce && flow.done + wanted < flow.size) {
    const Bytes bytes = flow.at(flow.done + wanted);
    if (bytes.empty()) break;
    places[count] = bytes.first(std::min(bytes.size(), kAtOnce - wanted));
    parts[count] = places[count];
    wanted += places[count++].size();
  }
  if (wanted == 0) return false;
  size_t moved = 0;
  try {
    moved = flow.way == Flow::Way::Out ? flow.socket->send(std::span(parts).first(count))
                                       : flow.socket->receive(std::span(places).first(count));
  } catch (const net::StreamEnd& end) {
    if (end.kind() == ErrorKind::DataLoss) throw Changed(flow.peer, end.what());
    throw Closed(flow.peer, std::string_view(end.what()) == net::kClosed ? "" : end.what());
  }
  // An encrypted send stops after a record.
  flow.blocked = flow.socket->is_encrypted() && flow.way == Flow::Way::Out ? moved == 0 : moved < wanted;
  flow.done += moved;
  return moved > 0;
}

void move_all(std::span<Flow> flows, const std::function<void(const Flow& flow)>& on_moved,
              std::chrono::steady_clock::time_point deadline) {
  Looks looks(flows);
  while (true) {
    bool any = false;
    bool open = false;
    for (Flow& flow : flows) {
      if (flow.is_done()) continue;
      open = true;
      if (flow.blocked || !move_some(flow)) continue;
      any = true;
      on_moved(flow);
    }
    if (!open) return;
    if (any)
      looks.begin_anew();
    else if (!looks.again(flows))
      await(flows, deadline);
  }
}

}  // namespace tutti::comm::tcp
