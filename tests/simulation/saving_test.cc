// Simulates jobs that save checkpoints on a disk that is slow, full, or loses power (docs/reliability.md,
// "Simulated failures"). TUTTI_TEST_SEED as in simulation_test.cc.
#include "tests/simulation/saving.h"

#include <gtest/gtest.h>

#include "tests/simulation/seeds.h"

namespace tutti::simulation {
namespace {

SavingResult simulate(uint64_t seed, Mistake mistake = Mistake::None, bool prints = false) {
  return SavingJob(seed, mistake, prints).run();
}

TEST(SimulatedSaves, keep_all_promises) {
  SavingResult sum;
  expect_kept(
      [&](uint64_t seed, bool prints) {
        const SavingResult result = simulate(seed, Mistake::None, prints);
        sum.saved += result.saved;
        sum.failed += result.failed;
        sum.resumed += result.resumed;
        sum.kills += result.kills;
        sum.stops += result.stops;
        sum.power_losses += result.power_losses;
        sum.replaced += result.replaced;
        return result.violation;
      },
      "saves_test");
  std::cout << fmt::format(
      "{} saved, {} saves failed, {} resumed, {} killed, {} stopped, {} power losses, {} chiefs replaced\n",
      sum.saved, sum.failed, sum.resumed, sum.kills, sum.stops, sum.power_losses, sum.replaced);
}

TEST(SimulatedSaves, are_the_same_each_time) {
  constexpr uint64_t kSeeds = 50;
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    EXPECT_EQ(simulate(seed).log_hash, simulate(seed).log_hash) << replay(seed, "saves_test");
}

class PlantedInSaves : public testing::TestWithParam<Mistake> {};

TEST_P(PlantedInSaves, mistake_is_found) {
  expect_found(2000, [](uint64_t seed) { return simulate(seed, GetParam()).violation; });
}

INSTANTIATE_TEST_SUITE_P(Mistakes, PlantedInSaves,
                         testing::Values(Mistake::FilesAreNotSynced, Mistake::FoldersAreNotSynced,
                                         Mistake::TakesOnlyTheLock, Mistake::NobodyAsks),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tutti::simulation
