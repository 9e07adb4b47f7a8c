#include "tutti/comm/connect.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/address.h"
#include "tutti/base/agreement.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/board/launcher_store.h"
#include "tutti/comm/board/tcp_rendezvous.h"
#include "tutti/comm/collectives.h"
#include "tutti/comm/failures.h"
#include "tutti/comm/hierarchy/hierarchy.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/inproc/inproc.h"
#include "tutti/comm/mpi/mpi.h"
#include "tutti/comm/nccl/choice.h"
#include "tutti/comm/nccl/nccl.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/comm/tcp/tcp.h"
#include "tutti/net/credentials.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kLoopback = "127.0.0.1";

// Holds the facts about all workers that a worker knows before they are connected.
struct Roster {
  std::shared_ptr<Rendezvous> board;
  // At the rank that serves the board: the connections that were refused because they have another secret.
  std::shared_ptr<std::atomic<int>> refused = std::make_shared<std::atomic<int>>(0);
  std::string master_host;
  std::vector<std::string> who = {};      // "worker/2 on node7"
  std::optional<RankLayout> layout = {};  // nullopt if the ranks of some host are not contiguous
  std::string no_nccl = {};               // why they do not use NCCL; "" if they can

  bool one_host() const { return layout && layout->hosts() == 1; }
  bool two_levels() const { return layout && layout->has_two_levels(); }
};

milliseconds timeout_of(const Context& context) { return milliseconds_of(context.config().network.timeout); }

// Returns the credentials of the ranks. The secret is one that only the processes of this job have: its name,
// the id of the launch and --secret, each if there is one; and what rank 0 has told. What they send is
// encrypted if each has a certificate and the authority of the others.
net::Credentials credentials_of_ranks(const Context& context, const std::string& told = "") {
  net::Credentials credentials = net::credentials_of(context.config());
  if (credentials.certificate.empty() || credentials.authority.empty()) credentials = {};
  const Identity& identity = context.identity();
  credentials.secret =
      fmt::format("{}\n{}\n{}\n{}", told, identity.job, identity.launch, context.config().security.secret);
  return credentials;
}

bool on_one_host(const Context& context) { return context.local_world() == context.world(); }

// Without a secret, the ranks of one host meet at the loopback, whatever the name of the host.
bool needs_loopback(const Context& context) {
  const auto& security = context.config().security;
  return on_one_host(context) && security.secret.empty() && !security.insecure;
}

bool in_numbers(const std::string& host) {
  return host.find_first_not_of("0123456789.") == std::string::npos || host.find(':') != std::string::npos;
}

// Returns the host at which rank 0 serves the board: the given one if others can reach it there. "" means all
// addresses of this machine. On the host itself, its name may resolve to the loopback, and
// the address of a service (as in Kubernetes) or behind a router is not an address of this machine.
std::string host_to_serve(const Context& context, const std::string& host) {
  const std::vector<std::string> own = own_addresses();
  bool loopback = true;
  bool mine = false;
  for (const SocketAddress& address : resolve(host, 0).addresses) {
    const bool looped = is_loopback(address);
    loopback = loopback && looped;
    mine = mine || looped || std::find(own.begin(), own.end(), numeric(address)) != own.end();
  }
  if (mine && loopback && (on_one_host(context) || in_numbers(host))) return host;
  if (mine && needs_loopback(context)) return kLoopback;
  const auto& security = context.config().security;
  const bool here = mine && !loopback;
  require_secret(here ? host : "", !security.secret.empty(), security.insecure);
  if (here) return host;
  context.log().info("the board of the ranks listens at all addresses of this machine, since '{}' {}", host,
                     mine ? "is a loopback address here" : "is not an address of this machine");
  return "";
}

// Counts refused connections, and writes a warning about each.
std::function<void(const std::string&)> note_refusals(const Context& context, const Roster& roster) {
  return [log = context.log(), count = roster.refused](const std::string& text) {
    ++*count;
    log.warning("{}", text);
  };
}

Roster roster_at_address(const Context& context) {
  const Address address = parse_address(context.identity().master_address);
  const auto port = static_cast<uint16_t>(address.port);
  if (context.rank() == 0) {
    Roster roster{.board = nullptr, .master_host = address.host};
    roster.board = serve_tcp_rendezvous({.host = host_to_serve(context, address.host),
                                         .port = port,
                                         .credentials = credentials_of_ranks(context),
                                         .report = note_refusals(context, roster)})
                       .board;
    return roster;
  }
  // This rank listens for the others too, on the way to rank 0.
  const auto& security = context.config().security;
  if (!on_one_host(context)) require_secret(address.host, !security.secret.empty(), security.insecure);
  FindOptions options{.hosts = {address.host},
                      .port = port,
                      .credentials = credentials_of_ranks(context),
                      .timeout = timeout_of(context)};
  if (needs_loopback(context) && address.host != kLoopback) options.hosts.emplace_back(kLoopback);
  return {.board = find_tcp_rendezvous(options).board, .master_host = address.host};
}

// Rank 0 serves a board at any free port, and `share` sends the text "RANDOM PORT HOST HOST ..." to all
// ranks. A host has several addresses: the other ranks use the first one that answers.
Roster roster_by_text(const Context& context,
                      const std::function<std::string(const std::optional<std::string>&)>& share) {
  Roster roster;
  std::optional<std::string> text;
  if (context.rank() == 0) {
    std::vector<std::string> hosts = on_one_host(context) ? std::vector<std::string>() : own_addresses();
    const std::string random = random_key();
    const ServedRendezvous served =
        serve_tcp_rendezvous({.host = hosts.empty() ? kLoopback : "",
                              .credentials = credentials_of_ranks(context, random),
                              .report = note_refusals(context, roster)});
    if (hosts.empty()) hosts = {kLoopback};
    roster.board = served.board;
    text = fmt::format("{} {} {}", random, served.port, fmt::join(hosts, " "));
  }
  const std::vector<std::string> fields = split(share(text), ' ');
  if (fields.size() < 3) fail(ErrorKind::DataLoss, "the text shared by rank 0 was not written by Tutti");
  roster.master_host = fields[2];
  if (roster.board) return roster;
  const auto found = find_tcp_rendezvous({.hosts = {fields.begin() + 2, fields.end()},
                                          .port = static_cast<uint16_t>(parse_int(fields[1]).value_or(0)),
                                          .credentials = credentials_of_ranks(context, fields[0]),
                                          .several_machines = true,
                                          .timeout = timeout_of(context)});
  roster.board = found.board;
  roster.master_host = found.host;
  return roster;
}

Roster roster_through_mpi(const Context& context) {
  mpi_initialise();
  return roster_by_text(context, [&](const std::optional<std::string>& text) {
    return mpi_broadcast_text(text.value_or(""), 0, timeout_of(context));
  });
}

// The launcher's board outlives an attempt to run the job, so the key contains the attempt. Everybody can
// read that board, so what it contains is no secret.
Roster roster_through_launcher(const Context& context) {
  const Identity& identity = context.identity();
  const auto& security = context.config().security;
  if (!on_one_host(context)) require_secret("", !security.secret.empty(), security.insecure);
  const std::string key = fmt::format("tutti/attempt/{}/board", identity.attempt);
  return roster_by_text(context, [&](const std::optional<std::string>& text) {
    return share_through_launcher(parse_address(identity.master_address), key, text, timeout_of(context));
  });
}

// Returns the name of the task with this rank, with its address if that is known.
std::string worker_name(int rank, const Context& context) {
  const std::vector<Task> workers = workers_of(context.cluster());
  if (static_cast<size_t>(rank) >= workers.size()) return fmt::format("rank {}", rank);
  return name_with_address(context.cluster(), workers[static_cast<size_t>(rank)]);
}

Roster find_roster(const Context& context) {
  if (context.identity().launcher_serves) return roster_through_launcher(context);
  if (context.identity().master_address.find(':') != std::string::npos) return roster_at_address(context);
  if (context.identity().source == "Open MPI") return roster_through_mpi(context);
  fail(ErrorKind::InvalidArgument,
       "there are {} workers (found through {}), but they have no address to connect to: give "
       "--cluster_spec with every worker's HOST:PORT, or start them with tutti run, Open MPI's mpirun, srun "
       "or torchrun",
       context.world(), context.identity().source);
}

// Returns what each rank says of its host, its device and itself.
std::vector<std::string> descriptions_of_all(const Context& context, const Roster& roster) {
  FailuresOptions options{.rank = context.rank(), .world = context.world()};
  for (int rank = 0; rank < context.world(); ++rank) options.who.push_back(worker_name(rank, context));
  try {
    return roll_call(*roster.board, options,
                     fmt::format("{} {} {} on {}", host_identity(), device_word(context.device()),
                                 context.task().short_name(), host_name()),
                     timeout_of(context));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Timeout || *roster.refused == 0) throw;
    fail(ErrorKind::Timeout,
         "{}. Connections from tasks with another secret, or of another job, were refused: give all tasks of "
         "the job the same TUTTI_SECRET",
         error.what());
  }
}

void call_roll(const Context& context, Roster& roster) {
  std::vector<std::string> hosts;
  std::vector<RankDevice> devices;
  for (const std::string& description : descriptions_of_all(context, roster)) {
    const size_t device = description.find(' ') + 1;
    const size_t who = description.find(' ', device) + 1;
    hosts.push_back(description.substr(0, device - 1));
    roster.who.push_back(description.substr(who));
    devices.push_back({roster.who.back(), hosts.back(), description.substr(device, who - 1 - device)});
  }
  roster.layout = RankLayout::make(hosts);
  roster.no_nccl = why_not_nccl(devices);
}

// All tasks must have the same flags, except those of FlagScope::Local. Rank 0 compares them before anything
// that depends on them is built, and announces the result to all ranks.
void require_same_flags(const Context& context, Rendezvous& board, const std::vector<std::string>& who) {
  constexpr const char* kVerdict = "flags/verdict";
  const auto key = [](int rank) { return fmt::format("flags/{}", rank); };
  Agreement own{who[static_cast<size_t>(context.rank())], context.shared_flags()};
  own.lines.push_back(context.config().output.timeline.empty() ? "no --timeline" : "a --timeline");
  if (context.rank() > 0) {
    board.set(key(context.rank()), fmt::format("{}\n{}", context.threads(), fmt::join(own.lines, "\n")));
  } else {
    std::string verdict;
    for (int rank = 1; rank < context.world() && verdict.empty(); ++rank) {
      const std::vector<std::string> theirs = split(board.get(key(rank), timeout_of(context)), '\n');
      if (theirs[0] != std::to_string(context.threads()))
        context.log().warning(
            "{} computes with {} threads and {} with {}: kernels may add in a different order, so a run on "
            "other workers may give different bits. Set --threads",
            who[0], context.threads(), who[static_cast<size_t>(rank)], theirs[0]);
      verdict = difference(own, {who[static_cast<size_t>(rank)], {theirs.begin() + 1, theirs.end()}});
    }
    board.set(kVerdict, "." + verdict);
  }
  refuse_difference(board.get(kVerdict, timeout_of(context)).substr(1));
}

// Returns true if tensors on GPUs are sent directly from GPU to GPU. Throws if --comm nccl is impossible.
bool takes_nccl(const Context& context, const Roster& roster) {
  const std::string& asked = context.config().network.backend;
  if (asked == "nccl" && !roster.no_nccl.empty())
    fail(ErrorKind::InvalidArgument, "--comm nccl is not possible: {}. Use --comm auto", roster.no_nccl);
  return (asked == "nccl" || asked == "auto") && roster.no_nccl.empty();
}

// Returns the backend for everything else: "shm", "tcp", "mpi", or "shm+tcp" or "shm+mpi" if there are
// several hosts, some of them with several ranks.
std::string backend_for(const Context& context, const Roster& roster) {
  const std::string& flag = context.config().network.backend;
  const bool hierarchy = flag == "auto" || flag == "nccl" || flag == "shm+gloo";
  const std::string asked = hierarchy ? "shm+tcp" : flag == "gloo" ? "tcp" : flag;
  if (asked == "shm" && !roster.one_host())
    fail(ErrorKind::InvalidArgument,
         "--comm shm needs all workers on one host, but they are on several: use auto, shm+tcp, shm+mpi, "
         "tcp or mpi");
  const size_t plus = asked.find('+');
  if (plus == std::string::npos || roster.two_levels()) return asked;
  return roster.one_host() ? "shm" : asked.substr(plus + 1);
}

// Returns the port of this task in the cluster; 0 if that names none.
uint16_t own_port(const Context& context) {
  const ClusterSpec& cluster = context.cluster();
  const Task& task = context.task();
  if (!cluster.has_job(task.job) || !cluster.tasks(task.job).contains(task.index)) return 0;
  return static_cast<uint16_t>(parse_address(cluster.address(task.job, task.index)).port);
}

std::unique_ptr<Transport> make_network(const Context& context, const Roster& roster,
                                        const std::string& name) {
  const auto board = with_prefix(roster.board, name + "/");
  const milliseconds timeout = timeout_of(context);
  if (name == "tcp") {
    return tcp_transport(board, {.rank = context.rank(),
                                 .world = context.world(),
                                 .who = roster.who,
                                 .holder = roster.who.front(),
                                 .peer_host = roster.one_host() ? "" : roster.master_host,
                                 .port = own_port(context),
                                 .credentials = credentials_of_ranks(context),
                                 .timeout = timeout});
  }
  mpi_initialise();
  return mpi_transport(board, {roster.who, roster.who.front(), timeout});
}

// Returns the shared-memory transport of the ranks of this host.
std::unique_ptr<Transport> make_memory(const Context& context, const Roster& roster) {
  const RankLayout& layout = *roster.layout;
  const int rank = context.rank();
  const int host = layout.host_of(rank);
  const auto first = roster.who.begin() + layout.first(host);
  return shm_transport(with_prefix(roster.board, fmt::format("shm/{}/", host)),
                       {.rank = layout.local_rank(rank),
                        .world = layout.size(host),
                        .who = {first, first + layout.size(host)},
                        .timeout = timeout_of(context)});
}

void require_all(const Transport& transport, const Context& context) {
  if (transport.world() == context.world()) return;
  fail(ErrorKind::InvalidArgument,
       "--comm {}: there are {} workers (found through {}), but it connects {}; start them with mpirun",
       transport.name(), context.world(), context.identity().source, transport.world());
}

std::unique_ptr<Transport> make_transport(const Context& context, const Roster& roster) {
  const std::string backend = backend_for(context, roster);
  if (backend == "shm") return make_memory(context, roster);
  const size_t plus = backend.find('+');
  auto network =
      make_network(context, roster, plus == std::string::npos ? backend : backend.substr(plus + 1));
  require_all(*network, context);
  if (plus == std::string::npos) return network;
  return hierarchy_transport(std::move(network), make_memory(context, roster), *roster.layout,
                             timeout_of(context));
}

// With --comm auto, NCCL is used only if it gives the sum that the transport gives.
std::unique_ptr<OnDevice> make_on_device(const Context& context, Roster& roster, Transport& transport) {
  if (!takes_nccl(context, roster)) return nullptr;
  const auto make = [&] {
    return nccl_on_device(with_prefix(roster.board, "nccl/"), context.device(),
                          {.rank = context.rank(),
                           .world = context.world(),
                           .who = roster.who,
                           .holder = roster.who.front(),
                           .silence = timeout_of(context)},
                          timeout_of(context));
  };
  if (context.config().network.backend == "nccl") return make();
  CheckedDevice checked =
      check_on_device(make, context.device(), transport, *with_prefix(roster.board, "nccl-check/"),
                      roster.who, timeout_of(context));
  if (!checked.failure.empty()) roster.no_nccl = "NCCL has failed its check: " + checked.failure;
  return std::move(checked.on_device);
}

std::string where(const Roster& roster) {
  if (roster.one_host()) return "on one host";
  return roster.layout ? "on several hosts" : "on several hosts, with interleaved ranks";
}

// Connects the workers after they have found the board.
std::shared_ptr<Communicator> connect_all(const Context& context, Roster& roster) {
  call_roll(context, roster);
  require_same_flags(context, *roster.board, roster.who);
  auto transport = make_transport(context, roster);
  auto on_device = make_on_device(context, roster, *transport);
  return std::make_shared<Collectives>(std::move(transport), timeout_of(context), context.timeline(),
                                       std::move(on_device), mpi_never_finalise);
}

void say_how(const Context& context, const Roster& roster, const Communicator& comm) {
  context.log().info("{} workers connected over {} ({})", comm.world(), comm.name(), where(roster));
  if (context.device().is_cuda() && !takes_nccl(context, roster))
    context.log().info("gradients go through host memory, not from GPU to GPU: {}",
                       roster.no_nccl.empty() ? "--comm says so" : roster.no_nccl);
}

void require_first(const Context& context) {
  if (!context.connected()) return;
  fail(ErrorKind::InvalidArgument,
       "the workers of this program are already connected, for another training. For several trainings, call "
       "tutti::connect(context) once, and pass split(0) of the group to each Trainer or "
       "DistributedOptimizer as options.group");
}

}  // namespace

std::shared_ptr<Communicator> connect(const Context& context) {
  if (!context.identity().is_evaluator) context.require_worker();  // an evaluator is connected to nobody
  const milliseconds timeout = timeout_of(context);
  require_first(context);  // one worker too, so that a program that runs alone also runs on several
  if (context.world() == 1) {
    context.connected() = true;
    return std::make_shared<Collectives>(std::move(inproc_transports(1, timeout).front()), timeout,
                                         context.timeline());
  }
  try {
    Roster roster = find_roster(context);
    auto comm = connect_all(context, roster);
    context.connected() = true;
    if (context.is_chief()) say_how(context, roster, *comm);
    return comm;
  } catch (const std::exception&) {
    mpi_never_finalise();
    throw;
  }
}

}  // namespace tutti::comm
