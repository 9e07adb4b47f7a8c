#include "tools/launch/survival_keeper.h"

#include <algorithm>
#include <csignal>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/config.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/cluster/identity.h"
#include "tutti/transport/job_board.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The interval between two looks at the board if nothing happens here.
constexpr milliseconds kLook{500};
constexpr milliseconds kLookWithHosts{20};
// The interval while workers wait for the next list of members.
constexpr milliseconds kLookSoon{5};
// How long a launcher that was stopped does nothing but hear which launchers have left it meanwhile.
constexpr milliseconds kHear{200};

int workers_of(const std::vector<SurvivalHost>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const SurvivalHost& host) { return sum + host.workers; });
}

// Returns what the launcher of this host knows, or nothing if it has not voted.
HostStanding standing_on(comm::Rendezvous& board, const EpochAgreement& agreement, size_t host) {
  const auto text = board.peek(standing_key(host));
  return text && !agreement.token_of(host).empty() ? host_standing_of(*text) : HostStanding();
}

// Returns true if the worker has ended with an error of its own, which would come back.
bool has_failed(const Outcome& outcome) {
  return !outcome.killed() && !outcome.interrupted() && !misses_others(outcome);
}

std::set<int> without(const std::vector<int>& away, int workers) {
  std::set<int> wanted;
  for (int worker = 0; worker < workers; ++worker) wanted.insert(wanted.end(), worker);
  for (const int worker : away) wanted.erase(worker);
  return wanted;
}

comm::Members first_members(const std::vector<SurvivalHost>& hosts) {
  comm::Members first;
  for (int worker = 0; worker < workers_of(hosts); ++worker) first.by_rank.push_back({worker, 0});
  return first;
}

// The keeper of a job that begins, or one that takes the place of another. The workers of a launcher that has
// not voted are lost with the first look().
MembersKeeper keeper_of(const SurvivalOptions& options, comm::Rendezvous& board,
                        const EpochAgreement& agreement) {
  const std::vector<int> hosts = hosts_by_worker(options.hosts);
  if (agreement.term() == 0)
    return {workers_of(options.hosts), options.min, options.timeout, hosts, options.first};
  const comm::Members newest = agreement.unfinished().value_or(agreement.chosen()).members;
  std::vector<MembersKeeper::Standing> workers(hosts.size(), {.is_there = false});
  for (const comm::Member& member : newest.by_rank)
    workers[static_cast<size_t>(member.worker)] = {.life = member.life};
  size_t first = 0;
  for (size_t host = 0; host < options.hosts.size(); ++host) {
    const HostStanding standing = standing_on(board, agreement, host);
    for (size_t i = 0; i < standing.workers.size(); ++i) {
      MembersKeeper::Standing& worker = workers.at(first + i);
      const auto& [life, runs] = standing.workers[i];
      const bool is_member = newest.rank_of({static_cast<int>(first + i), life}).has_value();
      worker = {.life = std::max(life, 0), .is_there = runs || is_member};
    }
    first += static_cast<size_t>(options.hosts[host].workers);
  }
  return {newest, workers, options.min, options.timeout, hosts};
}

}  // namespace

std::vector<int> hosts_by_worker(const std::vector<SurvivalHost>& hosts) {
  std::vector<int> all;
  for (size_t host = 0; host < hosts.size(); ++host)
    all.insert(all.end(), static_cast<size_t>(hosts[host].workers), static_cast<int>(host));
  return all;
}

comm::ServedRendezvous serve_members_board(const SurvivalOptions& options) {
  return comm::serve_tcp_rendezvous(
      {.host = options.listen_at,
       .port = options.port,
       .credentials = {.secret = comm::members_secret(options.launch, options.secret)},
       .silence = options.timeout});
}

SurvivalKeeper::SurvivalKeeper(const SurvivalOptions& options)
    : SurvivalKeeper(options, serve_members_board(options), {}) {}

SurvivalKeeper::SurvivalKeeper(const SurvivalOptions& options, comm::ServedRendezvous served,
                               EpochAgreement agreement)
    : options_(options),
      served_(std::move(served)),
      elected_(std::move(agreement)),
      keeper_(keeper_of(options, *served_.board, elected_)),
      keeper_board_(keeper_, served_.board, elected_),
      come_by_(Clock::now() + options.timeout),
      restarts_(options.restarts_before),
      hosts_(options.hosts.size()),
      takes_over_(elected_.term() > 0) {
  served_.board->set(comm::kLeastKey, std::to_string(options.min));
  for (int worker = 0; worker < workers_of(options.hosts); ++worker) {
    if (keeper_.is_there(worker)) running_.insert(worker);
  }
  wanted_ = running_;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    hosts_[host].name = options.hosts[host].name;
    hosts_[host].slots = options.hosts[host].workers;
  }
  for (size_t host = 0; host < hosts_.size() && takes_over_; ++host) {
    hosts_[host].token = host == options_.own ? "" : elected_.token_of(host);
    hosts_[host].has_come = true;
    const HostStanding standing = standing_on(*served_.board, elected_, host);
    restarts_ = std::max(restarts_, standing.restarts);
    if (standing.job_is_done) keeper_.finish("the training has ended");
    if (host == options_.own) wanted_ = without(standing.away, workers_of(options.hosts));
  }
  // A worker that starts late finds the first epoch, and that it is over.
  if (takes_over_) served_.board->set(comm::members_key(0), comm::to_text(first_members(options.hosts)));
  publish_orders();
  served_.board->set(comm::kKeeperKey, comm::kHere);
}

int SurvivalKeeper::first_worker() const { return options_.own ? first_worker_of(*options_.own) : 0; }

int SurvivalKeeper::first_worker_of(size_t host) const {
  return workers_of({options_.hosts.begin(), options_.hosts.begin() + static_cast<int64_t>(host)});
}

size_t SurvivalKeeper::host_of(int worker) const {
  size_t host = 0;
  while (first_worker_of(host + 1) <= worker) ++host;
  return host;
}

void SurvivalKeeper::add_variables(int worker, std::map<std::string, std::string>& variables) const {
  variables[kMembersVariable] = fmt::format("127.0.0.1:{}", served_.port);
  variables[kLifeVariable] = std::to_string(keeper_.life_of(worker));
}

milliseconds SurvivalKeeper::look_again() const {
  if (keeper_.is_changing() || keeper_board_.is_open()) return kLookSoon;
  return has_other_hosts() ? kLookWithHosts : kLook;
}

void SurvivalKeeper::ended(const EndedWorker& ended) {
  running_.erase(ended.worker);
  if (ended.outcome.success()) {
    keeper_.ended_well(ended.worker);
  } else if (end_ || (fails_ && ended.outcome.weight() == Outcome::kComplaint)) {
    keeper_.lost(ended.worker, MembersKeeper::Then::StaysAway);
  } else if (may_lose(keeper_, ended.worker, ended.outcome) ||
             (was_stopped() && misses_others(ended.outcome))) {
    lost_.push_back(ended);
  } else if (is_newcomer(ended.worker)) {
    lost_.push_back(ended);
    lost_.back().text += why_outside(ended.worker);
  } else {
    keeper_.lost(ended.worker, MembersKeeper::Then::StaysAway);
    keeper_.finish(fmt::format("worker/{} {}", ended.worker, ended.outcome.describe()));
    fail_job_for(ended);
  }
}

// Returns true if the others have not taken in this worker, and go on without it.
bool SurvivalKeeper::is_newcomer(int worker) const {
  const comm::Member member{worker, keeper_.life_of(worker)};
  return !keeper_.trained_last(worker) || served_.board->peek(comm::refused_key(member));
}

std::string SurvivalKeeper::why_outside(int worker) const {
  const auto why = served_.board->peek(comm::refused_key({worker, keeper_.life_of(worker)}));
  return why ? fmt::format(" and was not taken in ({})", *why) : " before it has come";
}

void SurvivalKeeper::stays_away(int worker) {
  running_.erase(worker);
  keeper_.lost(worker, MembersKeeper::Then::StaysAway);
}

void SurvivalKeeper::stop(const JobEnd& end) {
  served_.board->set(comm::kStopKey, "yes");  // no worker leaves alone
  if (end_ && end_->signal != 0) return;
  end_with(end);
  publish_orders();
}

void SurvivalKeeper::end_with(const JobEnd& end) {
  if (!end_ && options_.at_end) options_.at_end();
  end_ = end;
  end_->restarts = restarts_used();
}

std::vector<WorkerOrder> SurvivalKeeper::look(const Say& say) {
  if (std::exchange(takes_over_, false)) take_over(say);
  if (notices_stop()) say("this launcher was stopped for longer than the others wait");
  if (stopped_until_ && looked_at_ - *stopped_until_ < kHear) return {};
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (host != options_.own) look_at_host(host, say);
  }
  // If its own workers have given up meanwhile, that is not the end of the job.
  if (was_stopped() && !job_is_done() && !end_) keeper_board_.give_up_if_too_few(launchers());
  settle_losses(say);
  welcome_hosts();
  for (const comm::Member& joined : keeper_board_.take_joined()) {
    const int workers = keeper_.left();
    say(fmt::format("worker/{} has come{}: {} {} on", joined.worker,
                    keeper_.has_run_before(joined.worker) ? " back" : "", workers,
                    workers == 1 ? "goes" : "go"));
  }
  for (const comm::Member& evicted : keeper_.take_evicted())
    give({.what = WorkerOrder::What::Kill, .worker = evicted.worker, .life = evicted.life});
  look_for_scaling(say);
  finish_if_over(say);
  publish_orders();
  for (const std::string& text : std::exchange(to_say_, {})) say(text);
  return std::exchange(own_orders_, {});
}

// Returns true once after this process was stopped: its own workers have waited for it, and the other
// launchers may have gone on.
bool SurvivalKeeper::notices_stop() {
  const auto before = std::exchange(looked_at_, Clock::now());
  if (!has_other_hosts() || looked_at_ - before <= options_.timeout) return false;
  stopped_until_ = looked_at_;
  return true;
}

// Returns true for as long as a worker may fail for no other reason than that.
bool SurvivalKeeper::was_stopped() const {
  const auto now = Clock::now();
  return has_other_hosts() && (now - looked_at_ > options_.timeout ||
                               (stopped_until_ && now - *stopped_until_ <= options_.timeout));
}

// Handles workers that are lost, and what the others call. Waits until the launchers have agreed on the epoch
// before.
void SurvivalKeeper::settle_losses(const Say& say) {
  if (keeper_board_.is_open()) keeper_board_.look(Clock::now(), launchers());
  if (keeper_board_.is_open()) return;
  const std::vector<EndedWorker> lost = std::exchange(lost_, {});
  const auto fixed = served_.board->peek(comm::kFixedKey);
  std::vector<bool> was_member;
  int restarts = restarts_left();
  for (const EndedWorker& ended : lost) {
    was_member.push_back(keeper_.trained_last(ended.worker));
    if (fixed && was_member.back())
      keeper_.finish(fmt::format("the others cannot go on without worker/{}: {}", ended.worker, *fixed));
    const bool may_return = !end_ && !fixed && !job_is_done() && !ended.outcome.interrupted() &&
                            !has_failed(ended.outcome) && wanted_.contains(ended.worker) &&
                            is_connected(host_of(ended.worker));
    const bool again = may_return && restarts-- > 0;
    keeper_.lost(ended.worker, again ? MembersKeeper::Then::ComesBack : MembersKeeper::Then::StaysAway);
  }
  keeper_board_.look(Clock::now(), launchers());
  if (keeper_board_.has_given_up()) return end_here(say);
  for (size_t i = 0; i < lost.size(); ++i) {
    const bool ends_job = keeper_.has_too_few() || (keeper_.ended() && (was_member[i] || !job_is_done()));
    ends_job ? fail_job_for(lost[i]) : go_on_without(lost[i], say);
  }
  for (const EndedWorker& ended : lost) dismiss_if_refused(ended);
  const bool is_over = keeper_.has_too_few() || (keeper_.ended() && (fixed || !job_is_done()));
  if (!lost.empty() && is_over) say(fmt::format("the job ends: {}", keeper_.why_over()));
}

void SurvivalKeeper::go_on_without(const EndedWorker& lost, const Say& say) {
  const std::string text = fmt::format("{}; {}", lost.text, describe_rest());
  if (!keeper_.comes_back(lost.worker)) return say(text);
  const std::chrono::seconds pause = pauses_[lost.worker].next(std::chrono::duration<double>(lost.seconds));
  last_restart_[lost.worker] = keeper_.life_of(lost.worker);
  say(fmt::format("{}; restarting it: restart {} of {}{}", text, ++restarts_, options_.restarts,
                  describe_pause(pause)));
  running_.insert(lost.worker);
  give({.what = WorkerOrder::What::Start,
        .worker = lost.worker,
        .life = keeper_.life_of(lost.worker),
        .pause = pause});
}

// A launcher that has come again does nothing for the job if the others have taken in none of its workers.
void SurvivalKeeper::dismiss_if_refused(const EndedWorker& lost) {
  const size_t host = host_of(lost.worker);
  Host& entry = hosts_[host];
  entry.is_refused = entry.is_refused && has_failed(lost.outcome);
  const int first = first_worker_of(host);
  const auto runs = running_.lower_bound(first);
  const bool any_runs = runs != running_.end() && *runs < first + options_.hosts[host].workers;
  if (!entry.is_refused || any_runs || options_.launchers.empty() || !is_connected(host) || end_) return;
  give({.what = WorkerOrder::What::Refuse, .worker = lost.worker});
}

// The others may go on with the list: what becomes of the workers says nothing about the job.
void SurvivalKeeper::end_here(const Say& say) {
  if (end_) return;
  say(fmt::format("ending the tasks of this host: {}", keeper_.epochs().back().end));
  stop({.exit_code = exit_code(ErrorKind::PeerLost), .signal = SIGTERM, .grace = kFailureGrace});
}

// The launcher of the worker prints its last lines. This launcher ends the job now; or, if the worker is one
// of its own, as soon as its TaskGroup calls stop().
void SurvivalKeeper::fail_job_for(const EndedWorker& lost) {
  const size_t host = host_of(lost.worker);
  if (is_connected(host)) give({.what = WorkerOrder::What::Fail, .worker = lost.worker});
  if (host == options_.own) {
    fails_ = true;
  } else if (!end_) {
    to_say_.push_back(fmt::format("{}: ending the job on all hosts", lost.text));
    stop({.exit_code = lost.outcome.exit_code(), .signal = SIGTERM, .grace = failure_grace()});
  }
}

void SurvivalKeeper::give(const WorkerOrder& order) {
  const size_t host = host_of(order.worker);
  (host == options_.own ? own_orders_ : hosts_[host].orders.orders).push_back(order);
}

void SurvivalKeeper::finish_if_over(const Say& say) {
  if (end_ || !is_over()) return;
  if (!something_is_undone()) return end_with({});
  end_with({.exit_code = exit_code(ErrorKind::PeerLost)});
  say("a worker was lost when the others needed it no more: what it had to do alone, such as writing files, "
      "may be undone");
}

// After the last step nobody takes the place of a worker that is lost: what only it was to do, such as
// writing the report, is undone.
bool SurvivalKeeper::something_is_undone() const {
  uint64_t last = 0;
  for (const comm::Members& epoch : keeper_.epochs()) {
    if (epoch.end.empty()) last = epoch.epoch;
  }
  return last > 0 && served_.board->peek(comm::kEnteredKey) != std::to_string(last);
}

void SurvivalKeeper::publish_orders() {
  std::vector<int> away;
  for (int worker = 0; worker < keeper_.most(); ++worker)
    if (!wanted_.contains(worker) && !leave_with_host_.contains(worker)) away.push_back(worker);
  for (Host& host : hosts_) {
    if (host.token.empty()) continue;
    host.orders.job_is_done = job_is_done();
    host.orders.end = end_;
    host.orders.restarts = restarts_;
    host.orders.away = away;
    std::string text = to_text(host.orders);
    if (text == host.published) continue;
    served_.board->set(orders_key(host.token), text);
    host.published = std::move(text);
  }
}

std::string SurvivalKeeper::describe_rest() const {
  if (job_is_done()) return "it was no longer needed";
  const int left = keeper_.left();
  if (left >= options_.min) return fmt::format("the other {} {} on", left, left == 1 ? "goes" : "go");
  return fmt::format("{} of {} workers {} left and {} for others to come back", left, keeper_.started(),
                     left == 1 ? "is" : "are", left == 1 ? "waits" : "wait");
}

// Restarts of single workers since this start of the job, without those that have not joined.
int SurvivalKeeper::restarts_used() const {
  const auto& epochs = keeper_.epochs();
  int in_vain = 0;
  for (const auto& [worker, life] : last_restart_) {
    const comm::Member member{worker, life};
    const bool has_joined = std::any_of(epochs.begin(), epochs.end(), [&](const comm::Members& epoch) {
      return epoch.rank_of(member).has_value();
    });
    if (!has_joined) ++in_vain;
  }
  return restarts_ - options_.restarts_before - in_vain;
}

milliseconds survival_timeout(const Environment& environment) {
  constexpr const char* kVariable = "TUTTI_TIMEOUT";
  const std::string text = environment.get(kVariable).value_or("");
  if (text.empty()) return milliseconds_of(RunConfig().network.timeout);
  const auto seconds = parse_double(text);
  if (!seconds || !(*seconds > 0))
    fail(ErrorKind::InvalidArgument, "tutti run: {}='{}' is not a number of seconds above 0", kVariable,
         text);
  return milliseconds_of(*seconds);
}

}  // namespace tutti
