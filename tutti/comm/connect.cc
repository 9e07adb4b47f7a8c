#include "tutti/comm/connect.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/cluster/address.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/collectives.h"
#include "tutti/comm/failure_board.h"
#include "tutti/comm/gloo/gloo.h"
#include "tutti/comm/gloo/tcp_rendezvous.h"
#include "tutti/comm/hierarchy/hierarchy.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/inproc/inproc.h"
#include "tutti/comm/mpi/mpi.h"
#include "tutti/comm/own_addresses.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/shm/shm.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kFarewell{2000};

// What a worker knows of all of them before they are connected.
struct Meeting {
  std::shared_ptr<Rendezvous> table;
  std::string master_host;
  std::vector<std::string> who;        // "worker/2 on node7"
  std::optional<Placement> placement;  // nothing where the ranks of the hosts are mixed

  bool one_host() const { return placement && placement->hosts() == 1; }
  bool two_levels() const { return placement && placement->has_two_levels(); }
};

milliseconds timeout_of(const Context& context) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::duration<double>(context.flags().timeout));
}

Meeting meet_at_address(const Context& context) {
  const Identity& identity = context.identity();
  const Address address = parse_address(identity.master_address);
  const Serve serve = context.rank() == 0 && !identity.launcher_serves ? Serve::Here : Serve::Elsewhere;
  auto table = tcp_rendezvous(address.host, static_cast<uint16_t>(address.port), serve, timeout_of(context));
  // What an earlier attempt has left there is none of ours.
  if (identity.launcher_serves)
    table = with_prefix(std::move(table), fmt::format("tutti/attempt/{}/", identity.attempt));
  return {std::move(table), address.host, {}, {}};
}

// Rank 0 says through MPI where it listens. A host has several addresses: the others take the first that
// answers.
Meeting meet_through_mpi(const Context& context) {
  mpi_initialise();
  std::shared_ptr<Rendezvous> table;
  std::string text;
  const bool one_host = context.local_world() == context.world();
  if (context.rank() == 0) {
    ServedRendezvous served = serve_tcp_rendezvous(timeout_of(context));
    table = std::move(served.table);
    for (const std::string& host : one_host ? std::vector<std::string>{"127.0.0.1"} : own_addresses())
      text += to_string(Address{host, served.port}) + " ";
  }
  text = mpi_broadcast_text(text, 0);
  std::string refused;
  for (size_t begin = 0, end = 0; (end = text.find(' ', begin)) != std::string::npos; begin = end + 1) {
    const Address address = parse_address(text.substr(begin, end - begin));
    if (table) return {table, address.host, {}, {}};
    try {
      const auto port = static_cast<uint16_t>(address.port);
      return {tcp_rendezvous(address.host, port, Serve::Elsewhere, timeout_of(context) / 4),
              address.host,
              {},
              {}};
    } catch (const Error& error) {
      refused = error.what();
    }
  }
  fail(ErrorKind::Timeout, "rank 0 does not answer at any of its addresses ({}): {}", text, refused);
}

// What the task of a rank is called, as far as anybody knows.
std::string name_of(int rank, const Context& context) {
  const std::vector<Task> workers = workers_of(context.cluster());
  if (static_cast<size_t>(rank) >= workers.size()) return fmt::format("rank {}", rank);
  const Task& task = workers[static_cast<size_t>(rank)];
  const auto& addresses = context.cluster().tasks(task.job);
  const auto address = addresses.find(task.index);  // not there where this one was not told of it
  return address == addresses.end() ? task.short_name()
                                    : fmt::format("{} ({})", task.short_name(), address->second);
}

Meeting go_to_meeting(const Context& context) {
  if (context.identity().master_address.find(':') != std::string::npos) return meet_at_address(context);
  if (context.identity().source == "Open MPI") return meet_through_mpi(context);
  fail(ErrorKind::InvalidArgument,
       "there are {} workers (found through {}), but nothing says where they meet: give --cluster_spec with "
       "every worker's HOST:PORT, or start them with tutti run, Open MPI's mpirun, srun or torchrun",
       context.world(), context.identity().source);
}

void meet_all(const Context& context, Meeting& meeting) {
  BoardOptions options{.rank = context.rank(), .world = context.world()};
  for (int rank = 0; rank < context.world(); ++rank) options.who.push_back(name_of(rank, context));
  const auto words =
      roll_call(*meeting.table, options,
                fmt::format("{} {} on {}", host_identity(), context.task().short_name(), host_name()),
                timeout_of(context));
  std::vector<std::string> hosts;
  for (const std::string& word : words) {
    const size_t space = word.find(' ');
    hosts.push_back(word.substr(0, space));
    meeting.who.push_back(word.substr(space + 1));
  }
  meeting.placement = Placement::of(hosts);
}

// With rank 0 its table ends, if it has one: those that have come should first read there why they cannot go
// on.
void leave(const Context& context, Rendezvous& table) {
  const auto deadline = Clock::now() + kFarewell;
  const auto key = [](int rank) { return fmt::format("left/{}", rank); };
  try {
    table.set(key(context.rank()), "");
    for (int rank = 1; context.rank() == 0 && rank < context.world(); ++rank) {
      if (!table.peek(fmt::format("here/{}", rank))) continue;
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      table.get(key(rank), std::max(left, milliseconds(0)));
    }
  } catch (const Error&) {
    // Then they read it in this one's output.
  }
}

// "shm", "gloo", "mpi", or "shm+gloo" and "shm+mpi" where there is something of both.
std::string backend_for(const Context& context, const Meeting& meeting) {
  const std::string asked = context.flags().comm == "auto" ? "shm+gloo" : context.flags().comm;
  if (asked == "shm" && !meeting.one_host())
    fail(ErrorKind::InvalidArgument,
         "--comm shm, but the workers are on several hosts: use auto, shm+gloo, shm+mpi, gloo or mpi");
  const size_t plus = asked.find('+');
  if (plus == std::string::npos || meeting.two_levels()) return asked;
  return meeting.one_host() ? "shm" : asked.substr(plus + 1);
}

std::unique_ptr<Transport> make_network(const Context& context, const Meeting& meeting,
                                        const std::string& name) {
  const auto table = with_prefix(meeting.table, name + "/");
  const milliseconds timeout = timeout_of(context);
  if (name == "gloo") {
    return gloo_transport(table, {context.rank(), context.world(), meeting.who,
                                  meeting.one_host() ? "" : meeting.master_host, timeout});
  }
  mpi_initialise();
  return mpi_transport(table, {meeting.who, timeout});
}

// Of the ranks of this host.
std::unique_ptr<Transport> make_memory(const Context& context, const Meeting& meeting) {
  const Placement& placement = *meeting.placement;
  const int rank = context.rank();
  const int host = placement.host_of(rank);
  return shm_transport(with_prefix(meeting.table, fmt::format("shm/{}/", host)),
                       {placement.local_rank(rank), placement.size(host),
                        meeting.who[static_cast<size_t>(rank)], timeout_of(context)});
}

void require_all(const Transport& transport, const Context& context) {
  if (transport.world() == context.world()) return;
  fail(ErrorKind::InvalidArgument,
       "--comm {}: there are {} workers (found through {}), but {} of them under it; start them with mpirun",
       transport.name(), context.world(), context.identity().source, transport.world());
}

std::unique_ptr<Transport> make_transport(const Context& context, const Meeting& meeting) {
  const std::string backend = backend_for(context, meeting);
  if (backend == "shm") return make_memory(context, meeting);
  const size_t plus = backend.find('+');
  auto network =
      make_network(context, meeting, plus == std::string::npos ? backend : backend.substr(plus + 1));
  require_all(*network, context);
  if (plus == std::string::npos) return network;
  return hierarchy_transport(std::move(network), make_memory(context, meeting), *meeting.placement,
                             timeout_of(context));
}

std::string where(const Meeting& meeting) {
  if (meeting.one_host()) return "on one host";
  return meeting.placement ? "on several hosts" : "on several hosts, with the ranks of each apart";
}

}  // namespace

std::shared_ptr<Communicator> connect(const Context& context) {
  const milliseconds timeout = timeout_of(context);
  if (context.world() == 1)
    return std::make_shared<Collectives>(std::move(inproc_transports(1, timeout).front()), timeout,
                                         context.timeline());
  Meeting meeting = go_to_meeting(context);
  std::unique_ptr<Transport> transport;
  try {
    meet_all(context, meeting);
    transport = make_transport(context, meeting);
  } catch (const Error&) {
    leave(context, *meeting.table);
    throw;
  }
  auto comm = std::make_shared<Collectives>(std::move(transport), timeout, context.timeline());
  if (context.is_chief()) {
    context.log().info("{} workers connected over {} ({})", comm->world(), comm->name(), where(meeting));
  }
  return comm;
}

}  // namespace tutti::comm
