// Tests trainings of several processes of which a message is changed on its way: none ends with other
// weights.
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/together.h"
#include "tutti/base/error.h"

namespace tutti::testing::changed_messages_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The number of a message in the middle of the training, and how long it has to be at least. Tasks of one
// host do not send the tensors of a call, which lie in memory that they share.
constexpr const char* kOfGradients = "40 1000";
constexpr const char* kOfCalls = "12 64";

class ChangedMessage : public ::testing::Test {
 protected:
  // Runs the job of `tutti run` with these flags, of which a process receives a changed bit.
  ProgramResult run(const Flags& launch, const Flags& more, const std::string& message) const {
    const Flags command = with({program_path("tutti"), "run"}, launch);
    const Flags bad_card = {"--", "env", "LD_PRELOAD=" + program_path("../test/bad_card.so"),
                            "TUTTI_TEST_BAD_CARD=" + changed_ + " " + message};
    const Flags program = with({together_program(), "--threads", "1", "--report", report_}, flags_);
    const ProgramResult result = run_program(with(with(with(command, bad_card), program), more));
    EXPECT_TRUE(std::filesystem::exists(changed_)) << "no bit was changed: " << result.err;
    return result;
  }
  std::string undisturbed() const { return hash_of(on_workers(1, flags_), folder_); }

  const TestFolder folder_;
  const std::string changed_ = folder_ / "changed";
  const std::string report_ = folder_ / "changed.json";
  const Flags flags_ = {"--net", "normed", "--lanes", "6", "--batch", "2", "--steps", "12"};
};

TEST_F(ChangedMessage, ends_an_all_reduce_with_an_error_that_names_both_workers) {
  const ProgramResult result = run({"-n", "3"}, {"--comm", "tcp", "--message-checksums", "on"}, kOfGradients);
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::DataLoss));
  EXPECT_THAT(result.err, AllOf(HasSubstr("DataLoss: "), HasSubstr("has received other bytes than worker/"),
                                HasSubstr("was changed on its way")));
  EXPECT_FALSE(std::filesystem::exists(report_));
}

TEST_F(ChangedMessage, lets_workers_that_survive_losses_make_the_step_again) {
  const ProgramResult result =
      run({"-n", "3", "--min", "2"}, {"--comm", "tcp", "--message-checksums", "on"}, kOfGradients);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("has received other bytes than worker/"),
                                HasSubstr("with 3 workers: the same workers connect again")));
  EXPECT_EQ(json_of(report_).at("weights_sha256"), undisturbed());
}

TEST_F(ChangedMessage, ends_a_training_with_servers_with_an_error_that_names_the_call) {
  for (const char* strategy : {"ps-sync", "ps-async"}) {
    std::filesystem::remove(changed_);
    const ProgramResult result =
        run({"--ps", "1", "-n", "2"}, {"--strategy", strategy, "--message-checksums", "on"}, kOfCalls);
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::DataLoss)) << strategy;
    EXPECT_THAT(result.err, AllOf(HasSubstr("DataLoss: "), HasSubstr("ps/0"), HasSubstr("at step"),
                                  HasSubstr("was changed on its way")));
    EXPECT_FALSE(std::filesystem::exists(report_));
  }
}

TEST_F(ChangedMessage, ends_a_training_in_graph_with_an_error) {
  const ProgramResult result =
      run({"-n", "3"}, {"--strategy", "in-graph", "--message-checksums", "on"}, kOfCalls);
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::DataLoss));
  EXPECT_THAT(result.err, AllOf(HasSubstr("DataLoss: "), HasSubstr("was changed on its way")));
  EXPECT_FALSE(std::filesystem::exists(report_));
}

}  // namespace
}  // namespace tutti::testing::changed_messages_test
