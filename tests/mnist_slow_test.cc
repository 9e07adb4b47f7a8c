// What the example has to reach on drawn digits.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tool.h"

namespace tutti::testing {
namespace {

double accuracy(const TestFolder& folder, const std::vector<std::string>& flags) {
  std::vector<std::string> command = {program_path("mnist"), "--report", folder / "report.json"};
  command.insert(command.end(), flags.begin(), flags.end());
  const auto result = run_program(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::ifstream in(folder / "report.json");
  return nlohmann::json::parse(in).at("metrics").at("accuracy").get<double>();
}

TEST(MnistSlow, reads_97_percent_of_the_drawn_digits_within_the_demo) {
  const TestFolder folder;
  EXPECT_GE(accuracy(folder, {"--steps", "1000", "--threads", "1", "--rate", "1e-3"}), 0.97);
}

}  // namespace
}  // namespace tutti::testing
