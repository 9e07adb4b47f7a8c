// Draws the scenario of a job that saves, and its failures.
#include <cerrno>

#include "tests/simulation/saving.h"

namespace tutti::simulation {
namespace {

bool needs_space(const std::string& call) {
  return call == "write" || call == "open" || call == "mkdir" || call == "symlink" || call == "pwrite";
}

}  // namespace

SavingJob::Scenario SavingJob::draw(Random& random) {
  Scenario scenario;
  scenario.every = random.draw(1, 3);
  scenario.steps = scenario.every * random.draw(2, 6);
  scenario.keep = static_cast<int>(random.draw(1, 3));
  scenario.writers = random.chance(0.4) ? 0 : static_cast<int>(random.draw(1, 3));
  scenario.faults = random.chance(0.1) ? 0 : static_cast<int>(random.draw(1, 6));
  scenario.power_losses = random.chance(0.4) ? 0 : static_cast<int>(random.draw(1, 4));
  scenario.full = random.chance(0.7) ? 0 : static_cast<int>(random.draw(1, 2));
  if (random.chance(0.3)) scenario.slow_chance = 0.02;
  scenario.patience = random.draw(100, 2000) * kMillisecond;
  scenario.slowest = random.chance(0.5) ? 50 * kMillisecond : 2 * scenario.patience;
  scenario.calm_from = random.draw(20, 400) * kMillisecond;
  scenario.fault_chance = random.chance(0.5) ? 0.01 : 0.05;
  scenario.kill_share = random.draw(0, 10) * 0.1;
  return scenario;
}

void SavingJob::plan_faults() {
  Random& random = world_.random();
  for (int i = 0; i < scenario_.power_losses; ++i)
    world_.at(random.draw(0, scenario_.calm_from), [this] { lose_power(); });
  for (int i = 0; i < scenario_.full; ++i) {
    world_.at(random.draw(0, scenario_.calm_from), [this] {
      world_.log("the disk is full");
      ++troubles_;
      is_full_ = true;
      world_.after(world_.random().draw(1, 100) * kMillisecond, [this] {
        world_.log("the disk has space");
        ++troubles_;
        is_full_ = false;
      });
    });
  }
}

int SavingJob::before(Process& process, const FileCall& call) {
  Random& random = world_.random();
  if (strikes(process, call)) return 0;
  if (random.chance(scenario_.slow_chance) && world_.now() < scenario_.calm_from) {
    ++troubles_;
    ++slow_calls_;
    process.sleep_in_call(random.draw(0, scenario_.slowest));
    --slow_calls_;
    ++troubles_;  // for a save during which it ends
  } else {
    process.sleep_in_call(random.draw(0, 300));
  }
  return is_full_ && needs_space(call.name) ? ENOSPC : 0;
}

bool SavingJob::strikes(Process& process, const FileCall& call) {
  Random& random = world_.random();
  if (faults_ == 0 || world_.now() >= scenario_.calm_from || !random.chance(scenario_.fault_chance))
    return false;
  --faults_;
  ++troubles_;
  const bool kills = random.chance(scenario_.kill_share);
  world_.log("{} is {} before '{}'", process.name(), kills ? "killed" : "stopped", call.name);
  ++(kills ? result_.kills : result_.stops);
  const Time time = random.draw(1, 3 * scenario_.patience);
  world_.after(0, [&process, kills, time] { kills ? process.kill() : process.stop(time); });
  if (!kills) world_.after(time, [this] { ++troubles_; });
  process.sleep_in_call(1);
  return true;
}

void SavingJob::after(Process& process, const FileCall& call) {
  if (!is_former(process)) return;
  if (is_visible(call.path) || is_visible(call.to))
    world_.violate("chief {}, which was replaced, has changed a checkpoint: {}", process.self().life,
                   call.name);
}

void SavingJob::lose_power() {
  if (is_done_) return;
  world_.log("the power fails");
  ++troubles_;
  ++result_.power_losses;
  // None of them comes again before the others are gone.
  for (const auto& chief : chiefs_) chief->kill();
  for (const Writer& writer : writers_) writer.process->kill();
  disk_.lose_power(world_.random());
}

}  // namespace tutti::simulation
