// Simulates jobs that save checkpoints on a disk that is slow, full, or loses power (docs/reliability.md,
// "Simulated failures"). TUTTI_TEST_SEED as in simulation_test.cc.
#include "tests/simulation/saving.h"

#include <iostream>

#include <gtest/gtest.h>

#include "tests/simulation/seeds.h"

namespace tutti::simulation {
namespace {

SavingResult simulate(uint64_t seed, SavingMistake mistake = SavingMistake::None, bool prints = false) {
  return SavingJob(seed, mistake, prints).run();
}

TEST(SimulatedSaves, keep_all_promises) {
  const Seeds seeds = asked_seeds();
  SavingResult sum;
  int failures = 0;
  for (uint64_t seed = seeds.begin; seed < seeds.end && failures < 5; ++seed) {
    const SavingResult result = simulate(seed, SavingMistake::None, seeds.is_one());
    sum.saved += result.saved;
    sum.failed += result.failed;
    sum.resumed += result.resumed;
    sum.kills += result.kills;
    sum.stops += result.stops;
    sum.power_losses += result.power_losses;
    sum.replaced += result.replaced;
    if (result.violation.empty()) continue;
    ++failures;
    ADD_FAILURE() << result.violation << "\n" << replay(seed, "saves_test");
  }
  std::cout << fmt::format(
      "{} seeds: {} saved, {} saves failed, {} resumed, {} killed, {} stopped, {} power losses, {} chiefs "
      "replaced\n",
      seeds.end - seeds.begin, sum.saved, sum.failed, sum.resumed, sum.kills, sum.stops, sum.power_losses,
      sum.replaced);
}

TEST(SimulatedSaves, are_the_same_each_time) {
  constexpr uint64_t kSeeds = 50;
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    EXPECT_EQ(simulate(seed).log_hash, simulate(seed).log_hash) << seed;
}

class PlantedInSaves : public ::testing::TestWithParam<SavingMistake> {};

TEST_P(PlantedInSaves, is_found) {
  constexpr uint64_t kSeeds = 2000;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const SavingResult result = simulate(seed, GetParam());
    if (result.violation.empty()) continue;
    std::cout << fmt::format("found by seed {}: {}\n", seed, result.violation);
    return;
  }
  ADD_FAILURE() << "not found by " << kSeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(Mistakes, PlantedInSaves,
                         ::testing::Values(SavingMistake::FilesAreNotSynced,
                                           SavingMistake::FoldersAreNotSynced,
                                           SavingMistake::TakesOnlyTheLock, SavingMistake::NobodyAsks),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tutti::simulation
