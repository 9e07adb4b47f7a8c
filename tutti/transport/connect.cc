#include "tutti/transport/connect.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/agreement.h"
#include "tutti/base/error.h"
#include "tutti/base/this_host.h"
#include "tutti/base/version.h"
#include "tutti/cluster/roles.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/hierarchy/hierarchy.h"
#include "tutti/transport/inproc/inproc.h"
#include "tutti/transport/member_epochs.h"
#include "tutti/transport/members.h"
#include "tutti/transport/mpi/mpi.h"
#include "tutti/transport/shm/shm.h"
#include "tutti/transport/tcp/tcp.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;

// Returns the backend for everything else: "shm", "tcp", "mpi", or "shm+tcp" or "shm+mpi" if there are
// several hosts, some of them with several ranks.
std::string backend_for(const TaskContext& context, const Roster& roster) {
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
uint16_t own_port(const TaskContext& context) {
  const ClusterSpec& cluster = context.cluster();
  const Task& task = context.task();
  if (!cluster.has_job(task.job) || !cluster.tasks(task.job).contains(task.index)) return 0;
  return static_cast<uint16_t>(parse_address(cluster.address(task.job, task.index)).port);
}

std::unique_ptr<Transport> make_network(const TaskContext& context, const Roster& roster,
                                        const std::string& name) {
  const auto board = with_prefix(roster.board, name + "/");
  const milliseconds timeout = timeout_of(context);
  const bool may_connect_again = !context.identity().members_board.empty();
  if (name == "tcp") {
    return tcp_transport(board, {.rank = context.rank(),
                                 .world = context.world(),
                                 .who = roster.who,
                                 .holder = roster.who.front(),
                                 .peer_host = roster.one_host() ? "" : roster.board_host,
                                 .port = own_port(context),
                                 .credentials = credentials_of_ranks(context),
                                 .if_changed = may_connect_again ? ErrorKind::PeerLost : ErrorKind::DataLoss,
                                 .timeout = timeout});
  }
  mpi_initialise();
  return mpi_transport(board, {roster.who, roster.who.front(), timeout});
}

// Returns the shared-memory transport of the ranks of this host.
std::unique_ptr<Transport> make_memory(const TaskContext& context, const Roster& roster) {
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

void require_all(const Transport& transport, const TaskContext& context) {
  if (transport.world() == context.world()) return;
  fail(ErrorKind::InvalidArgument,
       "--comm {}: there are {} workers (found through {}), but it connects {}; start them with mpirun",
       transport.name(), context.world(), context.identity().source, transport.world());
}

std::unique_ptr<Transport> make_transport(const TaskContext& context, const Roster& roster) {
  const std::string backend = backend_for(context, roster);
  if (backend == "shm") return make_memory(context, roster);
  const size_t plus = backend.find('+');
  auto network =
      make_network(context, roster, plus == std::string::npos ? backend : backend.substr(plus + 1));
  require_all(*network, context);
  if (plus == std::string::npos) return network;
  return std::make_unique<HierarchyTransport>(std::move(network), make_memory(context, roster),
                                              *roster.layout, timeout_of(context));
}

std::string where(const Roster& roster) {
  if (roster.one_host()) return "on one host";
  return roster.layout ? "on several hosts" : "on several hosts, with interleaved ranks";
}

void say_how(const TaskContext& context, const Roster& roster, const std::string& name) {
  context.log().info("{} workers connected over {} ({})", context.world(), name, where(roster));
}

void require_first(const TaskContext& context) {
  if (!context.connected()) return;
  fail(ErrorKind::InvalidArgument,
       "the workers of this program are already connected, for another training. For several trainings, call "
       "tutti::connect(context) once, and pass split(0) of the group to each Trainer or "
       "DistributedOptimizer as options.group");
}

// Connects the ranks of this context, which is at its place among the members of an epoch.
EpochSource::Connection connect_at(const TaskContext& context, const ConnectOptions& options,
                                   std::shared_ptr<Rendezvous> board = nullptr) {
  if (context.world() == 1)
    return {.transport = std::move(inproc_transports(1, timeout_of(context)).front())};
  const Roster roster = find_roster(context, options.meeting, std::move(board));
  EpochSource::Connection connection;
  connection.transport = make_transport(context, roster);
  if (options.on_device) connection.on_device = options.on_device(context, roster, *connection.transport);
  if (context.is_chief())
    say_how(context, roster,
            connection.on_device ? connection.on_device->name() + "+" + connection.transport->name()
                                 : connection.transport->name());
  return connection;
}

// Returns the context of a worker at its place among these members. Members whose addresses have the same
// host are on the same machine.
TaskContext at_place(const TaskContext& context, const Members& members, const Member& self) {
  Membership place = context.identity().membership;
  place.epoch = members.epoch;
  place.rank = *members.rank_of(self);
  place.world = static_cast<int>(members.by_rank.size());
  place.local_world = place.local_rank = 0;
  place.workers.clear();
  for (const Member& member : members.by_rank) {
    place.workers.push_back(member.worker);
    if (member == self) place.local_rank = place.local_world;
    const Task task{.job = context.task().job, .index = member.worker};
    if (is_on_same_host(context.cluster(), context.task(), task)) ++place.local_world;
  }
  return context.at(place);
}

// Returns the facts that must be the same for a worker that joins and for the workers that train. Called by a
// thread that computes.
Agreement facts_of(const TaskContext& context, const ConnectOptions& options) {
  Agreement facts{fmt::format("{} on {}", context.task().short_name(), host_name()), common_flags(context)};
  facts.lines.push_back(fmt::format("tutti {}", version()));
  const bool refuses_checksums = context.config().network.message_checksums == "off";
  facts.lines.emplace_back(refuses_checksums ? "--message-checksums off" : "--message-checksums auto or on");
  if (context.config().compute.mixed_machines || !options.kernels) return facts;
  for (const std::string& line : options.kernels()) facts.lines.push_back(line);
  return facts;
}

// The epochs of a job whose launcher keeps a list of its members.
class LaunchedEpochs final : public EpochSource {
 public:
  LaunchedEpochs(const TaskContext& context, ConnectOptions options)
      : context_(context),
        options_(std::move(options)),
        epochs_(MembersBoard(find_members_board(context), {context.task().index, context.identity().life})) {}

  uint64_t number() const override { return epochs_.members().epoch; }
  bool is_joining() const override { return epochs_.is_joining(); }
  bool change_is_due() override;
  int least() const override { return epochs_.list().least(); }
  std::string change() const override { return epochs_.change(); }
  bool is_last() const override { return epochs_.members().is_last; }
  bool job_stops() const override { return epochs_.list().job_stops(); }
  void set_fit(int64_t fit) override {
    know_facts();
    epochs_.list().set_fit(fit);
  }
  std::optional<int64_t> fit() const override { return epochs_.list().fit(); }
  Connection next(const std::optional<Error>& why) override;
  // Connects the workers with which the job begins; nothing is connected in one that joins later.
  Connection first();

 private:
  using Clock = std::chrono::steady_clock;

  void know_facts() const {
    if (epochs_.list().facts().empty()) epochs_.list().set_facts(facts_of(context_, options_));
  }
  // Returns a function that puts its connection there.
  MemberEpochs::Connect connect_to(Connection& connection) const;

  const TaskContext context_;
  const ConnectOptions options_;
  MemberEpochs epochs_;
  bool due_ = false;  // a change of this epoch
  Clock::time_point looked_at_ = {};
};

EpochSource::Connection LaunchedEpochs::first() {
  Connection connection;
  if (is_joining())
    connection.transport = std::move(inproc_transports(1, timeout_of(context_)).front());
  else
    epochs_.enter_first(connect_to(connection));
  return connection;
}

EpochSource::Connection LaunchedEpochs::next(const std::optional<Error>& why) {
  Connection connection;
  if (is_joining()) know_facts();
  epochs_.enter_next(why, connect_to(connection));
  due_ = false;
  return connection;
}

MemberEpochs::Connect LaunchedEpochs::connect_to(Connection& connection) const {
  return [this, &connection](const Members& members, const std::shared_ptr<EpochBoard>& board) {
    connection = connect_at(at_place(context_, members, epochs_.list().self()), options_, board);
  };
}

bool LaunchedEpochs::change_is_due() {
  constexpr std::chrono::milliseconds kBetweenLooks{100};
  const auto now = Clock::now();
  if (due_ || now < looked_at_ + kBetweenLooks) return due_;
  looked_at_ = now;
  return due_ = epochs_.list().change_is_due(number());
}

}  // namespace

std::unique_ptr<Ranks> connect_ranks(const TaskContext& context, const ConnectOptions& options) {
  const Identity& identity = context.identity();
  if (!identity.is_evaluator) context.require_worker();  // an evaluator is connected to nobody
  const milliseconds timeout = timeout_of(context);
  require_first(context);  // one worker too, so that a program that runs alone also runs on several
  std::unique_ptr<LaunchedEpochs> epochs;
  if (!identity.members_board.empty() && !identity.is_evaluator)
    epochs = std::make_unique<LaunchedEpochs>(context, options);
  try {
    EpochSource::Connection connection = epochs ? epochs->first() : connect_at(context, options);
    const auto on_failure = context.world() > 1 ? mpi_never_finalise : std::function<void()>();
    auto ranks = std::make_unique<Ranks>(std::move(connection.transport), timeout, context.timeline(),
                                         std::move(connection.on_device), on_failure, std::move(epochs));
    context.connected() = true;
    if (ranks->epochs() != nullptr && ranks->epochs()->is_joining()) context.set_chief(false);
    return ranks;
  } catch (const std::exception&) {
    if (context.world() > 1) mpi_never_finalise();
    throw;
  }
}

}  // namespace tutti::comm
