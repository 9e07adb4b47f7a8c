// Tests the manifests of deploy/kubernetes: their pods are started as processes on hosts with the names, the
// environment and the commands that the controllers give them (tests/oracles/pods.py).
#include <csignal>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launchers/hosts.h"
#include "tests/launchers/training.h"
#include "tutti/base/environment.h"
#include "tutti/base/test_oracle.h"

namespace tutti::testing::kubernetes_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kPython = "TUTTI_TEST_KUBERNETES_PYTHON";

std::string manifest_path(const std::string& name) { return source_path("deploy/kubernetes/" + name); }

Words words_of(const nlohmann::json& array) { return array.get<Words>(); }

class Pods : public ::testing::Test {
 protected:
  void SetUp() override {
    TUTTI_NEEDS_ORACLES();
    if (const std::string reason = NamedHosts::why_not(); !reason.empty())
      GTEST_SKIP() << "NOTHING IS TESTED HERE: " << reason;
  }

  // Makes the hosts of the pods. Their program gets these flags after its own.
  void plan(const std::string& manifest, const Words& flags) {
    const OracleAnswer answer = ask_oracle("pods.py", {manifest_path(manifest), "a secret of the cluster"});
    ASSERT_EQ(answer.status, 0) << answer.output;
    pods_ = nlohmann::json::parse(answer.output);
    flags_ = flags;
    std::vector<NamedHosts::Names> names;
    for (const auto& pod : pods_) names.push_back({pod.at("host"), words_of(pod.at("names"))});
    hosts_ = std::make_unique<NamedHosts>(names);
    processes_.resize(pods_.size());
  }
  void start(size_t pod) {
    Words command = hosts_->at(pod).here() + in_folders(pod, words_of(pods_[pod].at("command")));
    // A later flag replaces an earlier one, so the flags of the test replace the flags of the manifest.
    const Words of_test = training_.command({}, {});
    command.insert(command.end(), of_test.begin() + 1, of_test.end());
    std::erase(command, "--logdir=");
    processes_[pod] = std::make_unique<RunningProgram>(command + flags_, environment(pod));
  }
  void start_all() {
    for (size_t pod = 0; pod < pods_.size(); ++pod) start(pod);
  }
  // Returns the exit code of a command in the container of a pod.
  ProgramResult run_in(size_t pod, const Words& command) const {
    return run_program(hosts_->at(pod).here() + in_folders(pod, command), environment(pod));
  }
  Words environment(size_t pod) const {
    Words all = {fmt::format("PATH={}:{}", program_path(""), getenv("PATH")), "CUDA_VISIBLE_DEVICES="};
    for (const auto& [name, value] : pods_[pod].at("environment").items())
      all.push_back(name + "=" + value.get<std::string>());
    return training_.environment(all);
  }
  // Volumes are folders of the test.
  Words in_folders(size_t pod, Words words) const {
    for (const auto& mount : pods_[pod].at("mounts")) {
      const std::string path = mount.at("path");
      const bool is_shared = mount.at("shared");
      const std::string folder =
          training_.folder() / (is_shared ? "shared" + path : fmt::format("{}{}", pod, path));
      std::filesystem::create_directories(folder);
      for (std::string& word : words) {
        if (const size_t at = word.find(path + "/"); at != std::string::npos)
          word.replace(at, path.size(), folder);
      }
    }
    return words;
  }
  void expect_end(size_t pod, int code) {
    EXPECT_EQ(processes_[pod]->wait(), code) << pod << ": " << processes_[pod]->err();
  }
  void expect_the_bits_of_one(int workers, const Words& flags) {
    for (size_t pod = 0; pod < pods_.size(); ++pod) expect_end(pod, 0);
    training_.expect_the_bits_of_one({0, "", ""}, workers, flags);
  }
  bool trains() const {
    return eventually(
        [&] { return std::filesystem::exists(training_.folder() / "shared/runs/train/ckpt-3"); });
  }
  // Sends a signal to the first process of a pod's container.
  void signal(size_t pod, int number) {
    const std::string index = pods_[pod].at("host");
    run_program(hosts_->at(pod).here() +
                Words{"pkill", fmt::format("-{}", number), "--oldest", "--full", "^tutti run"});
  }

  const Training training_;
  nlohmann::json pods_;
  Words flags_;
  std::unique_ptr<NamedHosts> hosts_;
  std::vector<std::unique_ptr<RunningProgram>> processes_;
};

// Each checkpoint is saved, and the training takes some seconds.
const Words kLong = {"--steps", "50"};
const Words kSaved = {"--checkpoint-every", "1"};

TEST_F(Pods, of_a_job_end_with_the_bits_of_one) {
  plan("job.yaml", {});
  start_all();
  expect_the_bits_of_one(6, {});
  EXPECT_THAT(processes_[0]->err(), HasSubstr("6 workers connected over shm+tcp (on several hosts)"));
}

TEST_F(Pods, of_a_job_set_end_with_the_bits_of_one) {
  plan("jobset.yaml", {});
  start_all();
  expect_the_bits_of_one(4, {});
}

// Their variables RANK and WORLD_SIZE are those of pods, and not of workers.
TEST_F(Pods, of_a_pytorch_job_end_with_the_bits_of_one) {
  plan("pytorchjob.yaml", {});
  start_all();
  expect_the_bits_of_one(4, {});
}

TEST_F(Pods, of_a_job_go_on_without_one_and_take_its_successor_in) {
  plan("job.yaml", kLong + kSaved);
  start_all();
  ASSERT_TRUE(trains());
  signal(2, SIGKILL);
  expect_end(2, 128 + SIGKILL);
  processes_[0]->wait_for_error("with 4 workers");
  start(2);
  expect_the_bits_of_one(6, kLong);
}

// The image has STOPSIGNAL SIGUSR1, so the kubelet ends the pod with it, and kills it at the end of its time.
// The others go on, though its launcher has the list of the workers.
TEST_F(Pods, of_a_job_go_on_without_the_first_that_is_evicted) {
  plan("job.yaml", Words{"--steps", "200"} + kSaved);
  start_all();
  ASSERT_TRUE(trains());
  signal(0, SIGUSR1);
  processes_[1]->wait_for_error("going on at step");
  signal(0, SIGKILL);
  expect_end(0, 128 + SIGKILL);
  start(0);
  expect_the_bits_of_one(6, {"--steps", "200"});
}

// As a job that is restarted as a whole: one pod gets SIGTERM, all save and end, and all are started again.
TEST_F(Pods, of_a_job_set_save_when_one_is_evicted_and_resume) {
  plan("jobset.yaml", kLong + kSaved);
  start_all();
  ASSERT_TRUE(trains());
  signal(1, SIGTERM);
  expect_end(1, 128 + SIGTERM);
  expect_end(0, 128 + SIGTERM);
  start_all();
  processes_[0]->wait_for_error("resumed from");
  expect_the_bits_of_one(4, kLong);
}

TEST_F(Pods, of_a_pytorch_job_start_again_when_one_is_killed) {
  plan("pytorchjob.yaml", kLong + kSaved);
  start_all();
  ASSERT_TRUE(trains());
  signal(1, SIGKILL);
  expect_end(1, 128 + SIGKILL);
  expect_end(0, 10);
  start_all();
  processes_[0]->wait_for_error("resumed from");
  expect_the_bits_of_one(4, kLong);
}

TEST_F(Pods, pass_their_probes_with_and_without_the_chief) {
  plan("job.yaml", {"--steps", "100000", "--checkpoint-every", "1"});
  start_all();
  ASSERT_TRUE(trains());
  EXPECT_EQ(run_in(0, {"tutti", "status", "localhost:8080"}).exit_code, 0);
  for (size_t pod = 0; pod < pods_.size(); ++pod) {
    const ProgramResult probe = run_in(pod, words_of(pods_[pod].at("probe")));
    EXPECT_EQ(probe.exit_code, 0) << pod << probe.err;
  }
  for (size_t pod = 0; pod < pods_.size(); ++pod) signal(pod, SIGTERM);
  for (const auto& process : processes_) process->wait();
}

TEST_F(Pods, with_a_wrong_flag_end_with_the_code_that_the_policy_knows) {
  plan("job.yaml", {"--lanes", "-1"});
  start_all();
  for (size_t pod = 0; pod < pods_.size(); ++pod) expect_end(pod, 2);
}

// The schemas are too large for each run of the tests.
TEST(ManifestsSoak, are_as_the_schemas_of_their_versions_say) {
  const auto python = Environment::of_process().get(kPython);
  if (!python)
    GTEST_SKIP() << kPython << " is not set: manifests not checked. See scripts/kubernetes-schemas";
  const std::string definition =
      std::filesystem::path(*python).parent_path().parent_path() / "pytorchjobs.yaml";
  Words manifests = {definition, manifest_path("common.yaml"), manifest_path("job.yaml"),
                     manifest_path("jobset.yaml")};
  const bool has_definition = std::filesystem::exists(definition);
  if (has_definition) manifests.push_back(manifest_path("pytorchjob.yaml"));
  const OracleAnswer answer = run_script(*python, "tests/oracles/check_manifests.py", manifests);
  EXPECT_EQ(answer.status, 0) << answer.output;
  if (!has_definition)
    GTEST_SKIP() << "there is no Go to fetch the definition of PyTorchJob: it was not checked";
}

}  // namespace
}  // namespace tutti::testing::kubernetes_test
