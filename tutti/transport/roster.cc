#include "tutti/transport/roster.h"

#include <algorithm>
#include <functional>
#include <unistd.h>

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
#include "tutti/transport/board/follow.h"
#include "tutti/transport/board/launcher_store.h"
#include "tutti/transport/board/tcp_rendezvous.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/job_board.h"
#include "tutti/transport/mpi/mpi.h"

namespace tutti::comm {

std::chrono::milliseconds timeout_of(const TaskContext& context) {
  return milliseconds_of(context.config().network.timeout);
}

net::Credentials credentials_of_ranks(const TaskContext& context, const std::string& told) {
  net::Credentials credentials = net::credentials_of(context.config());
  if (credentials.certificate.empty() || credentials.authority.empty())
    credentials = {.checksums = credentials.checksums};
  const Identity& identity = context.identity();
  credentials.secret =
      fmt::format("{}\n{}\n{}\n{}", told, identity.job, identity.launch, context.config().security.secret);
  return credentials;
}

namespace {

constexpr const char* kLoopback = "127.0.0.1";

bool on_one_host(const TaskContext& context) { return context.local_world() == context.world(); }

// Throws unless the flags allow to listen at this address; "" means all addresses of this machine.
void require_secret_at(const TaskContext& context, const std::string& host) {
  const auto& security = context.config().security;
  require_secret(host, !security.secret.empty(), security.insecure);
}

// Without a secret, the ranks of one host meet at the loopback, whatever the name of the host.
bool needs_loopback(const TaskContext& context) {
  const auto& security = context.config().security;
  return on_one_host(context) && security.secret.empty() && !security.insecure;
}

bool in_numbers(const std::string& host) {
  return host.find_first_not_of("0123456789.") == std::string::npos || host.find(':') != std::string::npos;
}

// Returns the host at which rank 0 serves the board: the given one if others can reach it there. "" means all
// addresses of this machine. On the host itself, its name may resolve to the loopback, and
// the address of a service (as in Kubernetes) or behind a router is not an address of this machine.
std::string host_to_serve(const TaskContext& context, const std::string& host) {
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
  const bool here = mine && !loopback;
  require_secret_at(context, here ? host : "");
  if (here) return host;
  context.log().info("the board of the ranks listens at all addresses of this machine, since '{}' {}", host,
                     mine ? "is a loopback address here" : "is not an address of this machine");
  return "";
}

// Remembers refused connections, and writes a warning about each.
std::function<void(const std::string&)> note_refusals(const TaskContext& context, const Roster& roster) {
  return [log = context.log(), refused = roster.refused](const std::string& text) {
    refused->note(text);
    log.warning("{}", text);
  };
}

Roster roster_at_address(const TaskContext& context) {
  const Address address = parse_address(context.identity().board_address);
  const auto port = static_cast<uint16_t>(address.port);
  if (context.rank() == 0) {
    Roster roster{.board = nullptr, .board_host = address.host};
    roster.board = serve_tcp_rendezvous({.host = host_to_serve(context, address.host),
                                         .port = port,
                                         .credentials = credentials_of_ranks(context),
                                         .report = note_refusals(context, roster)})
                       .board;
    return roster;
  }
  // This rank listens for the others too, on the way to rank 0.
  if (!on_one_host(context)) require_secret_at(context, address.host);
  FindOptions options{.hosts = {address.host},
                      .port = port,
                      .credentials = credentials_of_ranks(context),
                      .timeout = timeout_of(context)};
  if (needs_loopback(context) && address.host != kLoopback) options.hosts.emplace_back(kLoopback);
  return {.board = find_tcp_rendezvous(options).board, .board_host = address.host};
}

// Rank 0 serves a board at any free port, and `share` sends the text "RANDOM PORT HOST HOST ..." to all
// ranks. A host has several addresses: the other ranks use the first one that answers.
Roster roster_by_text(const TaskContext& context,
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
  roster.board_host = fields[2];
  if (roster.board) return roster;
  const auto found = find_tcp_rendezvous({.hosts = {fields.begin() + 2, fields.end()},
                                          .port = static_cast<uint16_t>(parse_int(fields[1]).value_or(0)),
                                          .credentials = credentials_of_ranks(context, fields[0]),
                                          .several_machines = true,
                                          .timeout = timeout_of(context)});
  roster.board = found.board;
  roster.board_host = found.host;
  return roster;
}

Roster roster_through_mpi(const TaskContext& context) {
  mpi_initialise();
  return roster_by_text(context, [&](const std::optional<std::string>& text) {
    return mpi_broadcast_text(text.value_or(""), 0, timeout_of(context));
  });
}

// The launcher's board outlives an attempt to run the job, so the key contains the attempt. Everybody can
// read that board, so what it contains is no secret.
Roster roster_through_launcher(const TaskContext& context) {
  const Identity& identity = context.identity();
  if (!on_one_host(context)) require_secret_at(context, "");
  const std::string key = fmt::format("tutti/attempt/{}/board", identity.attempt);
  return roster_by_text(context, [&](const std::optional<std::string>& text) {
    return share_through_launcher(parse_address(identity.board_address), key, text, timeout_of(context));
  });
}

// Returns the name of the task with this rank, with its address if that is known.
std::string worker_name(int rank, const TaskContext& context) {
  const std::vector<Task> workers = workers_of(context.cluster());
  const std::vector<int>& now = context.identity().membership.workers;
  const auto index = static_cast<size_t>(now.empty() ? rank : now.at(static_cast<size_t>(rank)));
  if (index >= workers.size()) return fmt::format("rank {}", rank);
  return name_with_address(context.cluster(), workers[index]);
}

Roster find_board(const TaskContext& context, const Meeting& meeting) {
  if (meeting.share) return roster_by_text(context, meeting.share);
  if (context.identity().launcher_serves) return roster_through_launcher(context);
  if (context.identity().board_address.find(':') != std::string::npos) return roster_at_address(context);
  if (context.identity().source == "Open MPI") return roster_through_mpi(context);
  fail(ErrorKind::InvalidArgument,
       "there are {} workers (found through {}), but they have no address to connect to: give "
       "--cluster_spec with every worker's HOST:PORT, or start them with tutti run, Open MPI's mpirun, srun "
       "or torchrun",
       context.world(), context.identity().source);
}

// Takes this task's place on the board, as long as it is connected to it, or throws if another one has it.
void take_place(const TaskContext& context, Rendezvous& board) {
  // Processes in containers may have the same number and the same name of the host.
  const std::string own =
      fmt::format("{} on {} (pid {})\n{}", context.task().short_name(), host_name(), getpid(), random_key());
  const std::string there = board.hold(fmt::format("place/{}", context.rank()), own);
  if (there == own) return;
  fail(ErrorKind::InvalidArgument, "{}",
       same_index(there.substr(0, there.find('\n')), own.substr(0, own.find('\n'))));
}

// Returns what each rank says of its host, its device and itself.
std::vector<std::string> descriptions_of_all(const TaskContext& context, const Roster& roster,
                                             const Meeting& meeting) {
  FailuresOptions options{.rank = context.rank(), .world = context.world()};
  for (int rank = 0; rank < context.world(); ++rank) options.who.push_back(worker_name(rank, context));
  try {
    return roll_call(*roster.board, options,
                     fmt::format("{} {} {} on {}", host_identity(), meeting.device,
                                 context.task().short_name(), host_name()),
                     timeout_of(context));
  } catch (const Error& error) {
    const std::string refused = roster.refused->text();
    if (error.kind() != ErrorKind::Timeout || refused.empty()) throw;
    fail(ErrorKind::Timeout, "{}{}", error.what(), refused);
  }
}

void call_roll(const TaskContext& context, Roster& roster, const Meeting& meeting) {
  std::vector<std::string> hosts;
  for (const std::string& description : descriptions_of_all(context, roster, meeting)) {
    const size_t device = description.find(' ') + 1;
    const size_t who = description.find(' ', device) + 1;
    hosts.push_back(description.substr(0, device - 1));
    roster.who.push_back(description.substr(who));
    roster.devices.push_back({roster.who.back(), hosts.back(), description.substr(device, who - 1 - device)});
  }
  roster.layout = RankLayout::make(hosts);
}

// All tasks must have the same flags, except flags of FlagScope::Local. Rank 0 compares them before anything
// that depends on them is built, and announces the result to all ranks.
void require_same_flags(const TaskContext& context, Rendezvous& board, const std::vector<std::string>& who,
                        const Meeting& meeting) {
  constexpr const char* kVerdict = "flags/verdict";
  const auto key = [](int rank) { return fmt::format("flags/{}", rank); };
  const Agreement own{who[static_cast<size_t>(context.rank())], common_flags(context)};
  if (context.rank() > 0) {
    board.set(key(context.rank()), fmt::format("{}\n{}", meeting.threads, fmt::join(own.lines, "\n")));
  } else {
    std::string verdict;
    for (int rank = 1; rank < context.world() && verdict.empty(); ++rank) {
      const std::vector<std::string> theirs = split(board.get(key(rank), timeout_of(context)), '\n');
      if (theirs[0] != std::to_string(meeting.threads))
        context.log().warning(
            "{} computes with {} threads and {} with {}: kernels may add in a different order, so a run on "
            "other workers may give different bits. Set --threads",
            who[0], meeting.threads, who[static_cast<size_t>(rank)], theirs[0]);
      verdict = difference(own, {who[static_cast<size_t>(rank)], {theirs.begin() + 1, theirs.end()}});
    }
    board.set(kVerdict, "." + verdict);
  }
  refuse_difference(board.get(kVerdict, timeout_of(context)).substr(1));
}

// Returns the host in this task's own address, where the others can reach it.
std::string own_host(const TaskContext& context) {
  return parse_address(context.cluster().address(context.task().job, context.task().index)).host;
}

}  // namespace

std::vector<std::string> common_flags(const TaskContext& context) {
  std::vector<std::string> flags = context.shared_flags();
  flags.emplace_back(context.config().output.timeline.empty() ? "no --timeline" : "a --timeline");
  return flags;
}

std::shared_ptr<Rendezvous> find_members_board(const TaskContext& context) {
  const Identity& identity = context.identity();
  const std::string& own = identity.secret.empty() ? context.config().security.secret : identity.secret;
  return follow_members_board({.address = identity.members_board,
                               .secret = members_secret(identity.launch, own),
                               .timeout = timeout_of(context)});
}

Roster find_roster(const TaskContext& context, const Meeting& meeting, std::shared_ptr<Rendezvous> board) {
  Roster roster = board ? Roster{.board = std::move(board), .board_host = own_host(context)}
                        : find_board(context, meeting);
  take_place(context, *roster.board);
  call_roll(context, roster, meeting);
  require_same_flags(context, *roster.board, roster.who, meeting);
  return roster;
}

}  // namespace tutti::comm
