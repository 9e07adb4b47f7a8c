// Draws the scenario of a simulation and its failures.
#include <algorithm>
#include <string>

#include "tests/simulation/job.h"

namespace tutti::simulation {
namespace {

// A failure during the recovery of another needs two in the right order.
bool is_hand_over(const std::string& place) {
  return place.starts_with("part ") || place == "the optimiser's state" || place == "the progress";
}

int draw_workers(Random& random) {
  const int64_t kind = random.draw(0, 99);
  if (kind < 55) return static_cast<int>(random.draw(2, 4));
  if (kind < 90) return static_cast<int>(random.draw(5, 10));
  if (kind < 98) return static_cast<int>(random.draw(11, 24));
  return static_cast<int>(random.draw(25, 64));
}

}  // namespace

Scenario draw_scenario(Random& random) {
  Scenario scenario;
  scenario.workers = draw_workers(random);
  scenario.min = random.chance(0.7) ? 1 : static_cast<int>(random.draw(1, scenario.workers));
  scenario.first =
      random.chance(0.6) ? scenario.workers : static_cast<int>(random.draw(scenario.min, scenario.workers));
  scenario.scalings = random.chance(0.6) ? 0 : static_cast<int>(random.draw(1, 4));
  scenario.restarts = random.chance(0.25) ? 0 : static_cast<int>(random.draw(1, 2 * scenario.workers));
  Program& program = scenario.program;
  program.fits = random.chance(0.6) ? 1 : random.draw(2, 3);
  program.steps_per_fit = random.draw(2, 12);
  program.lanes = std::max<int64_t>(2, random.draw(scenario.workers / 2, 2 * scenario.workers));
  program.step_time = random.draw(1, 30) * kMillisecond;
  program.timeout = random.draw(1, 4) * kSecond;
  scenario.board.most = random.draw(50, 1000);
  if (random.chance(0.3)) scenario.board.slow_chance = 0.02;
  scenario.board.slowest = random.draw(5, 100) * kMillisecond;
  scenario.network.most = random.draw(50, 3000);
  if (random.chance(0.3)) scenario.network.slow_chance = 0.02;
  scenario.network.slowest = random.draw(5, 100) * kMillisecond;
  scenario.network.lost_with_sender = random.chance(0.3) ? 1 : 0.5;
  scenario.look_every = random.draw(2, 20) * kMillisecond;
  scenario.longest_pause = random.draw(0, 500) * kMillisecond;
  scenario.faults = random.chance(0.05) ? 0 : static_cast<int>(random.draw(1, 4 + scenario.workers));
  if (scenario.workers > 2 && random.chance(0.3)) {
    scenario.hosts = static_cast<int>(random.draw(2, std::min(4, scenario.workers)));
    scenario.lost_hosts = static_cast<int>(random.draw(0, 3));
  }
  // About as long as the training takes, so that failures fall on all of it.
  const Time training = program.steps() * (program.step_time + 8 * scenario.network.most);
  scenario.calm_from = training * random.draw(1, 4) / 2 + random.draw(0, 200) * kMillisecond;
  scenario.kill_share = random.chance(0.5) ? 1 : random.draw(3, 9) * 0.1;
  scenario.place_share = random.draw(0, 10) * 0.1;
  scenario.place_chance = random.chance(0.5) ? 0.003 : 0.02;
  if (random.chance(0.6)) scenario.hand_over_chance = random.draw(1, 8) * 0.05;
  return scenario;
}

// The machine fails at any time; the program fails at the places that it names.
void Job::plan_faults() {
  for (int scaling = 0; scaling < scenario_.scalings; ++scaling)
    world_.at(world_.random().draw(0, scenario_.calm_from),
              [this] { scale_to(static_cast<int>(world_.random().draw(scenario_.min, scenario_.workers))); });
  for (int lost = 0; lost < scenario_.lost_hosts; ++lost)
    world_.at(world_.random().draw(0, scenario_.calm_from),
              [this] { lose_host(static_cast<int>(world_.random().draw(0, scenario_.hosts - 1))); });
  for (int fault = 0; fault < scenario_.faults; ++fault) {
    if (world_.random().chance(scenario_.place_share)) {
      ++place_faults_;
      continue;
    }
    const Time time = world_.random().draw(0, scenario_.calm_from);
    world_.at(time, [this] {
      if (failed_) return;
      const auto worker = static_cast<size_t>(world_.random().draw(0, scenario_.workers - 1));
      if (slots_[worker].has_begun() && slots_[worker].newest().lives()) hit(slots_[worker].newest());
    });
  }
}

std::vector<int> Job::hosts_of_workers() const {
  std::vector<int> hosts;
  for (int worker = 0; worker < scenario_.workers; ++worker) hosts.push_back(host_of(worker));
  return hosts;
}

// SurvivalKeeper::begin_scaling().
void Job::scale_to(int workers) {
  if (failed_ || keeper_.finished() || keeper_.ended()) return;
  int more = workers;
  for (const int worker : wanted_) more -= slots_[static_cast<size_t>(worker)].is_over() ? 0 : 1;
  world_.log("{} workers are to train", workers);
  for (int worker = 0; worker < scenario_.workers && more > 0; ++worker) {
    if (!slots_[static_cast<size_t>(worker)].is_over() || gone_hosts_.contains(host_of(worker))) continue;
    if (!keeper_.returns(worker)) continue;
    wanted_.insert(worker);
    start(worker, keeper_.life_of(worker));
    --more;
  }
  for (int worker = scenario_.workers - 1; worker >= 0 && more < 0; --worker) {
    if (slots_[static_cast<size_t>(worker)].is_over() || wanted_.erase(worker) == 0) continue;
    let_leave(worker);
    ++more;
  }
}

void Job::let_leave(int worker) {
  Slot& slot = slots_[static_cast<size_t>(worker)];
  if (std::exchange(slot.starts_again, false)) return keeper_.lost(worker, MembersKeeper::Then::StaysAway);
  slot.newest().ask_to_leave();
}

// Its launcher has gone too, so its workers stay away (SurvivalKeeper::lose_host()).
void Job::lose_host(int host) {
  if (failed_ || !gone_hosts_.insert(host).second) return;
  world_.log("host {} is lost", host);
  for (Slot& slot : slots_) {
    if (!slot.has_begun()) continue;
    Process& process = slot.newest();
    if (host_of(process.self().worker) != host || !process.lives()) continue;
    ++result_.kills;
    process.kill();
  }
  world_.after(world_.random().draw(10, 500) * kMillisecond, [this, host] { bring_back(host); });
}

// Its launcher comes again and starts its workers in their next lives (SurvivalKeeper::welcome()).
void Job::bring_back(int host) {
  if (failed_) return;
  gone_hosts_.erase(host);
  world_.log("host {} is back", host);
  for (int worker = 0; worker < scenario_.workers; ++worker) {
    const Slot& slot = slots_[static_cast<size_t>(worker)];
    if (host_of(worker) == host && wanted_.contains(worker) && slot.is_over() && keeper_.returns(worker))
      start(worker, keeper_.life_of(worker));
  }
}

void Job::at_place(Process& process, const char* place) {
  if (place_faults_ == 0 || failed_ || world_.now() >= scenario_.calm_from) return;
  const bool hands_over = is_hand_over(place) && scenario_.hand_over_chance > 0;
  if (!world_.random().chance(hands_over ? scenario_.hand_over_chance : scenario_.place_chance)) return;
  --place_faults_;
  world_.log("{} is hit at '{}'", process.name(), place);
  hit(process);
}

// A stop lasts from a moment to longer than --timeout.
void Job::hit(Process& process) {
  if (world_.random().chance(scenario_.kill_share)) {
    ++result_.kills;
    process.kill();
    return;
  }
  ++result_.stops;
  const Time most = world_.random().chance(0.5) ? 200 * kMillisecond : 3 * scenario_.program.timeout;
  process.stop(world_.random().draw(kMillisecond, most));
}

}  // namespace tutti::simulation
