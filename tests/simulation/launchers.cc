#include "tests/simulation/launchers.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "tutti/base/error.h"

namespace tutti::simulation {
namespace {

using std::chrono::milliseconds;

constexpr Time kLook = 20 * kMillisecond;
constexpr Time kConnect = 100 * kMillisecond;

std::string token_of(size_t host) { return fmt::format("launcher {}", host); }

milliseconds in_milliseconds(Time time) { return milliseconds(time / kMillisecond); }

}  // namespace

LaunchersScenario draw_launchers(Random& random) {
  LaunchersScenario scenario;
  const auto hosts = static_cast<size_t>(random.draw(2, 6));
  for (size_t host = 0; host < hosts; ++host)
    scenario.workers.push_back(static_cast<int>(random.chance(0.5) ? 2 : random.draw(1, 4)));
  scenario.timeout = random.draw(200, 800) * kMillisecond;
  scenario.slowest = random.draw(1, 30) * kMillisecond;
  scenario.only_deaths = random.chance(0.3);
  scenario.faults = static_cast<int>(random.draw(1, scenario.only_deaths ? 3 : 8));
  scenario.calm_from = scenario.faults * (scenario.only_deaths ? 8 : 1) * scenario.timeout;
  return scenario;
}

// The board of a launcher as that launcher itself writes on it.
class Launchers::OwnBoard final : public comm::LocalRendezvous {
 public:
  explicit OwnBoard(std::function<void(const comm::Members&)> begun) : begun_(std::move(begun)) {}
  void set(const std::string& key, const std::string& value) override {
    if (key.starts_with("members/") && key != "members/0") begun_(comm::members_of(value));
    LocalRendezvous::set(key, value);
  }

 private:
  const std::function<void(const comm::Members&)> begun_;
};

// The board of one launcher as another one sees it. A request that is under way when a launcher is stopped is
// answered when that one goes on.
class Launchers::Link final : public comm::Rendezvous, public std::enable_shared_from_this<Link> {
 public:
  Link(Launchers& all, size_t from, size_t to, Time patience)
      : all_(all), from_(from), to_(to), patience_(patience) {}

  void set(const std::string& key, const std::string& value) override {
    call([key, value = sent(key, value)](comm::LocalRendezvous& board) { board.set(key, value); });
  }
  std::string get(const std::string& key, milliseconds /*timeout*/) override { return *peek(key); }
  std::optional<std::string> peek(const std::string& key) override {
    const auto found = std::make_shared<std::optional<std::string>>();
    call([key, found](comm::LocalRendezvous& board) { *found = board.peek(key); });
    return *found;
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    set(key, value);
    return value;
  }
  std::string hold(const std::string& key, const std::string& value) override { return set_once(key, value); }
  bool ended() const override { return false; }
  void be_patient() { patience_ = all_.scenario_.timeout; }

 private:
  struct Call {
    bool is_answered = false;
    bool is_refused = false;
  };

  // For Mistake::VotesAreForgotten.
  std::string sent(const std::string& key, const std::string& value) const {
    if (all_.mistake_ != Mistake::VotesAreForgotten || !key.starts_with("vote/")) return value;
    EpochVote vote = epoch_vote_of(value);
    if (vote.accepted && vote.accepted->term < vote.term) vote.accepted.reset();
    return to_text(vote);
  }

  void call(const std::function<void(comm::LocalRendezvous&)>& request) {
    Process& caller = all_.launcher(from_);
    if (gone_) fail(ErrorKind::PeerLost, "the board of host {} is gone", to_);
    const int64_t wait = caller.begin_wait();
    const auto state = std::make_shared<Call>();
    all_.world_.after(all_.delay(), [link = shared_from_this(), state, request, &caller, wait] {
      link->arrive(state, request, caller, wait);
    });
    all_.world_.after(patience_, [&caller, wait] { caller.wake(wait); });
    caller.wait();
    gone_ = !state->is_answered;
    if (state->is_refused) fail(ErrorKind::PeerLost, "the launcher of host {} is gone", to_);
    if (gone_) fail(ErrorKind::Timeout, "the launcher of host {} does not answer", to_);
  }

  void arrive(const std::shared_ptr<Call>& state, const std::function<void(comm::LocalRendezvous&)>& request,
              Process& caller, int64_t wait) {
    const bool is_heard = all_.reaches(from_, to_);
    if (!is_heard) return;
    Process& server = all_.launcher(to_);
    if (server.lives() && server.stopped())
      return all_.world_.after(5 * kMillisecond, [link = shared_from_this(), state, request, &caller, wait] {
        link->arrive(state, request, caller, wait);
      });
    if (server.lives()) {
      request(*all_.hosts_[to_].board);
      if (caller.lives()) all_.hosts_[to_].heard[from_] = all_.world_.now();
    }
    if (!all_.reaches(to_, from_)) return;
    all_.world_.after(all_.delay(), [state, &caller, wait, is_there = server.lives()] {
      (is_there ? state->is_answered : state->is_refused) = true;
      caller.wake(wait);
    });
  }

  Launchers& all_;
  const size_t from_;
  const size_t to_;
  Time patience_;
  bool gone_ = false;
};

Launchers::Launchers(uint64_t seed, Mistake mistake, bool prints)
    : mistake_(mistake), world_(seed, prints), scenario_(draw_launchers(world_.random())) {
  hosts_.resize(scenario_.workers.size());
  comm::Members& first = begun_[0];
  for (size_t worker = 0; worker < host_of_worker().size(); ++worker)
    first.by_rank.push_back({static_cast<int>(worker), 0});
  for (size_t host = 0; host < hosts_.size(); ++host) {
    expected_.insert(host);
    hosts_[host].board =
        std::make_shared<OwnBoard>([this, host](const comm::Members& members) { has_begun(host, members); });
    hosts_[host].launcher = std::make_unique<Process>(
        world_, comm::Member{static_cast<int>(host), 0}, [this, host](Process&) { program(host); },
        [](Process&) {});
  }
  plan_faults();
}

// Launchers that live end, so that their stacks are empty.
Launchers::~Launchers() {
  for (const Host& host : hosts_) host.launcher->kill();
}

std::vector<int> Launchers::host_of_worker() const {
  std::vector<int> hosts;
  for (size_t host = 0; host < scenario_.workers.size(); ++host)
    hosts.insert(hosts.end(), static_cast<size_t>(scenario_.workers[host]), static_cast<int>(host));
  return hosts;
}

void Launchers::program(size_t own) {
  EpochVote vote{.host = own, .token = token_of(own), .chosen = {.members = begun_.at(0)}};
  for (size_t host = 0; host < hosts_.size(); ++host) vote.chosen.launchers.push_back(token_of(host));
  EpochVoter voter(vote);
  try {
    if (own == 0) return keep(own, vote, EpochAgreement(vote, host_of_worker()));
    serve(own, voter);
  } catch (const Error& error) {
    world_.log("host {} ends: {}", own, error.what());
    hosts_[own].gives_up = true;
    ++result_.ended;
    if (mistake_ != Mistake::MinorityGoesOn) return;
    keep(own, voter.vote(), {});
  }
}

// SurvivalGuest::keep_in_touch().
void Launchers::serve(size_t own, EpochVoter& voter) {
  Process& process = launcher(own);
  auto board = connect(own, 0);
  hosts_[own].follows = 0;
  std::string seen;
  for (bool holds = false;;) {
    try {
      if (!board) fail(ErrorKind::PeerLost, "no answer");
      if (!holds) board->hold(host_key(own), token_of(own));
      holds = true;
      vote_on_proposal(voter, *board, seen);
      process.sleep(kLook);
    } catch (const Error& error) {
      if (!comm::is_loss(error)) throw;
      world_.log("host {} has lost the keeper of term {}: {}", own, voter.vote().term, error.what());
      Successor successor = find_successor(voter, {}, succession(own));
      if (successor.agreement) return keep(own, voter.vote(), *std::move(successor.agreement));
      board = successor.board;
      hosts_[own].follows = successor.host;
      if (!board->peek(orders_key(token_of(own))))
        fail(ErrorKind::PeerLost, "the others have gone on without this host");
    }
  }
}

SuccessionOptions Launchers::succession(size_t own) {
  SuccessionOptions options{.host_of_worker = host_of_worker(),
                            .own_board = hosts_[own].board,
                            .connect = [this, own](size_t host) { return connect(own, host); },
                            .timeout = in_milliseconds(scenario_.timeout)};
  for (size_t host = 0; host < hosts_.size(); ++host) options.hosts.push_back(fmt::format("host {}", host));
  options.now = [this] {
    return std::chrono::steady_clock::time_point(std::chrono::microseconds(world_.now()));
  };
  options.sleep = [this, own](milliseconds time) { launcher(own).sleep(time.count() * kMillisecond); };
  return options;
}

std::shared_ptr<comm::Rendezvous> Launchers::connect(size_t from, size_t to) {
  const auto link = std::make_shared<Link>(*this, from, to, kConnect);
  try {
    link->peek("hello");
  } catch (const Error&) {
    return nullptr;
  }
  link->be_patient();
  return link;
}

// Which launchers a keeper can reach, or "". One that was lost stays so.
std::vector<std::string> Launchers::present(size_t own, std::set<size_t>& lost) const {
  std::vector<std::string> all;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (host != own) {
      const auto heard = hosts_[own].heard.find(host);
      const Time last = heard == hosts_[own].heard.end() ? 0 : heard->second;
      const bool is_silent = world_.now() - last > scenario_.timeout;
      const bool is_gone = !launcher(host).lives() && reaches(host, own);
      if (is_silent || is_gone) lost.insert(host);
    }
    all.push_back(lost.contains(host) ? "" : token_of(host));
  }
  return all;
}

// SurvivalKeeper: after the first term, only those that have voted are there.
void Launchers::keep(size_t own, const EpochVote& vote, EpochAgreement agreement) {
  const bool succeeds = own > 0 || agreement.term() > 0;
  const comm::Members newest =
      succeeds
          ? agreement.unfinished()
                .value_or(vote.chosen.members.epoch > agreement.chosen().members.epoch ? vote.chosen
                                                                                       : agreement.chosen())
                .members
          : begun_.at(0);
  world_.log("host {} keeps the list in term {} from epoch {} on", own, agreement.term(), newest.epoch);
  if (succeeds) ++result_.successions;
  std::set<size_t> lost;
  for (size_t host = 0; host < hosts_.size() && succeeds; ++host) {
    if (host != own && agreement.token_of(host).empty()) lost.insert(host);
    if (!lost.contains(host)) hosts_[own].board->set(orders_key(token_of(host)), "");
  }
  const std::vector<int> hosts = host_of_worker();
  std::vector<MembersKeeper::Standing> standing;
  for (size_t worker = 0; worker < hosts.size(); ++worker)
    standing.push_back({.is_there = newest.rank_of({static_cast<int>(worker), 0}).has_value()});
  const auto timeout = in_milliseconds(scenario_.timeout);
  MembersKeeper keeper = succeeds ? MembersKeeper(newest, standing, 1, timeout, hosts)
                                  : MembersKeeper(static_cast<int>(hosts.size()), 1, timeout, hosts);
  if (mistake_ == Mistake::KeeperDecidesAlone) agreement = {};
  KeeperBoard keeper_board(keeper, hosts_[own].board, std::move(agreement));
  hosts_[own].board->set(comm::kKeeperKey, comm::kHere);
  hosts_[own].follows = own;
  std::set<int> known;
  while (!keeper.ended()) {
    const std::vector<std::string> launchers = present(own, lost);
    for (size_t worker = 0; worker < hosts.size(); ++worker) {
      const auto number = static_cast<int>(worker);
      const auto host = static_cast<size_t>(hosts[worker]);
      const bool is_dead = lost.contains(host) || hosts_[host].dead_workers.contains(number);
      if (keeper_board.is_open() || !is_dead || !known.insert(number).second) continue;
      keeper.lost(number, MembersKeeper::Then::StaysAway);
    }
    keeper_board.look(MembersKeeper::Time(std::chrono::microseconds(world_.now())), launchers);
    launcher(own).sleep(keeper_board.is_open() ? 5 * kMillisecond : kLook);
  }
  fail(ErrorKind::PeerLost, "{}", keeper.epochs().back().end);
}

// Whichever launcher publishes an epoch: all publish the same members.
void Launchers::has_begun(size_t host, const comm::Members& members) {
  if (!members.end.empty()) return;
  world_.log("host {} publishes epoch {}: {} members", host, members.epoch, members.by_rank.size());
  const auto [known, is_new] = begun_.emplace(members.epoch, members);
  if (known->second.by_rank != members.by_rank)
    world_.violate("two epochs have the number {}: one with {} and one with {} members", members.epoch,
                   known->second.by_rank.size(), members.by_rank.size());
  const auto before = begun_.find(members.epoch - 1);
  if (is_new && before != begun_.end() && !before->second.rank_of(members.by_rank.front()))
    world_.violate("rank 0 of epoch {} was not a member before", members.epoch);
  // The others may not know yet that they have agreed.
  if (!is_new || scenario_.only_deaths || world_.now() > scenario_.calm_from || !world_.random().chance(0.3))
    return;
  world_.after(world_.random().draw(0, kLook), [this, host] { launcher(host).kill(); });
}

void Launchers::plan_faults() {
  for (int fault = 0; fault < scenario_.faults; ++fault) {
    const Time span = scenario_.calm_from / scenario_.faults;
    const Time at = scenario_.only_deaths
                        ? (fault + 1) * span - world_.random().draw(0, scenario_.timeout / 10)
                        : world_.random().draw(0, scenario_.calm_from);
    world_.at(at, [this] { fail_once(); });
  }
}

void Launchers::fail_once() {
  Random& random = world_.random();
  const auto host = static_cast<size_t>(random.draw(0, static_cast<int64_t>(hosts_.size()) - 1));
  const size_t victim = random.chance(0.4) ? hosts_[host].follows.value_or(host) : host;
  if (scenario_.only_deaths || random.chance(0.3)) {
    if (!launcher(victim).lives()) return;
    world_.log("host {} dies", victim);
    launcher(victim).kill();
    return expect_after_death(victim);
  }
  if (random.chance(0.3)) return cut();
  if (random.chance(0.5)) return launcher(victim).stop(random.draw(kMillisecond, 3 * scenario_.timeout));
  const auto all = host_of_worker();
  const auto worker = static_cast<int>(random.draw(0, static_cast<int64_t>(all.size()) - 1));
  world_.log("worker/{} dies", worker);
  hosts_[static_cast<size_t>(all[static_cast<size_t>(worker)])].dead_workers.insert(worker);
}

// Some hosts do not hear the others for a while, and sometimes the others do not hear them either.
void Launchers::cut() {
  Random& random = world_.random();
  std::vector<std::pair<size_t, size_t>> links;
  const bool both = random.chance(0.6);
  const auto side = static_cast<uint64_t>(random.draw(1, (1 << hosts_.size()) - 2));
  for (size_t from = 0; from < hosts_.size(); ++from) {
    for (size_t to = 0; to < hosts_.size(); ++to) {
      const bool leaves = (side >> from & 1U) != 0 && (side >> to & 1U) == 0;
      const bool enters = (side >> from & 1U) == 0 && (side >> to & 1U) != 0;
      if (leaves || (both && enters)) links.emplace_back(from, to);
    }
  }
  world_.log("{} links are cut", links.size());
  cut_.insert(links.begin(), links.end());
  world_.after(random.draw(10 * kMillisecond, 3 * scenario_.timeout), [this, links] {
    world_.log("{} links are healed", links.size());
    for (const auto& link : links) cut_.erase(link);
  });
}

// With deaths alone: more than half of the last epoch's workers go on, or half of them with the keeper.
void Launchers::expect_after_death(size_t dead) {
  if (!expected_.contains(dead)) return;
  const auto workers_of = [this](const std::set<size_t>& hosts) {
    int sum = 0;
    for (const size_t host : hosts) sum += scenario_.workers[host];
    return sum;
  };
  const int before = workers_of(expected_);
  expected_.erase(dead);
  const int twice = 2 * workers_of(expected_);
  if (twice < before || (twice == before && dead == expected_keeper_)) expected_.clear();
  while (!expected_.empty() && !expected_.contains(expected_keeper_))
    expected_keeper_ = (expected_keeper_ + 1) % hosts_.size();
}

Launchers::Result Launchers::run() {
  const Time end = scenario_.calm_from + 8 * scenario_.timeout + kSecond;
  while (!world_.violation() && world_.now() < end && world_.next()) {
  }
  if (!world_.violation()) check_end();
  result_.violation = world_.violation();
  result_.log_hash = world_.log_hash();
  result_.epochs = static_cast<int64_t>(begun_.size());
  return result_;
}

void Launchers::check_end() {
  std::set<size_t> living;
  std::set<size_t> keepers;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (!launcher(host).lives()) continue;
    living.insert(host);
    if (hosts_[host].follows == host) keepers.insert(host);
  }
  if (keepers.size() > 1) world_.violate("{} launchers keep the list in the end", keepers.size());
  for (const size_t host : living) {
    if (keepers.empty() || !keepers.contains(hosts_[host].follows.value_or(host)))
      world_.violate("host {} follows a launcher that does not keep the list", host);
  }
  if (scenario_.only_deaths && living != expected_)
    world_.violate("{} hosts go on in the end, and {} should", living.size(), expected_.size());
  if (living.empty()) return;
  for (const comm::Member& member : begun_.rbegin()->second.by_rank) {
    const auto host = static_cast<size_t>(host_of_worker()[static_cast<size_t>(member.worker)]);
    if (!living.contains(host))
      world_.violate("worker/{} of a lost host is a member in the end", member.worker);
  }
}

}  // namespace tutti::simulation
