#include "tools/launch/survival_guest.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "tools/launch/succession.h"
#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"
#include "tutti/cluster/identity.h"
#include "tutti/transport/board/tcp_rendezvous.h"
#include "tutti/transport/job_board.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// The interval between two looks for orders.
constexpr milliseconds kLookForOrders{20};
// The interval while the launchers agree on an epoch. It is short, since a launcher that has not read that
// they have agreed cannot count on it once the keeper is lost.
constexpr milliseconds kLookForChosen{2};
// The time for one attempt to connect to another launcher, which may be gone.
constexpr milliseconds kAttemptToConnect{2000};
// The time in which the keeper has to be found that a launcher has been told of which comes again.
constexpr milliseconds kAttemptToReturn{5000};

// Returns the term for which the launcher of this board is the keeper.
uint64_t term_on(comm::Rendezvous& board) {
  return static_cast<uint64_t>(parse_int(board.peek(kTermKey).value_or("0")).value_or(0));
}

}  // namespace

SurvivalGuest::SurvivalGuest(const GuestOptions& options)
    : options_(options),
      token_(options.launchers ? options.launchers->vote.token : random_key()),
      keeper_(options.keeper),
      is_member_(!comes_again()) {
  std::string trouble;
  const bool may_go_on = options.launchers && !comes_again();
  if (options.launchers) voter_.emplace(options.launchers->vote);
  try {
    find_keeper(may_go_on       ? options.timeout
                : comes_again() ? std::min(options.start_timeout, kAttemptToReturn)
                                : options.start_timeout);
    enter_job();
  } catch (const Error& error) {
    if (!may_go_on || !comm::is_loss(error)) throw;
    trouble = error.what();
  }
  if (trouble.empty() && standing_.workers.size() != static_cast<size_t>(options.workers))
    fail(ErrorKind::PeerLost, "tutti run: {} needs the workers of this host no more: the job ends",
         options.keeper);
  standing_.workers.resize(static_cast<size_t>(options.workers));
  messenger_ = std::thread([this, trouble] { keep_in_touch(trouble); });
}

void SurvivalGuest::find_keeper(milliseconds timeout) {
  const comm::FoundRendezvous found = comm::find_tcp_rendezvous(
      {.hosts = options_.addresses,
       .port = options_.port,
       .credentials = {.secret = comm::members_secret(options_.launch, options_.secret)},
       .holder = options_.keeper,
       .several_machines = options_.addresses.size() > 1,
       .timeout = timeout,
       .answer = options_.timeout});
  board_ = found.board;
  address_ = to_string(Address{found.host, options_.port});
  if (!voter_) return;
  options_.launchers->own.board->set(comm::kKeeperKey, address_);
  voter_->promise(term_on(*board_));
}

// Waits until the keeper has noticed this launcher.
void SurvivalGuest::enter_job() {
  if (board_->hold(host_key(options_.host), token_) != token_)
    fail(ErrorKind::InvalidArgument, "tutti run: another launcher of this host is part of the job");
  const milliseconds patience =
      comes_again() ? std::min(options_.start_timeout, options_.timeout) : options_.start_timeout;
  for (const int life : lives_of(board_->get(welcome_key(token_), patience)))
    standing_.workers.push_back({.life = life, .runs = life != kAway});
}

// The last reports are sent before this returns.
SurvivalGuest::~SurvivalGuest() {
  {
    const std::lock_guard lock(mutex_);
    leaves_ = true;
  }
  changed_.notify_all();
  messenger_.join();
}

// `lost`: why the first keeper could not be reached, or "".
void SurvivalGuest::keep_in_touch(std::string lost) {
  Lock lock(mutex_);
  try {
    while (!is_elected_) {
      if (!lost.empty()) follow_successor(lock, lost);
      if (is_elected_) return;
      try {
        return serve_keeper(lock);
      } catch (const Error& error) {
        if (!lock.owns_lock()) lock.lock();
        if (!options_.launchers || received_.end || leaves_) throw;
        lost = error.what();
      }
    }
  } catch (const Error& error) {
    if (!lock.owns_lock()) lock.lock();
    lost_ = error.what();
  } catch (const Leaves&) {
    // this launcher ends
  }
}

// Until this launcher ends.
void SurvivalGuest::serve_keeper(Lock& lock) {
  while (!leaves_ || !reports_.empty()) {
    exchange(lock);
    const bool learns_soon = voter_ && voter_->vote().accepted;
    const milliseconds pause = learns_soon ? kLookForChosen : kLookForOrders;
    changed_.wait_for(lock, pause, [this] { return leaves_ || !reports_.empty(); });
  }
}

// Sends the reports and receives the orders. The board is used without the lock.
void SurvivalGuest::exchange(Lock& lock) {
  while (!reports_.empty()) {
    const auto [key, value] = reports_.front();
    lock.unlock();
    board_->set(key, value);
    lock.lock();
    reports_.pop_front();
    sent_[key] = value;
  }
  lock.unlock();
  const auto text = board_->peek(orders_key(token_));
  if (voter_) vote_on_proposal(*voter_, *board_, seen_proposal_);
  lock.lock();
  if (text) received_ = host_orders_of(*text);
  if (voter_)
    is_member_ =
        voter_->vote().chosen.votes({{options_.host, token_}}, options_.launchers->host_of_worker) > 0;
}

// Another launcher takes the place of the keeper, or this one.
void SurvivalGuest::follow_successor(Lock& lock, const std::string& lost) {
  const LaunchersBoards& launchers = *options_.launchers;
  standing_.job_is_done = received_.job_is_done;
  standing_.restarts = received_.restarts;
  standing_.away = received_.away;
  const HostStanding standing = standing_;
  lock.unlock();
  Successor successor;
  try {
    successor = find_successor(*voter_, standing, succession_options());
    if (successor.board && !successor.board->peek(orders_key(token_)))
      fail(ErrorKind::PeerLost, "{} has taken its place and has gone on without this host",
           launchers.hosts[successor.host]);
  } catch (const Error& error) {
    fail(ErrorKind::PeerLost, "{}; {}", lost, error.what());
  }
  lock.lock();
  reports_.insert(reports_.begin(), sent_.begin(), sent_.end());
  received_.orders.clear();
  taken_ = 0;
  if (successor.agreement) {
    launchers.own.board->set(standing_key(options_.host), to_text(standing_));
    for (const auto& [key, value] : reports_) launchers.own.board->set(key, value);
    reports_.clear();
    election_ = std::move(successor.agreement);
    is_elected_ = true;
    return;
  }
  board_ = successor.board;
  keeper_ = "the launcher of " + launchers.hosts[successor.host];
  launchers.own.board->set(comm::kKeeperKey, to_string(reached_));
}

// A launcher that has come again may vote in an epoch of which this one does not know yet if it is chosen.
std::optional<Address> SurvivalGuest::board_of(size_t host) const {
  const EpochVote& vote = voter_->vote();
  const auto in = [host](const EpochDecision& decision) {
    return host < decision.launchers.size() ? board_address_in(decision.launchers[host]) : std::nullopt;
  };
  const std::optional<Address> newer = vote.accepted ? in(vote.accepted->next) : std::nullopt;
  return newer ? newer : in(vote.chosen);
}

SuccessionOptions SurvivalGuest::succession_options() {
  const LaunchersBoards& launchers = *options_.launchers;
  return {.hosts = launchers.hosts,
          .host_of_worker = launchers.host_of_worker,
          .own_board = launchers.own.board,
          .connect = [this](size_t host) { return connect_to(host); },
          .timeout = options_.timeout,
          .sleep =
              [this](milliseconds time) {
                Lock lock(mutex_);
                if (changed_.wait_for(lock, time, [this] { return leaves_; })) throw Leaves();
              }};
}

// Returns nullptr if the launcher of this host does not answer, or has no vote.
std::shared_ptr<comm::Rendezvous> SurvivalGuest::connect_to(size_t host) {
  const std::optional<Address> address = board_of(host);
  if (!address) return nullptr;
  auto board = comm::try_tcp_rendezvous(
                   {.hosts = {address->host},
                    .port = static_cast<uint16_t>(address->port),
                    .credentials = {.secret = comm::members_secret(options_.launch, options_.secret)},
                    .holder = "the launcher of " + options_.launchers->hosts[host],
                    .timeout = std::min(options_.timeout, kAttemptToConnect),
                    .answer = options_.timeout})
                   .board;
  if (board) reached_ = *address;
  return board;
}

std::optional<EpochAgreement> SurvivalGuest::take_election() {
  const std::lock_guard lock(mutex_);
  return std::exchange(election_, std::nullopt);
}

void SurvivalGuest::report(const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    reports_.emplace_back(key, value);
  }
  changed_.notify_all();
}

void SurvivalGuest::add_variables(int worker, std::map<std::string, std::string>& variables) const {
  const auto* const launchers = options_.launchers ? &*options_.launchers : nullptr;
  variables[kMembersVariable] = launchers ? fmt::format("127.0.0.1:{}", launchers->own.port) : address_;
  variables[kLifeVariable] = std::to_string(life_of(worker));
}

int SurvivalGuest::life_of(int worker) const {
  const std::lock_guard lock(mutex_);
  return standing_.workers.at(static_cast<size_t>(worker - options_.first_worker)).life;
}

milliseconds SurvivalGuest::look_again() const { return kLookForOrders; }

void SurvivalGuest::ended(const EndedWorker& ended) {
  int life = 0;
  {
    const std::lock_guard lock(mutex_);
    entry_of(ended.worker).runs = false;
    life = entry_of(ended.worker).life;
  }
  report(ended_key({ended.worker, life}), to_text(ended));
}

void SurvivalGuest::stays_away(int worker) {
  ended({.worker = worker,
         .outcome = Outcome(SIGKILL),
         .text = fmt::format("worker/{} is not started again", worker)});
}

// A launcher that was told to end by a signal leaves the job, which goes on without its workers. For a
// failure the keeper has ended the job already.
void SurvivalGuest::stop(const JobEnd& end) {
  if (!end_) end_ = end;
}

// A launcher that leaves votes until the others go on without its workers.
bool SurvivalGuest::is_over() const {
  if (!end_) return false;
  const std::lock_guard lock(mutex_);
  return !voter_ || !end_->interrupted || received_.end || !is_member_ || !lost_.empty() || is_elected_;
}

std::vector<WorkerOrder> SurvivalGuest::look(const Say& say) {
  std::vector<WorkerOrder> orders;
  const std::lock_guard lock(mutex_);
  orders.assign(received_.orders.begin() + static_cast<int64_t>(taken_), received_.orders.end());
  taken_ = received_.orders.size();
  for (const WorkerOrder& order : orders) {
    if (order.what == WorkerOrder::What::Start) entry_of(order.worker) = {.life = order.life};
  }
  known_ = received_;
  if (end_) return orders;
  end_ = known_.end;
  const JobEnd alone{.exit_code = exit_code(ErrorKind::PeerLost),
                     .signal = SIGTERM,
                     .grace = kFailureGrace,
                     .comes_again = comes_again() && !is_member_};
  if (!end_ && known_.is_lost) {
    say(
        fmt::format("{} has heard nothing from here for {:g} s, and the others have gone on: "
                    "ending the tasks of this host",
                    keeper_, std::chrono::duration<double>(options_.timeout).count()));
    end_ = alone;
  } else if (!end_ && !lost_.empty()) {
    say(
        fmt::format("{}, which has the list of the workers, is lost ({}): ending the tasks of "
                    "this host",
                    keeper_, lost_));
    end_ = alone;
  }
  return orders;
}

}  // namespace tutti
