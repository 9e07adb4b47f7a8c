#include "tutti/comm/connect.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/random_key.h"
#include "tutti/base/sha256.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/collectives.h"
#include "tutti/comm/failure_board.h"
#include "tutti/comm/gloo/gloo.h"
#include "tutti/comm/gloo/tcp_rendezvous.h"
#include "tutti/comm/hierarchy/hierarchy.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/inproc/inproc.h"
#include "tutti/comm/mpi/mpi.h"
#include "tutti/comm/nccl/choice.h"
#include "tutti/comm/nccl/nccl.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/shm/shm.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFarewell{2000};

// What a worker knows of all of them before they are connected.
struct Meeting {
  std::shared_ptr<Rendezvous> table;
  std::string master_host;
  std::vector<std::string> who = {};        // "worker/2 on node7"
  std::optional<Placement> placement = {};  // nothing where the ranks of the hosts are mixed
  std::string no_nccl = {};                 // why they cannot use it; "" where they can

  bool one_host() const { return placement && placement->hosts() == 1; }
  bool two_levels() const { return placement && placement->has_two_levels(); }
};

milliseconds timeout_of(const Context& context) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::duration<double>(context.flags().timeout));
}

std::string hash_of(const std::string& text) {
  Sha256 hash;
  hash.update(as_bytes(text));
  return hash.hex();
}

// A table may come into the hands of another job that was told of the same address. What is this job's lies
// under keys that the other does not know; where rank 0 holds the table it says whose it is, in a word that
// does not give them away.
std::shared_ptr<Rendezvous> table_of_job(const Context& context, const std::string& address,
                                         std::shared_ptr<Rendezvous> table) {
  constexpr const char* kJob = "job";
  const std::string key = hash_of(context.identity().launch + "\n" + context.flags().secret);
  const std::string word = hash_of(key);
  if (context.rank() == 0) table->set(kJob, word);
  if (table->get(kJob, timeout_of(context)) != word)
    fail(ErrorKind::InvalidArgument,
         "at {} another job meets: rank 0 there is of another launch, or was given another --secret. Wait "
         "until that job has ended, or give this one other addresses",
         address);
  return with_prefix(std::move(table), key + "/");
}

Meeting meet_at_address(const Context& context) {
  const Identity& identity = context.identity();
  const Address address = parse_address(identity.master_address);
  const Serve serve = context.rank() == 0 && !identity.launcher_serves ? Serve::Here : Serve::Elsewhere;
  auto table = tcp_rendezvous(address.host, static_cast<uint16_t>(address.port), serve, timeout_of(context));
  // What an earlier attempt has left there is none of ours.
  if (identity.launcher_serves) {
    table = with_prefix(std::move(table), fmt::format("tutti/attempt/{}/", identity.attempt));
  } else {
    table = table_of_job(context, identity.master_address, std::move(table));
  }
  return {.table = std::move(table), .master_host = address.host};
}

// "KEY PORT HOST HOST ...": the prefix of the table's keys, and where rank 0 listens. A host has several
// addresses: the others take the first that answers.
Meeting meet_through_mpi(const Context& context) {
  const milliseconds timeout = timeout_of(context);
  mpi_initialise();
  ServedRendezvous served;
  std::string text;
  if (context.rank() == 0) {
    served = serve_tcp_rendezvous(timeout);
    const bool one_host = context.local_world() == context.world();
    const auto hosts = one_host ? std::vector<std::string>{"127.0.0.1"} : own_addresses();
    text = fmt::format("{} {} {}", random_key(), served.port, fmt::join(hosts, " "));
  }
  const std::vector<std::string> words = split(mpi_broadcast_text(text, 0, timeout), ' ');
  const std::vector<std::string> hosts(words.begin() + 2, words.end());
  FoundRendezvous found{served.table, hosts.front()};
  if (!found.table)
    found = find_tcp_rendezvous(hosts, static_cast<uint16_t>(parse_int(words[1]).value_or(0)), timeout);
  return {.table = with_prefix(found.table, words[0] + "/"), .master_host = found.host};
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
  const auto words = roll_call(*meeting.table, options,
                               fmt::format("{} {} {} on {}", host_identity(), device_word(context.device()),
                                           context.task().short_name(), host_name()),
                               timeout_of(context));
  std::vector<std::string> hosts;
  std::vector<RankDevice> devices;
  for (const std::string& word : words) {
    const size_t device = word.find(' ') + 1;
    const size_t who = word.find(' ', device) + 1;
    hosts.push_back(word.substr(0, device - 1));
    meeting.who.push_back(word.substr(who));
    devices.push_back({meeting.who.back(), hosts.back(), word.substr(device, who - 1 - device)});
  }
  meeting.placement = Placement::of(hosts);
  meeting.no_nccl = why_not_nccl(devices);
}

// With rank 0 its table ends, if it has one: those that have come should first read there why they cannot go
// on.
void leave(const Context& context, Rendezvous& table) {
  const auto deadline = std::chrono::steady_clock::now() + kFarewell;
  const auto key = [](int rank) { return fmt::format("left/{}", rank); };
  try {
    table.set(key(context.rank()), "");
    for (int rank = 1; context.rank() == 0 && rank < context.world(); ++rank) {
      if (!table.peek(fmt::format("here/{}", rank))) continue;
      table.get(key(rank), until(deadline));
    }
  } catch (const Error&) {
    // Then they read it in this one's output.
  }
}

// Whether what is on GPUs goes from one to the other.
bool takes_nccl(const Context& context, const Meeting& meeting) {
  const std::string& asked = context.flags().comm;
  if (asked == "nccl" && !meeting.no_nccl.empty())
    fail(ErrorKind::InvalidArgument, "--comm nccl, but {}: use auto", meeting.no_nccl);
  return (asked == "nccl" || asked == "auto") && meeting.no_nccl.empty();
}

// What else there is to do: "shm", "gloo", "mpi", or "shm+gloo" and "shm+mpi" where there is something of
// both.
std::string backend_for(const Context& context, const Meeting& meeting) {
  const std::string& flag = context.flags().comm;
  const std::string asked = flag == "auto" || flag == "nccl" ? "shm+gloo" : flag;
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
  const auto first = meeting.who.begin() + placement.first(host);
  return shm_transport(with_prefix(meeting.table, fmt::format("shm/{}/", host)),
                       {.rank = placement.local_rank(rank),
                        .world = placement.size(host),
                        .who = {first, first + placement.size(host)},
                        .timeout = timeout_of(context)});
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

std::unique_ptr<OnDevice> make_on_device(const Context& context, const Meeting& meeting) {
  if (!takes_nccl(context, meeting)) return nullptr;
  return nccl_on_device(with_prefix(meeting.table, "nccl/"), context.device(),
                        {.rank = context.rank(), .world = context.world(), .who = meeting.who},
                        timeout_of(context));
}

std::string where(const Meeting& meeting) {
  if (meeting.one_host()) return "on one host";
  return meeting.placement ? "on several hosts" : "on several hosts, with the ranks of each apart";
}

// Those that have met.
std::shared_ptr<Communicator> connect_all(const Context& context, Meeting& meeting) {
  try {
    meet_all(context, meeting);
    auto on_device = make_on_device(context, meeting);
    auto transport = make_transport(context, meeting);
    return std::make_shared<Collectives>(std::move(transport), timeout_of(context), context.timeline(),
                                         std::move(on_device), mpi_never_finalise);
  } catch (const std::exception&) {
    leave(context, *meeting.table);
    throw;
  }
}

void say_how(const Context& context, const Meeting& meeting, const Communicator& comm) {
  context.log().info("{} workers connected over {} ({})", comm.world(), comm.name(), where(meeting));
  if (context.device().is_cuda() && !takes_nccl(context, meeting))
    context.log().info("gradients go through the hosts, not from GPU to GPU: {}",
                       meeting.no_nccl.empty() ? "--comm says so" : meeting.no_nccl);
}

void require_first(const Context& context) {
  if (!context.connected()) return;
  fail(ErrorKind::InvalidArgument,
       "the workers of this program are connected already. For two trainings at once make one communicator, "
       "comm::connect(context), and give each Trainer or DistributedOptimizer split(0) of it, as "
       "options.communicator");
}

}  // namespace

std::shared_ptr<Communicator> connect(const Context& context) {
  const milliseconds timeout = timeout_of(context);
  if (context.world() == 1)
    return std::make_shared<Collectives>(std::move(inproc_transports(1, timeout).front()), timeout,
                                         context.timeline());
  require_first(context);
  try {
    Meeting meeting = go_to_meeting(context);
    auto comm = connect_all(context, meeting);
    context.connected() = true;
    if (context.is_chief()) say_how(context, meeting, *comm);
    return comm;
  } catch (const std::exception&) {
    mpi_never_finalise();
    throw;
  }
}

}  // namespace tutti::comm
