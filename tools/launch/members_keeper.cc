#include "tools/launch/members_keeper.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace tutti {

namespace {

// A member that calls Late has waited for --timeout already. The others have waited equally long; this is the
// time for their calls to arrive.
constexpr std::chrono::milliseconds kLateGrace{1000};

}  // namespace

MembersKeeper::MembersKeeper(int workers, int min, std::chrono::milliseconds timeout, std::vector<int> hosts,
                             std::optional<int> first)
    : min_(min),
      timeout_(timeout),
      hosts_(std::move(hosts)),
      first_(first.value_or(workers)),
      workers_(static_cast<size_t>(workers)) {
  comm::Members members;
  for (int worker = 0; worker < first_; ++worker) members.by_rank.push_back({worker, 0});
  for (int worker = first_; worker < workers; ++worker)
    workers_[static_cast<size_t>(worker)].state = State::Gone;
  epochs_.push_back(std::move(members));
}

MembersKeeper::MembersKeeper(comm::Members newest, const std::vector<Standing>& workers, int min,
                             std::chrono::milliseconds timeout, std::vector<int> hosts)
    : min_(min),
      timeout_(timeout),
      hosts_(std::move(hosts)),
      first_(static_cast<int>(workers.size())),
      connects_anew_(true) {
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    const comm::Member present{static_cast<int>(worker), workers[worker].life};
    const State state = newest.rank_of(present) ? State::Runs : State::ComesBack;
    workers_.push_back({.life = present.life, .state = workers[worker].is_there ? state : State::Gone});
  }
  epochs_.push_back(std::move(newest));
}

void MembersKeeper::lost(int worker, Then then) {
  Worker& lost = workers_.at(static_cast<size_t>(worker));
  std::erase_if(joiners_, [worker](const comm::Member& joiner) { return joiner.worker == worker; });
  evicted_.erase(worker);
  lost.state = then == Then::ComesBack ? State::ComesBack : State::Gone;
  if (then == Then::ComesBack) ++lost.life;
}

void MembersKeeper::ended_well(int worker) {
  const bool was_member = is_member(worker);
  lost(worker, Then::StaysAway);
  if (!was_member) return;
  workers_[static_cast<size_t>(worker)].state = State::EndedWell;
  finish(fmt::format("worker/{} has ended already", worker));
}

bool MembersKeeper::returns(int worker) {
  Worker& entry = workers_.at(static_cast<size_t>(worker));
  if (entry.state != State::Gone || finished() || ended()) return false;
  entry = {.life = entry.life + 1, .state = State::ComesBack};
  return true;
}

void MembersKeeper::finish(const std::string& why) {
  if (finished_.empty()) finished_ = why;
}

void MembersKeeper::give_up(const std::string& why) {
  epochs_.back() = {.epoch = newest().epoch, .end = why};
}

void MembersKeeper::called(const comm::Member& member, const comm::Call& call, Time now) {
  if (member.worker < 0 || member.worker >= static_cast<int>(workers_.size()) || !lives(member)) return;
  if (newest().rank_of(member)) {
    if (call.why == comm::Call::Why::Joins || call.epoch != newest().epoch) return;
    if (!called_.insert(member.worker).second) return;
    const Time limit = now + (call.why == comm::Call::Why::Late ? kLateGrace : timeout_);
    call_by_ = std::min(call_by_.value_or(limit), limit);
    return;
  }
  const bool asks = call.why == comm::Call::Why::Joins && comes_back(member.worker);
  if (asks && std::find(joiners_.begin(), joiners_.end(), member) == joiners_.end())
    joiners_.push_back(member);
}

void MembersKeeper::tick(Time now) {
  if (ended()) return;
  const bool lost = somebody_is_lost();
  if (finished()) {
    const bool tells_joiners = !joiners_.empty() && !has_too_few_;
    if (lost || !called_.empty() || tells_joiners) end(finished_);
  } else if (lost || connects_anew_ || all_have_called()) {
    const int left = this->left();
    if (left == 0) {
      end("none of the workers that trained is left");
    } else if (left + (begun_ ? static_cast<int>(joiners_.size()) : 0) >= min_) {
      begin_next();
    } else if (most_possible() < min_) {
      finish(fmt::format("{} of {} workers {} left, fewer than --min {}", left, started(),
                         left == 1 ? "is" : "are", min_));
      has_too_few_ = true;
      begun_ ? begin_next() : end(finished_);
    }
  } else if (call_by_ && now >= *call_by_) {
    evict_silent();
  }
}

std::vector<comm::Member> MembersKeeper::take_evicted() { return std::exchange(new_evicted_, {}); }

std::optional<uint64_t> MembersKeeper::wanted_change() const {
  const bool wanted = somebody_can_join() && !finished() && !ended() && !somebody_is_lost();
  return wanted ? std::optional(newest().epoch) : std::nullopt;
}

bool MembersKeeper::is_changing() const {
  return !ended() &&
         (somebody_can_join() || !called_.empty() || connects_anew_ || (somebody_is_lost() && !finished()));
}

bool MembersKeeper::is_member(int worker) const {
  const comm::Member present{worker, at(worker).life};
  return lives(present) && newest().rank_of(present);
}

bool MembersKeeper::trained_last(int worker) const {
  const auto last = std::find_if(epochs_.rbegin(), epochs_.rend(),
                                 [](const comm::Members& epoch) { return epoch.end.empty(); });
  return last != epochs_.rend() && last->rank_of({worker, at(worker).life}).has_value();
}

std::vector<comm::Member> MembersKeeper::possible_callers() const {
  std::vector<comm::Member> callers;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const bool may_call = workers_[i].state == State::Runs || workers_[i].state == State::ComesBack;
    if (may_call) callers.push_back({static_cast<int>(i), workers_[i].life});
  }
  return callers;
}

// Returns true if the worker has not ended, or only after the training, and is in this life.
bool MembersKeeper::lives(const comm::Member& member) const {
  return at(member.worker).life == member.life && at(member.worker).state != State::Gone;
}

std::vector<comm::Member> MembersKeeper::members_left() const {
  std::vector<comm::Member> left;
  for (const comm::Member& member : newest().by_rank) {
    if (lives(member) && !is_evicted(member.worker)) left.push_back(member);
  }
  return left;
}

bool MembersKeeper::somebody_is_lost() const {
  const auto& members = newest().by_rank;
  return std::any_of(members.begin(), members.end(),
                     [this](const comm::Member& member) { return !lives(member); });
}

bool MembersKeeper::all_have_called() const {
  const auto& members = newest().by_rank;
  return std::all_of(members.begin(), members.end(),
                     [this](const comm::Member& member) { return called_.contains(member.worker); });
}

int MembersKeeper::started() const {
  const auto later = std::count_if(workers_.begin() + first_, workers_.end(),
                                   [](const Worker& worker) { return worker.life > 0; });
  return first_ + static_cast<int>(later);
}

// The number of members that the next epoch could have if all workers that may come back did. Before the
// training they get no place.
int MembersKeeper::most_possible() const {
  if (!begun_) return left();
  const auto come_back = std::count_if(workers_.begin(), workers_.end(),
                                       [](const Worker& worker) { return worker.state == State::ComesBack; });
  return left() + static_cast<int>(come_back) + static_cast<int>(evicted_.size());
}

void MembersKeeper::begin_next() {
  comm::Members next{.epoch = newest().epoch + 1, .by_rank = members_left(), .is_last = has_too_few_};
  const auto joiners = begun_ ? std::exchange(joiners_, {}) : std::vector<comm::Member>();
  for (const comm::Member& joiner : joiners) {
    workers_[static_cast<size_t>(joiner.worker)].state = State::Runs;
    next.by_rank.push_back(joiner);
  }
  join_hosts(next.by_rank);
  epochs_.push_back(std::move(next));
  called_.clear();
  call_by_.reset();
  connects_anew_ = false;
}

// Puts the members of each host after the first of them, so that the ranks of a host are neighbours.
void MembersKeeper::join_hosts(std::vector<comm::Member>& members) const {
  if (hosts_.empty()) return;
  const auto host_of = [this](const comm::Member& member) {
    return hosts_[static_cast<size_t>(member.worker)];
  };
  for (auto from = members.begin(); from != members.end();) {
    const int host = host_of(*from);
    from = std::stable_partition(from, members.end(),
                                 [&](const comm::Member& member) { return host_of(member) == host; });
  }
}

void MembersKeeper::end(const std::string& why) {
  epochs_.push_back({.epoch = newest().epoch + 1, .end = why});
  joiners_.clear();
}

void MembersKeeper::evict_silent() {
  for (const comm::Member& member : newest().by_rank) {
    if (called_.contains(member.worker) || !evicted_.insert(member.worker).second) continue;
    new_evicted_.push_back(member);
  }
}

}  // namespace tutti
