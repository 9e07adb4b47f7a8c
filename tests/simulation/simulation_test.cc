// Simulates jobs whose workers are killed, stopped and started again (docs/reliability.md, "Simulated
// failures"). TUTTI_TEST_SEED=17 simulates that one and prints its log; TUTTI_TEST_SEED=0..100000 many.
#include <chrono>
#include <map>

#include <gtest/gtest.h>

#include "tests/simulation/job.h"
#include "tests/simulation/seeds.h"

namespace tutti::simulation {
namespace {

Result simulate(uint64_t seed, Mistake mistake = Mistake::None, bool prints = false) {
  return Job(seed, mistake, prints).run();
}

TEST(Simulation, keeps_all_promises) {
  const Seeds seeds = asked_seeds();
  std::map<std::string, int64_t> ends;
  Result sum;
  const auto begin = std::chrono::steady_clock::now();
  expect_kept([&](uint64_t seed, bool prints) {
    const Result result = simulate(seed, Mistake::None, prints);
    ++ends[name_of(result.end)];
    sum.events += result.events;
    sum.epochs += result.epochs;
    sum.kills += result.kills;
    sum.stops += result.stops;
    sum.evicted += result.evicted;
    sum.left += result.left;
    sum.joined += result.joined;
    sum.taken_over += result.taken_over;
    sum.steps += result.steps;
    return result.violation;
  });
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  std::cout << fmt::format(
      "{} seeds, {:.0f} a second: {} events, {} epochs, {} steps, {} killed, {} stopped, {} evicted, {} "
      "left, {} joined, {} took a state over\n",
      seeds.end - seeds.begin, static_cast<double>(seeds.end - seeds.begin) / time.count(), sum.events,
      sum.epochs, sum.steps, sum.kills, sum.stops, sum.evicted, sum.left, sum.joined, sum.taken_over);
  for (const auto& [end, count] : ends) std::cout << fmt::format("{:>8} {}\n", count, end);
}

// The end of a fit was seen by one that is lost, and by one that joins: the others pass it as well.
TEST(Simulation, passes_a_fit_that_has_ended_for_one_that_is_lost) {
  constexpr uint64_t kSeed = 97481;
  EXPECT_EQ(simulate(kSeed).violation, "") << replay(kSeed);
}

TEST(Simulation, is_the_same_each_time) {
  constexpr uint64_t kSeeds = 50;
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    EXPECT_EQ(simulate(seed).log_hash, simulate(seed).log_hash) << replay(seed);
}

class Planted : public testing::TestWithParam<Mistake> {};

TEST_P(Planted, mistake_is_found) {
  expect_found(5000, [](uint64_t seed) { return simulate(seed, GetParam()).violation; });
}

INSTANTIATE_TEST_SUITE_P(Mistakes, Planted,
                         testing::Values(Mistake::StaleRate, Mistake::SlotsOfTheStart,
                                         Mistake::ExportRacesStep, Mistake::OneBatchBehind,
                                         Mistake::HealsForEver, Mistake::TwoRooms, Mistake::StoppedIsDead,
                                         Mistake::NobodyIsTold, Mistake::EmptyIsAnAnswer, Mistake::ReusedRoom,
                                         Mistake::SameLife, Mistake::HalfTakenOver, Mistake::JoinersFirst,
                                         Mistake::LeastFarLeads, Mistake::HooksAreForgotten,
                                         Mistake::EvictsCallers, Mistake::LanesOfTheLastWorld,
                                         Mistake::EvictedLives, Mistake::StaysInFit, Mistake::MarkBeforeData,
                                         Mistake::JoinsAnyFit),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tutti::simulation
