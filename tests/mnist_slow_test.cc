// Tests the accuracy that the example must reach, on drawn digits and, if TUTTI_TEST_MNIST names their
// folder, on the real ones.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/few_digits.h"
#include "tests/tool.h"
#include "tutti/base/environment.h"

namespace tutti::testing::mnist_slow_test {
namespace {

nlohmann::json report_of(const TestFolder& folder, const std::vector<std::string>& flags) {
  std::vector<std::string> command = {program_path("mnist"), "--report", folder / "report.json", "--threads",
                                      "1"};
  command.insert(command.end(), flags.begin(), flags.end());
  const auto result = run_program(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::ifstream in(folder / "report.json");
  return nlohmann::json::parse(in);
}

double accuracy(const TestFolder& folder, const std::vector<std::string>& flags) {
  return report_of(folder, flags).at("metrics").at("accuracy").get<double>();
}

TEST(Mnist, the_bits_of_eight_lanes_do_not_depend_on_where_it_was_resumed) {
  const TestFolder folder;
  const auto hash_after = [&](const std::string& steps, const std::string& logdir) {
    return report_of(folder, {"--data", few_digits(), "--lanes", "8", "--batch", "4", "--steps", steps,
                              "--logdir=" + logdir})
        .at("weights_sha256");
  };
  const auto straight = hash_after("6", "");
  hash_after("2", folder / "run");
  hash_after("5", folder / "run");
  EXPECT_EQ(hash_after("6", folder / "run"), straight);
}

TEST(Mnist, reads_95_percent_of_the_drawn_digits_within_150_steps) {
  const TestFolder folder;
  EXPECT_GE(accuracy(folder, {"--steps", "150", "--learning-rate", "1e-3"}), 0.95);
}

TEST(MnistSoak, reads_97_percent_of_the_drawn_digits_within_the_demo) {
  const TestFolder folder;
  EXPECT_GE(accuracy(folder, {"--steps", "1000", "--learning-rate", "1e-3"}), 0.97);
}

TEST(MnistSoak, reads_99_percent_of_the_real_digits_within_5000_steps) {
  const std::string data = Environment::of_process().get("TUTTI_TEST_MNIST").value_or("");
  if (!std::filesystem::exists(data))
    GTEST_SKIP() << "NOT TESTED: there is no MNIST at TUTTI_TEST_MNIST=" << data;
  const TestFolder folder;
  EXPECT_GE(accuracy(folder, {"--data", data, "--decay-steps", "5000"}), 0.990);
}

}  // namespace
}  // namespace tutti::testing::mnist_slow_test
