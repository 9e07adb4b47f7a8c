#include "tests/simulation/worker.h"

#include <utility>

#include "tutti/lanes/lanes.h"
#include "tutti/train/change.h"

namespace tutti::simulation {
namespace {

using comm::is_loss;
using comm::Member;
using comm::Members;

// For Mistake::TwoRooms: the board shows each worker only the members of its half.
class HalfOfBoard final : public comm::Rendezvous {
 public:
  HalfOfBoard(std::shared_ptr<comm::Rendezvous> board, int worker)
      : board_(std::move(board)), worker_(worker) {}
  void set(const std::string& key, const std::string& value) override { board_->set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return board_->get(key, timeout);
  }
  std::optional<std::string> peek(const std::string& key) override {
    const auto text = board_->peek(key);
    if (!text || !key.starts_with("members/") || key == "members/0") return text;
    Members members = comm::members_of(*text);
    std::erase_if(members.by_rank, [&](const Member& member) { return member.worker % 2 != worker_ % 2; });
    return members.by_rank.empty() ? text : to_text(members);
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    return board_->set_once(key, value);
  }
  std::string hold(const std::string& key, const std::string& value) override {
    return board_->hold(key, value);
  }
  bool ended() const override { return board_->ended(); }

 private:
  const std::shared_ptr<comm::Rendezvous> board_;
  const int worker_;
};

std::shared_ptr<comm::Rendezvous> seen_by(int worker, std::shared_ptr<comm::Rendezvous> board,
                                          Mistake mistake) {
  if (mistake != Mistake::TwoRooms) return board;
  return std::make_shared<HalfOfBoard>(std::move(board), worker);
}

// Epochs have names of their own; the mistakes that have other ones need it.
std::string name_of_transport(const Members& members, Mistake mistake) {
  std::string name = fmt::format("epoch {}", members.epoch);
  if (mistake == Mistake::ReusedRoom) name = fmt::format("{} workers", members.by_rank.size());
  if (mistake == Mistake::TwoRooms) name += fmt::format(" of {}", members.by_rank.front().worker % 2);
  return name;
}

}  // namespace

Worker::Worker(Process& process, const Surroundings& around, std::shared_ptr<comm::Rendezvous> board)
    : process_(process),
      around_(around),
      program_(around.program),
      epochs_(comm::MembersBoard(
          seen_by(process.self().worker, std::move(board), around.mistake), process.self(),
          [&process](std::chrono::milliseconds time) { process.sleep(time.count() * kMillisecond); })),
      joins_(epochs_.is_joining()) {}

void Worker::run() {
  if (!joins_)
    epochs_.enter_first([this](const Members& members, const auto& board) { connect(members, *board); });
  for (int64_t number = 0; number < program_.fits; ++number) fit(number);
  phase_ = Phase::Ended;
  around_.checks.ends(process_, state_);
  place("end of the program");
}

// As make_transport(): each rank says where it listens and waits for all others, then they meet.
void Worker::connect(const Members& members, comm::EpochBoard& board) {
  place("connecting");
  world_ = static_cast<int>(members.by_rank.size());
  rank_ = *members.rank_of(process_.self());
  process_.world().log("{} is rank {} of {} in epoch {}", process_.name(), rank_, world_, members.epoch);
  if (world_ == 1) return;
  const auto key = [](int rank) { return fmt::format("port/{}", rank); };
  around_.network.enter(process_, name_of_transport(members, around_.mistake), rank_, world_);
  try {
    board.set(key(rank_), "a port");
    place("listening");
    const Time deadline = process_.world().now() + program_.timeout;
    Time pause = kMillisecond;
    for (int rank = 0; rank < world_; ++rank) {
      while (!board.peek(key(rank))) {
        if (process_.world().now() > deadline) fail(ErrorKind::Timeout, "rank {} does not connect", rank);
        process_.sleep(pause);
        pause = std::min(2 * pause, 20 * kMillisecond);
      }
    }
    exchange("hello");
    share_memory(members);
  } catch (const Error&) {
    around_.network.leave(process_);
    throw;
  }
}

Parts Worker::exchange(const std::string& what, Part part) {
  place(what.c_str());
  if (world_ == 1) return {std::make_shared<const Part>(std::move(part))};
  return around_.network.exchange(process_, what, std::move(part), program_.timeout);
}

// Trainer::fit_once().
void Worker::fit(int64_t number) {
  if (joins_) {
    const std::optional<int64_t> others = epochs_.list().fit();
    if (others && number < *others) return;
    begun_ = number;
  }
  const bool joins = joins_;
  if (!started_) start();
  started_ = true;
  const bool others_have_begun = joins || (number <= joined_in_ && around_.mistake != Mistake::JoinsAnyFit);
  if (!others_have_begun) {
    try {
      exchange(fmt::format("the plan of fit {}", number));
    } catch (const Error& error) {
      if (!is_loss(error)) throw;
      lost_ = error;
    }
  }
  if (number > state_.fit) {
    state_.fit = number;
    state_.fit_begin = state_.step;
  }
  if (number < state_.fit) return;
  epochs_.list().set_fit(state_.fit);
  change_wished_ = false;
  while (next()) step();
}

// The constructor of AllReduce, and TrainingRun::start().
void Worker::start() {
  at_start_ = state_;
  if (!joins_) {
    exchange("the plan of the model");
    phase_ = Phase::Trains;
    return begin_together();
  }
  phase_ = Phase::Trains;
  enter_epoch({}, [this] { go_on(); });
  around_.checks.goes_on(process_, epoch(), state_);
  joins_ = false;
  joined_in_ = state_.fit;
}

void Worker::begin_together() {
  try {
    return begin_run();
  } catch (const Error& error) {
    if (!is_loss(error)) throw;
    enter_epoch(error, [this] {
      if (!go_on()) begin_run();
    });
  }
  around_.checks.goes_on(process_, epoch(), state_);
  joined_in_ = state_.fit;
}

void Worker::begin_run() {
  exchange("the plan");
  exchange("the start");
  has_state_ = true;
}

// TrainingRun::next().
bool Worker::next() {
  const int64_t fit = state_.fit;
  for (bool ends = false;; ends = false) {
    try {
      if (const auto lost = std::exchange(lost_, std::nullopt)) throw Error(*lost);
      tell_hooks();
      const bool goes_on = state_.step < state_.fit_begin + program_.steps_per_fit;
      if (goes_on && std::exchange(change_wished_, false)) {
        if (leaves_) process_.leave();
        change({});
        continue;
      }
      if (goes_on) return true;
      ends = true;
      exchange("the end of the fit");
      return false;
    } catch (const Error& error) {
      if (!is_loss(error)) throw;
      change(error);
      if (ends && begun_ > fit) {
        joined_in_ = begun_;
        return false;
      }
      if (state_.fit <= fit || around_.mistake == Mistake::StaysInFit) continue;
      joined_in_ = state_.fit;
      return false;
    }
  }
}

// TrainingRun::after_step(): each hook talks to the others before it notes the step.
void Worker::tell_hooks() {
  while (!state_.is_told) {
    exchange(fmt::format("hook {} of step {}", state_.hooks_told, state_.step));
    state_.tell();
    place("a hook");
  }
}

// AllReduce::step().
void Worker::step() {
  place("a step");
  process_.sleep(process_.world().random().draw(1, program_.step_time));
  try {
    Part part{.change = change_is_due(), .leaves = process_.is_asked_to_leave() && world_ > 1};
    LaneRange lanes = lanes_of(rank_, world_, program_.lanes);
    if (around_.mistake == Mistake::LanesOfTheLastWorld && last_rank_ >= 0)
      lanes = lanes_of(last_rank_, last_world_, program_.lanes);
    for (int64_t lane = lanes.begin; lane < lanes.end; ++lane) part.terms.push_back(state_.term(lane));
    around_.checks.computes(process_, epoch(), state_.step, part.terms);
    const Parts parts = exchange(fmt::format("step {}", state_.step), std::move(part));
    place("before the update");
    std::vector<LaneTerm> terms;
    change_wished_ = false;
    int leaving = 0;
    for (const auto& each : parts) {
      terms.insert(terms.end(), each->terms.begin(), each->terms.end());
      change_wished_ = change_wished_ || each->change;
      leaving += each->leaves ? 1 : 0;
    }
    // If too few were left, the production code would end the whole training here, with a checkpoint.
    const bool enough = world_ - leaving >= around_.least;
    leaves_ = enough && parts[static_cast<size_t>(rank_)]->leaves;
    change_wished_ = change_wished_ || (enough && leaving > 0);
    State next = state_;
    next.update(terms);
    update(next);
    around_.checks.commits(process_, epoch(), state_, parts);
    place("after the update");
  } catch (const Error& error) {
    if (!is_loss(error)) throw;
    lost_ = error;
  }
}

// BucketSums makes room for the vectors, and SharedSlots for the slots.
void Worker::share_memory(const Members& members) {
  if (!program_.shares_memory) return;
  memory_ = &around_.memories[members.epoch];
  memory_->ranks.resize(static_cast<size_t>(world_));
  commit_.emplace(memory_->updated, memory_->taken, world_);
  has_slots_there_ = false;
  copy_ = 0;
}

// SharedSlots::step() and BucketSums::spread_in_memory().
void Worker::update(State next) {
  if (memory_ == nullptr) {
    state_ = next;
    return;
  }
  const auto part_of = [](uint64_t all, size_t rank) { return mix(all, rank); };
  const auto own = static_cast<size_t>(rank_);
  SharedMemory::Rank& mine = memory_->ranks[own];
  if (!has_slots_there_) {
    mine.slots[0] = {part_of(state_.slots, own), part_of(state_.slots, own)};
    exchange("the update has memory");
    has_slots_there_ = true;
  }
  const auto write_rest = [&] {
    mine.slots[1 - copy_].second = part_of(next.slots, own);
    mine.weights.second = part_of(next.weights[0], own);
  };
  mine.slots[1 - copy_].first = part_of(next.slots, own);
  mine.weights.first = part_of(next.weights[0], own);
  place("the update is half written");
  const bool marks_first = around_.mistake == Mistake::MarkBeforeData;
  if (!marks_first) write_rest();
  place("the update is written");
  commit_->run(
      [&] {
        place("the update is marked");
        if (marks_first) write_rest();
        exchange(fmt::format("the update of step {}", state_.step));
      },
      [&] {
        place("the update is to be taken");
        for (size_t rank = 0; rank < memory_->ranks.size(); ++rank) {
          if (!memory_->ranks[rank].weights.is(part_of(next.weights[0], rank))) next.weights[0] = 0;
        }
      },
      [] {});
  copy_ = 1 - copy_;
  state_ = next;
}

// AllReduce::regroup() and cut_state(): takes the slots of all workers, also of those that are gone.
void Worker::leave_memory() {
  if (memory_ == nullptr) return;
  half_taken_ = half_taken_ || commit_->is_left_behind();
  if (has_slots_there_) {
    for (size_t rank = 0; rank < memory_->ranks.size(); ++rank) {
      if (!memory_->ranks[rank].slots[copy_].is(mix(state_.slots, rank))) state_.slots = 0;
    }
  }
  memory_ = nullptr;
}

// LaunchedEpochs::change_is_due().
bool Worker::change_is_due() {
  constexpr Time kBetweenLooks = 100 * kMillisecond;
  const Time now = process_.world().now();
  if (due_ || now < looked_at_ + kBetweenLooks) return due_;
  looked_at_ = now;
  return due_ = epochs_.list().change_is_due(epoch());
}

void Worker::change(const std::optional<Error>& why) {
  place("a change");
  enter_epoch(why, [this] { go_on(); });
  around_.checks.goes_on(process_, epoch(), state_);
  if (around_.mistake == Mistake::HealsForEver) change_wished_ = true;
}

// TrainingRun::enter_epoch(), AllReduce::regroup() and Collectives::reconfigure().
void Worker::enter_epoch(const std::optional<Error>& why, const std::function<void()>& come_together) {
  tutti::enter_epoch(
      why, true,
      [this](const std::optional<Error>& reason) {
        around_.network.leave(process_);
        leave_memory();
        last_rank_ = joins_ ? -1 : rank_;
        last_world_ = world_;
        const auto connects = [this](const Members& members, const auto& board) { connect(members, *board); };
        epochs_.enter_next(reason, connects);
        due_ = false;
      },
      [&](const std::optional<Error>& /*reason*/) { come_together(); });
}

// AllReduce::go_on(). Returns false if the run has begun for nobody.
bool Worker::go_on() {
  for (const auto& part : exchange("the plan", {.number = joins_ ? begun_ : 0}))
    begun_ = std::max(begun_, part->number);
  const bool is_half = half_taken_ && around_.mistake != Mistake::HalfTakenOver;
  const int64_t place = place_of(state_.step, state_.is_told, state_.hooks_told, state_.fit);
  const int64_t own = joins_ || is_half ? kNowhere : has_state_ ? place : kUnbegun;
  std::vector<int64_t> places;
  for (const auto& part : exchange("the places", {.number = own})) places.push_back(part->number);
  Farthest farthest = farthest_of(places);
  if (farthest.place == kUnbegun) return false;
  if (around_.mistake == Mistake::LeastFarLeads) {
    for (size_t rank = 0; rank < places.size(); ++rank) {
      if (places[rank] != kNowhere && places[rank] < farthest.place)
        farthest = {static_cast<int>(rank), places[rank], false};
    }
  }
  if (!farthest.all_are_there) take_over(farthest.rank, own != farthest.place);
  return true;
}

// The rest of AllReduce::go_on(), and TrainingRun::take_over(). The tensors are received where they lie.
void Worker::take_over(int leader, bool is_behind) {
  const auto from_leader = [&](const std::string& what) {
    Part part;
    if (rank_ == leader) part.state = state_;
    if (rank_ == leader && around_.mistake == Mistake::SlotsOfTheStart) part.state.slots = at_start_.slots;
    return exchange(what, part)[static_cast<size_t>(leader)]->state;
  };
  const State standing = from_leader("the progress");
  const State hooks = from_leader("the state of the run");
  if (is_behind) half_taken_ = true;
  for (size_t part = 0; part < kParts; ++part) {
    const State told = from_leader(fmt::format("part {} of the weights", part));
    const bool is_old = around_.mistake == Mistake::ExportRacesStep && part == 1;
    if (is_behind && !is_old) state_.weights[part] = told.weights[part];
  }
  const State slots = from_leader("the optimiser's state");
  if (!is_behind) return;
  State taken = standing;
  taken.weights = state_.weights;
  taken.slots = slots.slots;
  taken.hooks = hooks.hooks;
  if (around_.mistake == Mistake::StaleRate) taken.rate = state_.rate;
  if (around_.mistake == Mistake::OneBatchBehind) taken.cursor = std::max<int64_t>(0, taken.cursor - 1);
  if (around_.mistake == Mistake::HooksAreForgotten && !taken.is_told) taken.hooks_told = 0;
  state_ = taken;
  has_state_ = true;
  half_taken_ = false;
  around_.checks.takes_over(process_, state_, standing);
  place("having taken over");
}

}  // namespace tutti::simulation
