#include "tests/simulation/job.h"

#include <algorithm>
#include <chrono>

#include "tutti/base/error.h"

namespace tutti::simulation {
namespace {

using comm::Member;
using Then = MembersKeeper::Then;

MembersKeeper::Time time_of(Time time) { return MembersKeeper::Time(std::chrono::microseconds(time)); }

std::chrono::milliseconds milliseconds_of_time(Time time) {
  return std::chrono::milliseconds(time / kMillisecond);
}

// For Mistake::JoinersFirst: the list as its readers get it.
class BoardOfJob final : public comm::LocalRendezvous {
 public:
  explicit BoardOfJob(Mistake mistake) : mistake_(mistake) {}
  void set(const std::string& key, const std::string& value) override {
    if (mistake_ != Mistake::JoinersFirst || !key.starts_with("members/"))
      return LocalRendezvous::set(key, value);
    comm::Members members = comm::members_of(value);
    std::stable_sort(members.by_rank.begin(), members.by_rank.end(),
                     [](const Member& a, const Member& b) { return a.life > b.life; });
    LocalRendezvous::set(key, to_text(members));
  }

 private:
  const Mistake mistake_;
};

}  // namespace

const char* name_of(Result::End end) {
  switch (end) {
    case Result::End::Complete:
      return "complete";
    case Result::End::TooFew:
      return "too few";
    case Result::End::NoState:
      return "no state";
    case Result::End::AtStart:
      return "lost at the start";
    case Result::End::AtTheEnd:
      return "lost at the end";
    case Result::End::Violation:
      return "violation";
  }
  return "";
}

Job::Job(uint64_t seed, Mistake mistake, bool prints)
    : mistake_(mistake),
      world_(seed, prints),
      scenario_(draw_scenario(world_.random())),
      checks_(world_, scenario_.program.lanes, scenario_.program.steps()),
      network_(world_, scenario_.network, mistake),
      board_(std::make_shared<BoardOfJob>(mistake)),
      keeper_(scenario_.workers, scenario_.min, milliseconds_of_time(scenario_.program.timeout),
              hosts_of_workers(), scenario_.first),
      keeper_board_(keeper_, board_),
      slots_(static_cast<size_t>(scenario_.workers)) {
  for (int worker = 0; worker < scenario_.first; ++worker) {
    wanted_.insert(worker);
    start(worker, 0);
  }
  plan_faults();
  world_.after(scenario_.look_every, [this] { look(); });
}

// Processes that live end, so that their stacks are empty.
Job::~Job() {
  failed_ = failed_.value_or(Result::End::Violation);
  for (Slot& slot : slots_) {
    for (const auto& process : slot.lives) process->kill();
  }
}

void Job::start(int worker, int life) {
  Slot& slot = slots_[static_cast<size_t>(worker)];
  const size_t index = slot.lives.size();
  slot.is_seen = false;
  slot.workers.emplace_back();
  slot.lives.push_back(std::make_unique<Process>(
      world_, Member{worker, life}, [this, index](Process& process) { program(process, index); },
      [this](Process& process) { has_ended(process); }));
  world_.log("{} is started", slot.newest().name());
}

void Job::program(Process& process, size_t life) {
  const Surroundings around{.program = scenario_.program,
                            .network = network_,
                            .memories = memories_,
                            .checks = checks_,
                            .mistake = mistake_,
                            .least = scenario_.min,
                            .place = [this](Process& at, const char* place) { at_place(at, place); }};
  auto& worker = slots_[static_cast<size_t>(process.self().worker)].workers[life];
  worker = std::make_unique<Worker>(process, around,
                                    std::make_shared<SimulatedBoard>(board_, process, scenario_.board));
  worker->run();
}

// The launcher has a descriptor of the process, and notices its end soon.
void Job::has_ended(Process& process) {
  network_.ended(process, process.outcome().killed());
  const Member self = process.self();
  const auto index = static_cast<int>(slots_[static_cast<size_t>(self.worker)].lives.size()) - 1;
  world_.after(world_.random().draw(0, 5 * kMillisecond),
               [this, self, index] { notice_end(self.worker, index); });
}

// SurvivalKeeper::ended().
void Job::notice_end(int worker, int life) {
  if (failed_) return;
  Slot& slot = slots_[static_cast<size_t>(worker)];
  if (life != static_cast<int>(slot.lives.size()) - 1) return;  // given up before, by a mistake
  slot.is_seen = true;
  const Process& process = slot.newest();
  checks_.given_up(process.self());
  const Outcome& outcome = process.outcome();
  if (outcome.interrupted()) ++result_.left;
  if (outcome.success()) {
    ++complete_;
    keeper_.ended_well(worker);
  } else if (may_lose(keeper_, worker, outcome)) {
    if (mistake_ == Mistake::SameLife && keeper_.is_member(worker) && restarts_used_ < scenario_.restarts) {
      ++restarts_used_;
      start(worker, process.self().life);
      return;
    }
    lost_.push_back(worker);
  } else {
    const Result::End end = why_failed(process);
    keeper_.lost(worker, Then::StaysAway);
    keeper_.finish(fmt::format("{} {}", process.name(), outcome.describe()));
    return fail_job(end, process.error());
  }
  survive();
}

// The launcher looks at the board now and then.
void Job::look() {
  if (is_over()) return;
  survive();
  world_.after(scenario_.look_every, [this] { look(); });
}

// SurvivalKeeper::settle_losses().
void Job::survive() {
  if (failed_) return;
  const std::vector<int> lost = std::exchange(lost_, {});
  std::vector<bool> was_member;
  int restarts = scenario_.restarts - restarts_used_;
  for (const int worker : lost) {
    was_member.push_back(keeper_.trained_last(worker));
    const bool again = !keeper_.finished() && wanted_.contains(worker) &&
                       !gone_hosts_.contains(host_of(worker)) && restarts-- > 0;
    keeper_.lost(worker, again ? Then::ComesBack : Then::StaysAway);
  }
  keeper_board_.look(time_of(world_.now()));
  for (; checked_epochs_ < keeper_.epochs().size(); ++checked_epochs_) {
    comm::Members after = keeper_.epochs()[checked_epochs_];
    if (after.end.empty()) after = comm::members_of(*board_->peek(comm::members_key(checked_epochs_)));
    world_.log("epoch {} has {} members{}", checked_epochs_, after.by_rank.size(),
               after.end.empty() ? "" : "; the job ends: " + after.end);
    checks_.began(keeper_.epochs()[checked_epochs_ - 1], after);
  }
  for (size_t i = 0; i < lost.size(); ++i) {
    const bool has_too_few = keeper_.has_too_few() || !keeper_.finished();
    if (keeper_.has_too_few() || (keeper_.ended() && (was_member[i] || has_too_few)))
      return fail_job(has_too_few ? Result::End::TooFew : Result::End::AtTheEnd, keeper_.why_over());
    if (keeper_.comes_back(lost[i])) start_again_after_pause(lost[i]);
  }
  for (const Member& evicted : keeper_.take_evicted()) {
    ++result_.evicted;
    Process* process = &slots_[static_cast<size_t>(evicted.worker)].newest();
    world_.log("{} is evicted", process->name());
    if (mistake_ == Mistake::EvictedLives) continue;
    if (mistake_ == Mistake::EvictsCallers) {
      for (const Member& member : keeper_.epochs().back().by_rank) {
        Process& other = slots_[static_cast<size_t>(member.worker)].newest();
        if (other.lives() && !other.stopped() && !keeper_.is_evicted(member.worker)) process = &other;
      }
    }
    if (mistake_ == Mistake::StoppedIsDead) {
      lost_.push_back(evicted.worker);
      continue;
    }
    world_.after(world_.random().draw(0, kMillisecond), [process] { process->kill(); });
  }
  if (mistake_ == Mistake::StoppedIsDead && !lost_.empty()) survive();
}

void Job::start_again_after_pause(int worker) {
  ++restarts_used_;
  slots_[static_cast<size_t>(worker)].starts_again = true;
  const Time pause = world_.random().draw(0, scenario_.longest_pause);
  world_.after(pause, [this, worker] {
    Slot& slot = slots_[static_cast<size_t>(worker)];
    if (!std::exchange(slot.starts_again, false) || failed_) return;
    // SurvivalKeeper::stays_away(), or the host was lost meanwhile.
    if (keeper_.finished() || gone_hosts_.contains(host_of(worker)))
      return keeper_.lost(worker, Then::StaysAway);
    const bool one_life = mistake_ == Mistake::StoppedIsDead;
    start(worker, one_life ? 0 : keeper_.life_of(worker));
  });
}

// The launcher kills all others. Whether the job had to fail is checked first.
void Job::fail_job(Result::End end, const std::string& why) {
  if (failed_) return;
  world_.log("the job fails, {}: {}", name_of(end), why);
  const auto& epochs = keeper_.epochs();
  const auto& members = epochs[epochs.size() - (keeper_.ended() ? 2 : 1)].by_rank;
  const bool may_join = board_->peek(comm::kFitKey).has_value();
  int left = 0;
  int members_left = 0;
  for (const Slot& slot : slots_) {
    if (!slot.has_begun()) continue;
    const Process& process = slot.newest();
    const bool lives = process.lives() && !keeper_.is_evicted(process.self().worker);
    const bool is_member = std::find(members.begin(), members.end(), process.self()) != members.end();
    if (lives && is_member) ++members_left;
    if ((lives && is_member) || (may_join && (lives || slot.starts_again))) ++left;
  }
  if (result_.kills + result_.stops == 0) world_.violate("a job without failures fails: {}", why);
  if (end == Result::End::TooFew && left >= scenario_.min && members_left > 0)
    world_.violate("{} workers are left or come back, {} are enough: {}", left, scenario_.min, why);
  if (end == Result::End::NoState && someone_lives_with_state())
    world_.violate("a worker lives that has the state: {}", why);
  if (end == Result::End::AtTheEnd && complete_ == 0) world_.violate("no worker has ended yet: {}", why);
  if (end == Result::End::Violation) world_.violate("a worker that could have gone on fails: {}", why);
  failed_ = end;
}

// Why this process could not go on.
Result::End Job::why_failed(const Process& process) {
  const Slot& slot = slots_[static_cast<size_t>(process.self().worker)];
  const int code = process.outcome().exit_code();
  if (code == exit_code(ErrorKind::DataLoss)) return Result::End::NoState;
  const bool misses = code == exit_code(ErrorKind::PeerLost) || code == exit_code(ErrorKind::Timeout);
  if (!misses) return Result::End::Violation;
  const bool has_all = keeper_.finished() && !keeper_.has_too_few();
  if (keeper_.ended()) return has_all ? Result::End::AtTheEnd : Result::End::TooFew;
  const Phase phase = slot.workers.back()->phase();
  if (phase == Phase::Starts && process.self().life == 0) return Result::End::AtStart;
  return Result::End::Violation;
}

bool Job::someone_lives_with_state() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.has_begun() && slot.newest().lives() && slot.workers.back() &&
           slot.workers.back()->has_state();
  });
}

bool Job::is_over() const {
  return failed_ || world_.violation() ||
         std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.is_over(); });
}

Result Job::run() {
  constexpr Time kBound = 60 * kSecond;
  constexpr int64_t kMostEpochs = 1000;
  const Time limit = scenario_.calm_from + kBound + 10 * scenario_.program.timeout;
  while (!is_over() && world_.next()) {
    if (world_.now() > limit || static_cast<int64_t>(keeper_.epochs().size()) > kMostEpochs)
      world_.violate("no end although nothing has failed for {} s; {} of {} steps, epoch {}",
                     (world_.now() - scenario_.calm_from) / kSecond, checks_.committed(),
                     scenario_.program.steps(), keeper_.epochs().size() - 1);
  }
  check_end();
  result_.end = world_.violation() ? Result::End::Violation : failed_.value_or(Result::End::Complete);
  result_.violation = world_.violation().value_or("");
  result_.log_hash = world_.log_hash();
  result_.events = world_.events();
  result_.epochs = static_cast<int64_t>(keeper_.epochs().size());
  result_.joined = checks_.joined();
  result_.taken_over = checks_.taken_over();
  result_.steps = checks_.committed();
  return result_;
}

// Without a failure of the job, the members of the last epoch have ended well, except those that were killed
// after another had ended.
void Job::check_end() {
  if (failed_ || world_.violation()) return;
  if (checks_.committed() != scenario_.program.steps())
    world_.violate("the job has ended after {} of {} steps", checks_.committed(), scenario_.program.steps());
  if (std::none_of(slots_.begin(), slots_.end(),
                   [](const Slot& slot) { return slot.has_begun() && slot.newest().outcome().success(); }))
    world_.violate("no worker has ended well");
}

}  // namespace tutti::simulation
