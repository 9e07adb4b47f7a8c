// Tests the batch scripts of deploy/slurm on a real Slurm with two nodes.
#include <csignal>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launchers/slurm.h"
#include "tests/launchers/training.h"
#include "tutti/base/file.h"

namespace tutti::testing::sbatch_test {
namespace {

using ::testing::HasSubstr;

constexpr Slurm::Nodes kNodes = Slurm::Nodes::TwoHosts;

// All tests share one cluster.
class Sbatch : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (Slurm::why_not(kNodes).empty()) slurm = std::make_unique<Slurm>(kNodes);
  }
  static void TearDownTestSuite() { slurm.reset(); }
  void SetUp() override {
    if (const std::string reason = Slurm::why_not(kNodes); !reason.empty())
      GTEST_SKIP() << "NOTHING IS TESTED HERE: " << reason;
    ASSERT_TRUE(slurm->comes_up());
  }
  void TearDown() override {
    if (!job_.empty()) slurm->run({"scancel", job_});
  }

  // Submits a script of deploy/slurm with the training, in a folder of the test.
  void submit(const std::string& script, const Words& options, const Words& flags = {},
              const Words& variables = {}) {
    Words program = training_.command({}, flags);
    std::erase(program, "--logdir=");  // the script says where the checkpoints are
    const Words sbatch = {"sbatch", "--parsable", "--chdir=" + training_.folder().path(), "--output=output",
                          "--cpus-per-task=2"};
    const Words path = {fmt::format("PATH={}:{}", program_path(""), getenv("PATH"))};
    const ProgramResult result = slurm->run(sbatch + options + Words{script_of(script)} + program,
                                            training_.environment(path + variables));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    job_ = result.out.substr(0, result.out.find('\n'));
  }
  static std::string script_of(const std::string& name) { return source_path("deploy/slurm/" + name); }
  // Returns PENDING, RUNNING, COMPLETED, ...
  std::string state() const {
    const std::string text = slurm->run({"scontrol", "--oneliner", "show", "job", job_}).out;
    const size_t begin = text.find("JobState=") + std::string("JobState=").size();
    return text.substr(begin, text.find(' ', begin) - begin);
  }
  bool comes_to(const std::string& state) const {
    return eventually([&] { return this->state() == state; });
  }
  std::string output() const { return read_file(training_.folder() / "output"); }
  // Returns true as soon as the output contains the text.
  bool says(const std::string& text) const {
    return eventually([&] {
      return std::filesystem::exists(training_.folder() / "output") &&
             output().find(text) != std::string::npos;
    });
  }
  void expect_the_bits_of_one(int workers, const Words& flags = {}) const {
    ASSERT_TRUE(comes_to("COMPLETED")) << state() << "\n" << output();
    training_.expect_the_bits_of_one({0, "", output()}, workers, flags);
  }
  // Returns true as soon as the job has saved the checkpoint of step 3.
  bool trains() const {
    const std::string run = training_.folder() / ("runs/" + job_);
    return eventually([&] { return std::filesystem::exists(run + "/ckpt-3"); });
  }
  void signal(const std::string& name) const { slurm->run({"scancel", "--signal=" + name, job_}); }
  // Tells the job, while it trains, that its time is nearly up, and waits until it trains again.
  void expect_to_resume_after_the_signal() const {
    ASSERT_TRUE(trains()) << output();
    signal("USR1");
    EXPECT_TRUE(says("received SIGUSR1")) << output();
    EXPECT_TRUE(says("resumed from")) << output();
  }

  // Returns the launcher of the step's task with this number, or -1.
  pid_t launcher_on(const std::string& task) const {
    pid_t first = -1;
    for (const pid_t pid : processes_with("SLURM_PROCID=" + task)) {
      const std::string command = read_system_file(fmt::format("/proc/{}/cmdline", pid));
      if (command.find(std::string("tutti\0run", 9)) != std::string::npos && (first < 0 || pid < first))
        first = pid;
    }
    return first;
  }

  // It can be disturbed: it saves a checkpoint after each step, and takes some seconds.
  const Words kLong = {"--steps", "50"};
  const Words kSaved = {"--checkpoint-every", "1"};
  const Training training_;
  std::string job_;
  static inline std::unique_ptr<Slurm> slurm;
};

TEST_F(Sbatch, workers_on_one_node_end_with_the_bits_of_one) {
  submit("one-node.sbatch", {}, {}, {"WORKERS=4"});
  expect_the_bits_of_one(4);
  EXPECT_THAT(output(), HasSubstr("4 workers connected over shm (on one host)"));
}

TEST_F(Sbatch, workers_on_two_nodes_end_with_the_bits_of_one) {
  submit("many-nodes.sbatch", {});
  expect_the_bits_of_one(4);
  EXPECT_THAT(output(), HasSubstr("4 workers connected over shm+tcp (on several hosts)"));
}

// Slurm gives each node two GPUs. Since they do not exist, the workers train on CPUs.
TEST_F(Sbatch, there_is_a_worker_for_each_GPU) {
  submit("gpus.sbatch", {"--nodes=2", "--gpus-per-node=2"});
  expect_the_bits_of_one(4);
}

TEST_F(Sbatch, a_job_on_one_node_that_is_told_to_end_resumes) {
  submit("one-node.sbatch", {}, kLong + kSaved, {"WORKERS=4"});
  expect_to_resume_after_the_signal();
  expect_the_bits_of_one(4, kLong);
}

TEST_F(Sbatch, a_job_on_two_nodes_that_is_told_to_end_resumes) {
  submit("many-nodes.sbatch", {}, kLong + kSaved);
  expect_to_resume_after_the_signal();
  expect_the_bits_of_one(4, kLong);
}

TEST_F(Sbatch, a_job_that_is_cancelled_does_not_come_back) {
  submit("many-nodes.sbatch", {}, Words{"--steps", "1000000"} + kSaved);
  ASSERT_TRUE(trains()) << output();
  slurm->run({"scancel", job_});
  EXPECT_TRUE(comes_to("CANCELLED")) << state();
  EXPECT_TRUE(eventually([&] { return training_.processes().empty(); }));
  EXPECT_EQ(state(), "CANCELLED");
}

// A wrong flag is not tried again.
TEST_F(Sbatch, a_job_that_fails_stays_failed) {
  submit("one-node.sbatch", {}, {"--lanes", "-1"});
  EXPECT_TRUE(comes_to("FAILED")) << state() << "\n" << output();
}

TEST_F(Sbatch, a_job_goes_on_without_a_node_that_is_lost) {
  submit("lost-nodes.sbatch", {"--nodes=2"}, kLong + kSaved);
  ASSERT_TRUE(trains()) << output();
  const pid_t launcher = launcher_on("1");
  ASSERT_GT(launcher, 0);
  kill(launcher, SIGKILL);
  ASSERT_TRUE(comes_to("COMPLETED")) << state() << "\n" << output();
  EXPECT_THAT(output(), HasSubstr("with 2 workers: worker/2 is gone, worker/3 is gone"));
  training_.expect_the_bits_of_one({0, "", output()}, 2, kLong);
}

TEST_F(Sbatch, a_job_that_may_lose_nodes_resumes_as_well) {
  submit("lost-nodes.sbatch", {"--nodes=2"}, kLong + kSaved);
  expect_to_resume_after_the_signal();
  expect_the_bits_of_one(4, kLong);
}

// Slurm checks the time only every 30 seconds, so this takes a minute or two.
class SbatchSoak : public Sbatch {};

TEST_F(SbatchSoak, a_job_resumes_before_its_time_is_up) {
  submit("many-nodes.sbatch", {"--time=1", "--signal=USR1@30"}, Words{"--steps", "1000000"} + kSaved);
  EXPECT_TRUE(says("received SIGUSR1") || says("received SIGUSR1")) << output();
  EXPECT_TRUE(says("resumed from")) << output();
}

}  // namespace
}  // namespace tutti::testing::sbatch_test
