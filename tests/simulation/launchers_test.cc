// Simulates launchers that have to agree on the members while some are killed, stopped and cut off
// (docs/reliability.md, "Simulated failures"). TUTTI_TEST_SEED as in simulation_test.cc.
#include "tests/simulation/launchers.h"

#include <gtest/gtest.h>

#include "tests/simulation/seeds.h"

namespace tutti::simulation {
namespace {

Launchers::Result simulate_launchers(uint64_t seed, Mistake mistake = Mistake::None, bool prints = false) {
  return Launchers(seed, mistake, prints).run();
}

TEST(SimulatedLaunchers, keep_all_promises) {
  Launchers::Result sum;
  expect_kept([&](uint64_t seed, bool prints) {
    const Launchers::Result result = simulate_launchers(seed, Mistake::None, prints);
    sum.epochs += result.epochs;
    sum.successions += result.successions;
    sum.ended += result.ended;
    return result.violation.value_or("");
  });
  std::cout << fmt::format("{} epochs, {} launchers took the list over, {} ended\n", sum.epochs,
                           sum.successions, sum.ended);
}

// The others need six calls for a vote, which take longer here than the timeout.
TEST(SimulatedLaunchers, wait_for_votes_over_slow_connections) {
  for (const uint64_t seed : {38149, 57944})
    EXPECT_EQ(simulate_launchers(seed).violation, std::nullopt) << replay(seed);
}

TEST(SimulatedLaunchers, are_the_same_each_time) {
  for (uint64_t seed = 0; seed < 50; ++seed)
    EXPECT_EQ(simulate_launchers(seed).log_hash, simulate_launchers(seed).log_hash) << replay(seed);
}

class PlantedInLaunchers : public testing::TestWithParam<Mistake> {};

TEST_P(PlantedInLaunchers, mistake_is_found) {
  expect_found(5000,
               [](uint64_t seed) { return simulate_launchers(seed, GetParam()).violation.value_or(""); });
}

INSTANTIATE_TEST_SUITE_P(Mistakes, PlantedInLaunchers,
                         testing::Values(Mistake::KeeperDecidesAlone, Mistake::MinorityGoesOn,
                                         Mistake::VotesAreForgotten),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tutti::simulation
