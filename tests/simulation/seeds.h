#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tutti/base/text.h"

namespace tutti::simulation {

struct Seeds {
  uint64_t begin = 0;
  uint64_t end = 1000;
  bool is_one() const { return end == begin + 1; }
};

// Returns the seeds that the variable TUTTI_TEST_SEED asks for: "17" or "0..100000".
inline Seeds asked_seeds() {
  const char* const text = std::getenv("TUTTI_TEST_SEED");
  if (text == nullptr) return {};
  const std::string asked = text;
  const size_t dots = asked.find("..");
  const auto begin = static_cast<uint64_t>(parse_int(asked.substr(0, dots)).value());
  if (dots == std::string::npos) return {begin, begin + 1};
  return {begin, static_cast<uint64_t>(parse_int(asked.substr(dots + 2)).value())};
}

inline std::string replay(uint64_t seed, const char* test = "simulation_test") {
  return fmt::format(
      "seed {}; to see it again: TUTTI_TEST_SEED={} GTEST_FILTER='Simulat*' ctest --test-dir build -R {} -V",
      seed, seed, test);
}

// Simulates the seeds that were asked for, with a log if it is only one, and expects that no promise is
// broken. `violation_of` returns the promise that was broken, or "".
inline void expect_kept(const std::function<std::string(uint64_t seed, bool prints)>& violation_of,
                        const char* test = "simulation_test") {
  constexpr int kMost = 5;
  const Seeds seeds = asked_seeds();
  int failures = 0;
  for (uint64_t seed = seeds.begin; seed < seeds.end && failures < kMost; ++seed) {
    const std::string violation = violation_of(seed, seeds.is_one());
    if (violation.empty()) continue;
    ++failures;
    ADD_FAILURE() << violation << "\n" << replay(seed, test);
  }
}

// Expects that one of the first seeds finds a mistake.
inline void expect_found(uint64_t seeds, const std::function<std::string(uint64_t seed)>& violation_of) {
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const std::string violation = violation_of(seed);
    if (violation.empty()) continue;
    std::cout << fmt::format("found by seed {}: {}\n", seed, violation);
    return;
  }
  ADD_FAILURE() << "not found by " << seeds << " seeds";
}

}  // namespace tutti::simulation
