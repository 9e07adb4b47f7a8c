// Tests the example of tables and shards, as in its README, with different numbers of workers and in every
// partition.
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/tool.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"

namespace tutti::testing::descriptors_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Descriptors : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    folder = new TestFolder;
    ASSERT_EQ(run_program({program_path("descriptors"), "--data", data(), "--make-data"}).exit_code, 0);
  }
  static void TearDownTestSuite() { delete folder; }

  static std::string data() { return *folder / "data"; }
  static Words training(int workers, const Words& flags) {
    Words words;
    if (workers > 1) words = {program_path("tutti"), "run", "-n", std::to_string(workers), "--"};
    return words + Words{program_path("descriptors"), "--data", data()} + flags;
  }
  // Returns the line with the AUC that the chief prints.
  static std::string auc(int workers, const Words& flags = {}) {
    const auto result = run_program(training(workers, flags));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const size_t line = result.out.find("AUC: ");
    if (line == std::string::npos) return "no AUC in " + result.out;
    return result.out.substr(line, result.out.find('\n', line) - line);
  }

  static TestFolder* folder;
};
TestFolder* Descriptors::folder = nullptr;

TEST_F(Descriptors, learns_what_is_active_the_same_at_one_worker_and_at_two) {
  const std::string alone = auc(1);
  const auto value = parse_double(alone.substr(5));
  ASSERT_TRUE(value) << alone;
  EXPECT_GE(*value, 0.99);
  EXPECT_EQ(auc(2), alone);
}

TEST_F(Descriptors, by_size_is_the_same_too_and_by_mod_is_as_good) {
  const Words few = {"--steps", "60", "--starts", "1"};
  const std::string by_size = auc(1, few + Words{"--partition", "size"});
  EXPECT_EQ(auc(2, few + Words{"--partition", "size"}), by_size);
  const Words several = {"--steps", "20", "--starts", "3", "--partition", "size", "--lanes", "3"};
  EXPECT_EQ(auc(3, several), auc(1, several));
  for (const int workers : {1, 2}) {
    const auto by_mod = parse_double(auc(workers, few + Words{"--partition", "mod"}).substr(5));
    EXPECT_TRUE(by_mod && *by_mod > 0.8);
  }
}

TEST_F(Descriptors, learns_with_all_examples_at_once_the_same_at_any_number_of_workers) {
  const Words whole = {"--full-batch", "--steps", "30", "--starts", "2", "--lanes", "3"};
  const std::string alone = auc(1, whole);
  EXPECT_EQ(auc(2, whole), alone);
  EXPECT_EQ(auc(3, whole), alone);
  const auto value = parse_double(alone.substr(5));
  EXPECT_TRUE(value && *value > 0.9) << alone;
}

TEST_F(Descriptors, have_the_hash_of_the_weights_in_the_report_after_training_with_all_examples_at_once) {
  const auto report_at = [&](int workers) {
    const std::string path = *folder / "report.json";
    auc(workers, {"--full-batch", "--steps", "5", "--starts", "1", "--lanes", "3", "--report", path});
    return nlohmann::json::parse(read_file(path));
  };
  const nlohmann::json alone = report_at(1);
  EXPECT_EQ(alone.at("weights_sha256").get<std::string>().size(), 64);
  const nlohmann::json together = report_at(3);
  EXPECT_EQ(together.at("weights_sha256"), alone.at("weights_sha256"));
  EXPECT_EQ(together.at("world"), 3);
}

TEST_F(Descriptors, runs_under_mpirun) {
  if (run_program({"sh", "-c", "command -v mpirun"}).exit_code != 0)
    GTEST_SKIP() << "NOTHING IS TESTED HERE: there is no mpirun (apt-get install openmpi-bin)";
  const Words few = {"--steps", "20", "--starts", "2"};
  const auto result =
      run_program(Words{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"} + training(1, few));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(auc(1, few)));
}

TEST_F(Descriptors, writes_predictions_by_id) {
  const std::string path = *folder / "p.tsv";
  auc(2, {"--steps", "5", "--starts", "1", "--predictions", path});
  const std::string text = read_file(path);
  EXPECT_THAT(text, StartsWith("ID\tpred\nthing"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2001);
}

TEST_F(Descriptors, say_what_is_in_the_way) {
  const auto too_many = run_program(training(5, {"--lanes", "5", "--partition", "mod"}));
  EXPECT_EQ(too_many.exit_code, 2);
  EXPECT_THAT(too_many.err, AllOf(HasSubstr("4 shards for 5 workers"), HasSubstr("'size'")));
  const auto nothing = run_program({program_path("descriptors"), "--data", *folder / "nowhere"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("nowhere/train"));
  const auto misspelt = run_program(training(1, {"--partition", "sizes"}));
  EXPECT_EQ(misspelt.exit_code, 2);
  EXPECT_THAT(misspelt.err, HasSubstr("one of all, size, mod"));
}

}  // namespace
}  // namespace tutti::testing::descriptors_test
