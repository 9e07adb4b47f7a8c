// Tests training under the srun of a real Slurm with one node, this machine: munged, slurmctld and slurmd,
// with their keys, sockets and state in a folder of the test and at ports of their own.
#include <csignal>
#include <filesystem>
#include <random>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launchers/training.h"
#include "tutti/base/ports.h"
#include "tutti/base/text.h"

namespace tutti::testing::srun_test {
namespace {

using ::testing::HasSubstr;

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Ends its program as an administrator would, and waits for the end.
class Daemon {
 public:
  Daemon(const std::vector<std::string>& command, const std::vector<std::string>& environment)
      : program_(command, environment) {}
  ~Daemon() {
    kill(program_.pid(), SIGTERM);
    program_.wait();
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

 private:
  RunningProgram program_;
};

// Returns 22 for "slurm-wlm 22.05.8"; 0 if the version is unknown.
int64_t version_of_slurm() {
  const std::string version = run_program({"slurmd", "-V"}).out;
  return parse_int(version.substr(0, version.find('.')).substr(version.find(' ') + 1)).value_or(0);
}

class Slurm {
 public:
  Slurm() {
    // munged requires a key of its own and a socket that everybody can reach.
    std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
    std::random_device random;
    std::string key;
    while (key.size() < 128) key += static_cast<char>(random());
    std::filesystem::permissions(folder_.write("munge.key", key), std::filesystem::perms(0400));
    write_configuration();
    const std::string munge = folder_ / "munge";
    start({"munged", "--foreground", "--key-file=" + munge + ".key", "--socket=" + munge + ".socket",
           "--log-file=" + munge + ".log", "--pid-file=" + munge + ".pid", "--seed-file=" + munge + ".seed"});
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(munge + ".socket"); }));
    start({"slurmctld", "-D", "-i"});
    start({"slurmd", "-D"});
  }
  ~Slurm() {
    while (!daemons_.empty()) daemons_.pop_back();
  }
  Slurm(const Slurm&) = delete;
  Slurm& operator=(const Slurm&) = delete;

  std::string environment() const { return "SLURM_CONF=" + (folder_ / "slurm.conf"); }

  bool comes_up() const {
    return eventually([&] {
      return run_program({"sinfo", "--noheader", "--format=%T"}, {environment()}).out == "idle\n";
    });
  }

 private:
  void write_configuration() {
    for (const char* name : {"state", "spool"}) std::filesystem::create_directory(folder_ / name);
    const std::vector<int> ports = free_ports(2);
    std::string text = "ClusterName=tutti\nSlurmUser=root\nSlurmdUser=root\n";
    text += fmt::format("SlurmctldHost={}(127.0.0.1)\n", host_name());
    text += fmt::format("SlurmctldPort={}\nSlurmdPort={}\n", ports[0], ports[1]);
    text += fmt::format("AuthType=auth/munge\nAuthInfo=socket={}\n", folder_ / "munge.socket");
    text += "ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nSelectType=select/linear\n";
    text += "SwitchType=switch/none\nJobAcctGatherType=jobacct_gather/none\n";
    text += fmt::format("StateSaveLocation={}\nSlurmdSpoolDir={}\n", folder_ / "state", folder_ / "spool");
    text += fmt::format("SlurmctldPidFile={}\nSlurmdPidFile={}\n", folder_ / "c.pid", folder_ / "d.pid");
    // The port at which workers meet depends on the job's number: two clusters on one machine should not both
    // begin with 1.
    text += fmt::format("FirstJobId={}\n", getpid() % 60000 + 1);
    // Uses 4 CPUs on any machine.
    text += "SlurmdParameters=config_overrides\n";
    text += fmt::format("NodeName={} NodeAddr=127.0.0.1 CPUs=4\n", host_name());
    text += "PartitionName=all Nodes=ALL Default=YES State=UP\n";
    folder_.write("slurm.conf", text);
    // Without control groups, newer versions do not start without this setting, and older ones not with it.
    if (version_of_slurm() >= 23) folder_.write("cgroup.conf", "CgroupPlugin=disabled\n");
  }
  void start(const std::vector<std::string>& command) {
    daemons_.push_back(std::make_unique<Daemon>(command, std::vector<std::string>{environment()}));
  }

  const TestFolder folder_;
  std::vector<std::unique_ptr<Daemon>> daemons_;
};

std::string why_not() {
  if (geteuid() != 0) return "this needs root";
  for (const char* program : {"srun", "slurmctld", "slurmd", "munged"}) {
    if (!is_installed(program))
      return fmt::format("there is no {} (apt-get install slurm-wlm munge)", program);
  }
  return "";
}

// All tests share one cluster.
class Srun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (why_not().empty()) slurm = std::make_unique<Slurm>();
  }
  static void TearDownTestSuite() { slurm.reset(); }
  void SetUp() override {
    if (const std::string reason = why_not(); !reason.empty())
      GTEST_SKIP() << "NOTHING IS TESTED HERE: " << reason;
    ASSERT_TRUE(slurm->comes_up());
  }

  ProgramResult srun(const std::vector<std::string>& launcher_flags,
                     const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> words = {"srun", "-n", "4"};
    words.insert(words.end(), launcher_flags.begin(), launcher_flags.end());
    return run_program(training_.command(words, flags), training_.environment({slurm->environment()}));
  }

  const Training training_;
  static inline std::unique_ptr<Slurm> slurm;
};

TEST_F(Srun, four_tasks_end_with_the_bits_of_one) {
  const auto result = srun({});
  training_.expect_the_bits_of_one(result, 4);
  EXPECT_THAT(result.err, HasSubstr("4 workers connected over shm (on one host)"));
}

TEST_F(Srun, tcp_does_the_same) {
  const auto result = srun({}, {"--comm", "tcp"});
  training_.expect_the_bits_of_one(result, 4);
  EXPECT_THAT(result.err, HasSubstr("4 workers connected over tcp"));
}

TEST_F(Srun, so_do_tasks_that_are_told_by_pmi2) { training_.expect_the_bits_of_one(srun({"--mpi=pmi2"}), 4); }

// Each task is the launcher of a node.
TEST_F(Srun, launchers_that_go_on_without_lost_workers_know_each_other) {
  setenv("TUTTI_SECRET", "ours", 1);
  const auto result = srun({program_path("tutti"), "run", "--min", "1", "--"});
  unsetenv("TUTTI_SECRET");
  training_.expect_the_bits_of_one(result, 4);
  EXPECT_THAT(result.err, HasSubstr("node 0 starts 1 worker and waits up to"));
}

TEST_F(Srun, ends_all_when_a_task_is_killed) {
  RunningProgram run(training_.endless_command({"srun", "-n", "4"}),
                     training_.environment({slurm->environment()}));
  ASSERT_TRUE(eventually([&] { return training_.has_come_to(2); }));
  const pid_t victim = training_.process_with("SLURM_PROCID=2");
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  EXPECT_NE(run.wait(), 0);
  EXPECT_THAT(run.err(), HasSubstr("worker/2"));
  EXPECT_TRUE(eventually([&] { return training_.processes().empty(); }));
}

}  // namespace
}  // namespace tutti::testing::srun_test
