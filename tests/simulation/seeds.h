#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

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

}  // namespace tutti::simulation
