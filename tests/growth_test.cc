// Tests that the memory of a job does not grow with its steps, for each way of training.
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tool.h"

namespace tutti::testing::growth_test {
namespace {

struct Way {
  std::string name;
  Words launch;
  Words flags;
};

// Returns the kilobytes of each task, in the order in which they were printed: "[worker/0] ps/0 has 4711 kB".
std::map<std::string, std::vector<int64_t>> memory_in(const std::string& output) {
  std::map<std::string, std::vector<int64_t>> memory;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const size_t has = line.find(" has ");
    if (has == std::string::npos) continue;
    const std::string task = line.substr(0, has);
    memory[task.substr(task.rfind(' ') + 1)].push_back(std::stoll(line.substr(has + 5)));
  }
  return memory;
}

// Allows this number of kilobytes between step 4,000 and the last one. The history of the run has a row for
// each epoch, which takes a part of it.
void expect_no_growth(const Way& way, int steps, int64_t most) {
  const auto& [name, launch, flags] = way;
  Words command = launch.empty() ? Words() : Words{program_path("tutti"), "run"} + launch + Words{"--"};
  command =
      command +
      Words{program_path("../test/growth_program"), "--steps", std::to_string(steps), "--device", "cpu"} +
      flags;
  const auto result = run_program(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto memory = memory_in(result.out);
  EXPECT_FALSE(memory.empty()) << result.out;
  for (const auto& [task, kilobytes] : memory) {
    ASSERT_EQ(kilobytes.size(), 2U) << task;
    EXPECT_LT(kilobytes[1] - kilobytes[0], most) << task << ": " << kilobytes[0] << " kB at first";
  }
}

const std::vector<Way> kWays = {
    {"alone", {}, {}},
    {"own_loop", {}, {"--own-loop"}},
    {"shared_memory", {"-n", "2"}, {"--comm", "shm"}},
    {"tcp", {"-n", "2"}, {"--comm", "tcp"}},
    {"ps_sync", {"--ps", "1", "-n", "2"}, {"--strategy", "ps-sync"}},
    {"ps_async", {"--ps", "1", "-n", "2"}, {"--strategy", "ps-async"}},
    {"in_graph", {"-n", "2"}, {"--strategy", "in-graph"}},
};

class Growth : public ::testing::TestWithParam<Way> {};
TEST_P(Growth, is_none_in_6000_steps) { expect_no_growth(GetParam(), 6000, 256); }

class GrowthSoak : public ::testing::TestWithParam<Way> {};
TEST_P(GrowthSoak, is_none_in_20000_steps) { expect_no_growth(GetParam(), 20000, 1024); }

std::string name_of(const ::testing::TestParamInfo<Way>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Ways, Growth, ::testing::ValuesIn(kWays), name_of);
INSTANTIATE_TEST_SUITE_P(Ways, GrowthSoak, ::testing::ValuesIn(kWays), name_of);

}  // namespace
}  // namespace tutti::testing::growth_test
