// Tests two halves of one network as processes: equal bits, killed tasks, and tasks that do not meet.
#include <memory>
#include <signal.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/tool.h"
#include "tutti/base/error.h"
#include "tutti/base/ports.h"

namespace tutti::testing::halves_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Flags = std::vector<std::string>;

class Halves : public ::testing::Test {
 protected:
  static Flags command(const Flags& flags) {
    Flags all = {program_path("../test/halves_program"), "--threads", "1"};
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  }
  std::unique_ptr<RunningProgram> start(int task, Flags flags) const {
    for (const std::string& flag : {std::string("--cluster_spec"), spec_, std::string("--job_name"),
                                    std::string("worker"), std::string("--task_index"), std::to_string(task)})
      flags.push_back(flag);
    return std::make_unique<RunningProgram>(command(flags));
  }

 private:
  const std::vector<int> ports_ = free_ports(2);
  const std::string spec_ = fmt::format("worker|127.0.0.1:{};127.0.0.1:{}", ports_[0], ports_[1]);
};

TEST_F(Halves, on_two_tasks_train_to_the_bits_of_both_on_one) {
  const ProgramResult alone = run_program(command({"--alone", "--steps", "12"}));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.out, AllOf(HasSubstr("loss 0x"), HasSubstr("\ntail ")));
  const auto client = start(0, {"--steps", "12"});
  const auto server = start(1, {});
  EXPECT_EQ(client->wait(), 0) << client->err();
  EXPECT_EQ(server->wait(), 0) << server->err();
  EXPECT_EQ(client->out(), alone.out);
}

TEST_F(Halves, are_resumed_together_from_the_checkpoints_of_one) {
  const TestFolder folder;
  const auto train = [&](const std::string& log, const char* steps) {
    const auto server = start(1, {});
    const auto client = start(0, {"--steps", steps, "--logdir", folder / log});
    EXPECT_EQ(client->wait(), 0) << client->err();
    EXPECT_EQ(server->wait(), 0) << server->err();
    return client->out();
  };
  const std::string straight = train("straight", "12");
  train("resumed", "6");
  const std::string resumed = train("resumed", "12");
  EXPECT_THAT(straight, AllOf(HasSubstr("step 6 loss"), HasSubstr("\ntail ")));
  EXPECT_EQ(resumed, straight.substr(straight.find("step 7 ")));
}

TEST_F(Halves, of_which_one_is_killed_in_its_backward_are_told_apart_by_name) {
  const auto server = start(1, {"--die-at", "3"});
  const auto client = start(0, {"--steps", "12"});
  EXPECT_EQ(client->wait(), exit_code(ErrorKind::PeerLost)) << client->err();
  EXPECT_THAT(client->err(), AllOf(HasSubstr("worker/1 (127.0.0.1:"), HasSubstr("'backward' (tail)")));
  EXPECT_EQ(server->wait(), 128 + SIGKILL);
}

TEST_F(Halves, that_are_stopped_are_not_waited_for_longer_than_told) {
  const auto server = start(1, {});
  const auto client = start(0, {"--steps", "1000000", "--timeout", "2"});
  client->wait_for_output("loss");
  ASSERT_EQ(kill(server->pid(), SIGSTOP), 0);
  EXPECT_EQ(client->wait(), exit_code(ErrorKind::Timeout)) << client->err();
  EXPECT_THAT(client->err(), HasSubstr("worker/1 (127.0.0.1:"));
}

TEST_F(Halves, that_nobody_comes_for_end_by_themselves) {
  const auto server = start(1, {"--start-timeout", "1"});
  EXPECT_EQ(server->wait(), exit_code(ErrorKind::Timeout)) << server->err();
  EXPECT_THAT(server->err(), HasSubstr("for a client of the modules of worker/1"));
}

TEST_F(Halves, name_a_client_that_is_killed) {
  const auto client = start(0, {"--steps", "1000000"});
  const auto server = start(1, {"--start-timeout", "10"});
  client->wait_for_output("loss");
  ASSERT_EQ(kill(client->pid(), SIGKILL), 0);
  EXPECT_EQ(server->wait(), exit_code(ErrorKind::PeerLost)) << server->err();
  EXPECT_THAT(server->err(), HasSubstr("worker/0 (host"));
}

TEST_F(Halves, that_do_not_come_are_named) {
  const auto client = start(0, {"--steps", "1", "--start-timeout", "1"});
  EXPECT_EQ(client->wait(), exit_code(ErrorKind::Timeout)) << client->err();
  EXPECT_THAT(client->err(), AllOf(HasSubstr("for the module 'tail'"), HasSubstr("worker/1 (127.0.0.1:")));
}

}  // namespace
}  // namespace tutti::testing::halves_test
