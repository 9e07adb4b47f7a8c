// Tests `tutti run -H` with a real sshd.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launchers/hosts.h"
#include "tests/launchers/sshd.h"
#include "tests/launchers/training.h"
#include "tests/run_job.h"
#include "tutti/base/file.h"

namespace tutti::testing::ssh_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Ssh : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = Sshd::why_not(); !reason.empty())
      GTEST_SKIP() << "NOTHING IS TESTED HERE: " << reason;
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    sshd_ = std::make_unique<Sshd>(mark_);
  }

  // `tutti run -H HOSTS FLAGS --`, for a program or the start of a training.
  Words launcher(const std::string& hosts, const Words& flags = {}) const {
    return Words{program_path("tutti"), "run", "-H", hosts, "--rsh", sshd_->ssh()} + flags + Words{"--"};
  }
  ProgramResult run(const std::string& hosts, const std::string& script, const Words& flags = {},
                    Words environment = {}, Crashes crashes = Crashes::Fail) const {
    return run_program(launcher(hosts, flags) + Words{"sh", "-c", script},
                       environment + training_.environment(), crashes);
  }
  bool nobody_is_left() const {
    return eventually([this] { return training_.processes().empty(); });
  }
  void expect_one_line(const ProgramResult& result, int exit_code, const std::string& text) const {
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_TRUE(nobody_is_left());
  }

  const Training training_;
  const std::string mark_ = training_.environment().front();
  std::unique_ptr<Sshd> sshd_;
};

class SshWorlds : public Ssh, public ::testing::WithParamInterface<std::pair<const char*, int>> {};
INSTANTIATE_TEST_SUITE_P(Ssh, SshWorlds,
                         ::testing::Values(std::pair("localhost:1,127.0.0.2:1", 2),
                                           std::pair("127.0.0.2:2,localhost", 3),
                                           std::pair("127.0.0.2:2,127.0.0.3:2", 4),
                                           std::pair("localhost:2,127.0.0.2:2,127.0.0.3:4", 5)),
                         [](const auto& info) { return fmt::format("of_{}", info.param.second); });

TEST_P(SshWorlds, end_with_the_bits_of_one) {
  const auto [hosts, workers] = GetParam();
  const auto result = run_program(training_.command(launcher(hosts, {"-n", std::to_string(workers)})),
                                  training_.environment());
  training_.expect_the_bits_of_one(result, workers);
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Ssh, workers_have_the_folder_the_variables_and_output_with_their_names) {
  const std::string folder = std::filesystem::canonical(training_.folder().path());
  const auto result = run_program(
      Words{"env", "--chdir", folder} +
          launcher("localhost:1,127.0.0.2:1", {"-x", "COLOUR", "-x", "MODE=a 'b'"}) +
          Words{"sh", "-c", "echo $PWD $COLOUR $MODE $OTHER $TUTTI_SEED $TUTTI_RSH; echo why >&2"},
      training_.environment({"COLOUR=red", "OTHER=", "TUTTI_SEED=5", "TUTTI_RSH=nothing"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(lines_of(result.out), ::testing::UnorderedElementsAre("[worker/0] " + folder + " red a 'b' 5",
                                                                    "[worker/1] " + folder + " red a 'b' 5"));
  EXPECT_THAT(lines_of(result.err), ::testing::UnorderedElementsAre("[worker/0] why", "[worker/1] why"));
}

TEST_F(Ssh, no_list_of_processes_shows_the_variables_or_the_program) {
  const auto result =
      run("127.0.0.2", "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null",
          {"-x", "PASSWORD"}, {"PASSWORD=swordfish"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("run-host "));
  EXPECT_THAT(result.out, Not(HasSubstr("swordfish")));
}

TEST_F(Ssh, a_worker_that_fails_is_named_with_its_host_and_ends_all) {
  const auto result = run("localhost:1,127.0.0.2:2",
                          "[ $TUTTI_TASK_INDEX = 2 ] && { echo last words; kill -9 $$; }; sleep 1000", {}, {},
                          Crashes::AskedFor);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("tutti run on 127.0.0.2: worker/2 (pid "));
  EXPECT_THAT(result.err, HasSubstr("was killed by SIGKILL"));
  EXPECT_THAT(result.err, HasSubstr("  | last words"));
  EXPECT_THAT(result.err, HasSubstr("tutti run: ending the tasks on 1 other host\n"));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Ssh, exit_codes_are_those_of_the_workers) {
  for (const int code : {0, 1, 7, 10, 127, 255}) {
    const auto result =
        run("localhost:1,127.0.0.2:1", fmt::format("[ $TUTTI_TASK_INDEX = 0 ] || exit {}", code));
    EXPECT_EQ(result.exit_code, code) << result.err;
  }
}

TEST_F(Ssh, much_output_of_all_arrives_whole) {
  const auto result = run("127.0.0.2:2,127.0.0.3:1", "seq 200000; seq 100000 >&2");
  EXPECT_EQ(result.exit_code, 0);
  std::map<std::string, int> counts;
  for (const std::string& line : lines_of(result.out)) ++counts[line.substr(0, line.find(' '))];
  EXPECT_EQ(counts, (std::map<std::string, int>{
                        {"[worker/0]", 200000}, {"[worker/1]", 200000}, {"[worker/2]", 200000}}));
  EXPECT_EQ(lines_of(result.err).size(), 300000U);
}

TEST_F(Ssh, a_signal_lets_all_save_a_checkpoint_and_end) {
  RunningProgram job(training_.endless_command(launcher("localhost:1,127.0.0.2:1")), training_.environment());
  ASSERT_TRUE(eventually([&] { return training_.has_come_to(2); }));
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_THAT(job.err(), HasSubstr("passed SIGINT on to the tasks"));
  EXPECT_THAT(job.err(), Not(HasSubstr("did not end in time")));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Ssh, a_second_signal_kills_all) {
  RunningProgram job(
      launcher("localhost:1,127.0.0.2:1") + Words{"sh", "-c", "trap '' INT; echo up; sleep 1000"},
      training_.environment());
  job.wait_for_output("[worker/0] up");
  job.wait_for_output("[worker/1] up");
  kill(job.pid(), SIGINT);
  job.wait_for_error("passed SIGINT on");
  kill(job.pid(), SIGINT);
  EXPECT_NE(job.wait(), 0);
  EXPECT_TRUE(nobody_is_left());
}

// The launcher's death is seen on the other host as the end of the connection.
TEST_F(Ssh, nobody_survives_the_launchers_sudden_death) {
  RunningProgram job(
      launcher("localhost:1,127.0.0.2:2", {"-x", "LAUNCHERS_TEST"}) +
          Words{"sh", "-c", "echo up; setsid sleep 1000 & trap '' INT TERM HUP; sleep 1000; sleep 1000"},
      training_.environment());
  for (const char* worker : {"0", "1", "2"}) job.wait_for_output(fmt::format("[worker/{}] up", worker));
  kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(nobody_is_left());
}

// Kills each process between this launcher and a worker on another host.
class SshCut : public Ssh, public ::testing::WithParamInterface<std::string> {
 protected:
  static std::string text_of(pid_t pid, const char* file) {
    std::string text = read_system_file(fmt::format("/proc/{}/{}", pid, file));
    std::replace(text.begin(), text.end(), '\0', ' ');
    return text;
  }
  pid_t victim() const {
    if (GetParam() == "worker") return training_.process_with("TUTTI_TASK_INDEX=1");
    const bool ssh = GetParam() == "ssh";
    const std::string command = ssh ? "ssh " : program_path("tutti") + " run-host 1";
    for (const pid_t pid : training_.processes()) {
      const bool remote = text_of(pid, "environ").find("SSH_CONNECTION=127.0.0.1 ") != std::string::npos;
      const bool guardian = text_of(pid, "comm").starts_with("tutti-guardian");
      if (text_of(pid, "cmdline").starts_with(command) && remote != ssh && !guardian) return pid;
    }
    return -1;
  }
};
INSTANTIATE_TEST_SUITE_P(Ssh, SshCut, ::testing::Values("ssh", "host_launcher", "worker"),
                         [](const auto& info) { return info.param; });

TEST_P(SshCut, ends_all_and_names_the_host) {
  RunningProgram job(launcher("localhost:1,127.0.0.2:1") + Words{"sh", "-c", "echo up; sleep 1000; exit 0"},
                     training_.environment(), Crashes::AskedFor);
  for (const char* worker : {"0", "1"}) job.wait_for_output(fmt::format("[worker/{}] up", worker));
  const pid_t pid = victim();
  ASSERT_GT(pid, 0);
  kill(pid, SIGKILL);
  EXPECT_EQ(job.wait(), GetParam() == "worker" ? 128 + SIGKILL : 10);
  EXPECT_THAT(job.err(), AnyOf(HasSubstr("host 127.0.0.2: the connection to its launcher was lost"),
                               HasSubstr("tutti run on 127.0.0.2: worker/1")));
  EXPECT_TRUE(nobody_is_left());
}

TEST_F(Ssh, restarts_the_whole_job_from_its_checkpoint) {
  const std::string once = training_.folder() / "once";
  const auto result = run("localhost:1,127.0.0.2:1",
                          "if [ $TUTTI_TASK_INDEX = 1 ] && mkdir " + once +
                              " 2>/dev/null; then exit 3; fi; "
                              "[ $TUTTI_TASK_INDEX = 1 ] || sleep 1; echo done",
                          {"--restarts", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("tutti run: restart 1 of 1\n"));
}

TEST_F(Ssh, servers_and_the_master_are_on_the_first_host) {
  const auto result = run("127.0.0.2:1,localhost:1", "echo $TUTTI_CLUSTER_SPEC", {"--ps", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* task : {"[ps/0] ", "[ps/1] ", "[worker/0] ", "[worker/1] "})
    EXPECT_THAT(result.out, HasSubstr(fmt::format("{}ps|127.0.0.2:", task)));
}

TEST_F(Ssh, says_in_a_line_what_is_wrong_with_a_host) {
  const auto with = [&](const std::string& hosts, const Words& flags) {
    return run_program(Words{program_path("tutti"), "run", "-H", hosts} + flags + Words{"--", "true"},
                       training_.environment());
  };
  const std::string both = "localhost:1,127.0.0.2:1";
  expect_one_line(with("localhost:1,no-such-host.invalid:1", {"--rsh", sshd_->ssh()}), 2,
                  "host no-such-host.invalid: ssh could not connect");
  expect_one_line(with(both, {"--rsh", sshd_->ssh("-o IdentityFile=/dev/null -o IdentitiesOnly=yes -F none") +
                                           "_missing"}),
                  2, "Can't open user config file");
  expect_one_line(with(both, {"--rsh", sshd_->ssh("-o UserKnownHostsFile=/dev/null")}), 2,
                  "Host key verification failed.");
  std::filesystem::rename(sshd_->folder() / "key", sshd_->folder() / "away");
  expect_one_line(with(both, {"--rsh", sshd_->ssh()}), 2, "Permission denied");
  std::filesystem::rename(sshd_->folder() / "away", sshd_->folder() / "key");
  expect_one_line(with(both, {"--rsh", sshd_->ssh(), "--remote-tutti", "/no/tutti"}), 2,
                  "there is no program /no/tutti on it");
  expect_one_line(with(both, {"--rsh", "no-such-agent"}), 2, "no-such-agent: there is no such program");
  expect_one_line(with(both, {"--rsh", "true"}), 2, "its launcher did not start");
  expect_one_line(with(both, {"--rsh", "sleep 1000 #", "--start-timeout", "1"}), 2, "sleep");
}

TEST_F(Ssh, waits_no_longer_than_it_was_told) {
  // An agent that never answers, as a login shell that waits for something.
  const std::string agent = training_.folder().write("agent", "#!/bin/sh\nexec sleep 1000\n");
  std::filesystem::permissions(agent, std::filesystem::perms(0700));
  const auto result = run_program(Words{program_path("tutti"), "run", "-H", "localhost:1,127.0.0.2:1",
                                        "--rsh", agent, "--start-timeout", "0.5", "--", "true"},
                                  training_.environment());
  expect_one_line(result, 11, "after 0.5 s there is no answer from the launcher on 127.0.0.2;");
}

TEST_F(Ssh, an_agent_that_closes_its_streams_and_goes_on_is_ended) {
  const std::string agent = training_.folder().write("agent", "#!/bin/sh\nexec sleep 1000 >&- 2>&-\n");
  std::filesystem::permissions(agent, std::filesystem::perms(0700));
  const auto result = run_program(
      Words{program_path("tutti"), "run", "-H", "localhost:1,127.0.0.2:1", "--rsh", agent, "--", "true"},
      training_.environment(), Crashes::AskedFor);
  expect_one_line(result, 2, "host 127.0.0.2: its launcher did not start");
}

TEST_F(Ssh, a_login_shell_may_print_something_without_the_end_of_a_line) {
  const std::string agent = training_.folder().write(
      "agent", "#!/bin/sh\nprintf '\\033]0;title\\a'; printf hello >&2; shift; exec sh -c \"$*\"\n");
  std::filesystem::permissions(agent, std::filesystem::perms(0700));
  const auto result =
      run_program(Words{program_path("tutti"), "run", "-H", "other", "--rsh", agent, "--", "echo", "fine"},
                  training_.environment());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[worker/0] fine\n");
}

TEST_F(Ssh, another_version_is_refused) {
  const std::string tutti = training_.folder().write(
      "tutti",
      "#!/bin/sh\necho Welcome!\n"
      "echo 'tutti-run-host/1 ready {\"version\":\"0.0.1\",\"ports\":[1],\"client\":\"\",\"own\":\"\"}'\n"
      "exec cat\n");
  std::filesystem::permissions(tutti, std::filesystem::perms(0700));
  expect_one_line(run("127.0.0.2", "true", {"--remote-tutti", tutti}), 2, "has tutti 0.0.1 at " + tutti);
}

TEST_F(Ssh, a_program_that_is_not_there_is_named_with_its_host) {
  const auto result =
      run_program(launcher("127.0.0.2:1") + Words{"no-such-program"}, training_.environment());
  expect_one_line(result, 2, "tutti run on 127.0.0.2: no-such-program: there is no such program");
}

TEST_F(Ssh, a_folder_that_is_not_there_is_replaced_by_the_home) {
  const std::string gone = training_.folder() / "gone";
  std::filesystem::create_directory(gone);
  // The agent removes the folder, as if the other host had none.
  const std::string agent = training_.folder().write(
      "agent", fmt::format("#!/bin/sh\nrmdir {}\nshift\ncd /\nexec sh -c \"$*\"\n", gone));
  std::filesystem::permissions(agent, std::filesystem::perms(0700));
  const auto result = run_program(
      Words{"env", "--chdir", gone, program_path("tutti"), "run", "-H", "other", "--rsh", agent, "--", "pwd"},
      training_.environment({"HOME=/usr"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[worker/0] /usr\n");
  EXPECT_THAT(result.err, HasSubstr("there is no folder"));
}

}  // namespace
}  // namespace tutti::testing::ssh_test
