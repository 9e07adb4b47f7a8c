#include "tutti/cluster/context.h"

#include <cstdlib>
#include <dlfcn.h>
#include <map>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/cluster/device_spec.h"
#include "tutti/cluster/roles.h"
#include "tutti/cluster/test_identity.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

RunConfig on_cpu() {
  RunConfig config;
  config.compute.device = "cpu";
  return config;
}

std::string line_of(const Context& context) {
  testing::internal::CaptureStderr();
  context.log().info("hello");
  return testing::internal::GetCapturedStderr();
}

TEST(Context, is_what_discovery_found) {
  const Context context(on_cpu(), identity("chief|a:1,worker|b:1;a:2", "worker", 1));
  EXPECT_EQ(context.rank(), 2);
  EXPECT_EQ(context.world(), 3);
  EXPECT_EQ(context.local_rank(), 1);
  EXPECT_EQ(context.local_world(), 2);
  EXPECT_FALSE(context.is_chief());
  EXPECT_EQ(context.task().name(), "/job:worker/task:1");
  EXPECT_EQ(context.cluster().num_tasks("worker"), 2);
  EXPECT_TRUE(context.device().is_cpu());
}

TEST(Context, refuses_a_report_in_the_place_of_the_timeline) {
  RunConfig config = on_cpu();
  config.output.report = config.output.timeline = "out.json";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("name the same file: out.json"),
               [&] { Context(config, Identity()); });
}

TEST(Context, refuses_a_report_that_the_chief_could_not_write) {
  const TestFolder folder;
  RunConfig config = on_cpu();
  folder.write("file", "");
  config.output.report = folder / "file/such/report.json";
  const std::string cluster = "worker|a:1;b:1";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--report: making the directory"),
               [&] { Context(config, identity(cluster, "worker", 0)); });
  const Context does_not_write(config, identity(cluster, "worker", 1));
  config.output.report = folder.path();
  expect_error(ErrorKind::InvalidArgument, HasSubstr("is a directory"),
               [&] { Context(config, identity(cluster, "worker", 0)); });
}

TEST(Context, makes_the_folder_of_the_report_on_the_chief) {
  const TestFolder folder;
  RunConfig config = on_cpu();
  config.output.report = folder / "new/folder/report.json";
  const Context does_not_write(config, identity("worker|a:1;b:1", "worker", 1));
  EXPECT_FALSE(path_exists(folder / "new"));
  const Context writes(config, identity("worker|a:1;b:1", "worker", 0));
  EXPECT_TRUE(path_exists(folder / "new/folder"));
}

TEST(Context, alone_is_chief_of_a_world_of_one) {
  const Context context(on_cpu(), Identity());
  EXPECT_EQ(context.rank(), 0);
  EXPECT_EQ(context.world(), 1);
  EXPECT_TRUE(context.is_chief());
  EXPECT_GE(context.threads(), 1);
}

TEST(Context, configuration_decides_the_threads) {
  RunConfig config = on_cpu();
  config.compute.threads = 7;
  const Context context(config, Identity());
  EXPECT_EQ(context.threads(), 7);
}

TEST(Context, log_names_the_task_where_there_are_several) {
  EXPECT_THAT(line_of(Context(on_cpu(), Identity())), Not(HasSubstr("worker")));
  EXPECT_THAT(line_of(Context(on_cpu(), identity("worker|a:1", "worker", 0))), Not(HasSubstr("worker")));
  EXPECT_THAT(line_of(Context(on_cpu(), identity("worker|a:1;a:2", "worker", 1))),
              HasSubstr(" worker/1 hello"));
  EXPECT_THAT(line_of(Context(on_cpu(), identity("ps|a:1,worker|a:2", "worker", 0))),
              HasSubstr(" worker/0 hello"));
  EXPECT_THAT(line_of(Context(on_cpu(), identity("", "evaluator", 0))), HasSubstr(" evaluator/0 hello"));
}

TEST(Context, log_has_the_level_of_the_flags) {
  RunConfig config = on_cpu();
  config.output.log_level = "error";
  EXPECT_EQ(line_of(Context(config, Identity())), "");
  config.output.log_level = "loud";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'loud'"), [&] { Context(config, Identity()); });
}

TEST(Context, a_server_stays_on_the_cpu_unless_told_otherwise) {
  const Context context(RunConfig(), identity("ps|a:1,worker|a:2", "ps", 0));
  EXPECT_TRUE(context.device().is_cpu());
  EXPECT_FALSE(context.is_chief());
}

// `tutti run` shows a server no GPU, but gives it the flags of the workers.
TEST(Context, a_server_that_sees_no_gpu_stays_on_the_cpu_though_the_workers_have_gpus) {
  const std::string cluster = "ps|a:1,worker|a:2;b:2";
  if (count_gpus() > 0) GTEST_SKIP() << "NOT TESTED: this process sees a GPU";
  for (const char* device : {"cuda", "/gpu:1"}) {
    RunConfig config;
    config.compute.device = device;
    const Context context(config, identity(cluster, "ps", 0));
    EXPECT_TRUE(context.device().is_cpu());
    EXPECT_EQ(context.devices().back().to_string(), "/job:ps/replica:0/task:0/device:CPU:0");
    EXPECT_EQ(context.devices().front().device_type, "GPU");
  }
  RunConfig config;
  config.compute.device = "gpuu";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'gpuu'"),
               [&] { Context(config, identity(cluster, "ps", 0)); });
}

TEST(Context, refuses_devices_and_threads_that_are_none) {
  RunConfig config = on_cpu();
  config.compute.device = "gpuu";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'gpuu'"), [&] { Context(config, Identity()); });
  config = on_cpu();
  config.compute.threads = -1;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--threads: '-1'"),
               [&] { Context(config, Identity()); });
}

// Sets environment variables of this process for its lifetime, as a launcher would.
class InEnvironment {
 public:
  explicit InEnvironment(std::map<std::string, std::string> variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~InEnvironment() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }
  InEnvironment(const InEnvironment&) = delete;
  InEnvironment& operator=(const InEnvironment&) = delete;

 private:
  std::map<std::string, std::string> variables_;
};

const std::map<std::string, std::string> kByTuttiRun = {
    {"TUTTI_CLUSTER_SPEC", "worker|127.0.0.1:1;127.0.0.1:2"},
    {"TUTTI_JOB_NAME", "worker"},
    {"TUTTI_TASK_INDEX", "1"},
    {kLaunchVariable, "k3y"}};

// A program that fills in its RunConfig itself has not read the variables.
TEST(Context, of_flags_alone_finds_the_place_that_tutti_run_gave) {
  const InEnvironment launched(kByTuttiRun);
  const Context context(on_cpu());
  EXPECT_EQ(context.rank(), 1);
  EXPECT_EQ(context.world(), 2);
  EXPECT_EQ(context.identity().launch, "k3y");
}

TEST(Context, has_the_secret_of_the_launcher_unless_the_user_has_given_one) {
  Identity identity;
  identity.source = "a test";
  identity.secret = "made";
  RunConfig config = on_cpu();
  const Context context(config, identity);
  EXPECT_EQ(context.config().security.secret, "made");
  EXPECT_EQ(context.with(config).config().security.secret, "made");
  for (const FlagValue& value : context.flag_values()) EXPECT_NE(value.text, "made") << value.name;
  config.security.secret = "given";
  EXPECT_EQ(context.with(config).config().security.secret, "given");
  EXPECT_EQ(Context(config, identity).config().security.secret, "given");
}

TEST(Context, of_flags_alone_finds_the_place_that_other_launchers_gave) {
  const std::map<std::string, std::string> variables = {
      {"TF_CONFIG",
       R"({"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}})"}};
  const InEnvironment launched(variables);
  EXPECT_EQ(Context(on_cpu()).rank(), 1);
}

TEST(Context, of_flags_alone_refuses_a_variable_that_is_no_index) {
  auto variables = kByTuttiRun;
  variables["TUTTI_TASK_INDEX"] = "one";
  const InEnvironment launched(variables);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("TUTTI_TASK_INDEX: 'one'"), [] { Context{on_cpu()}; });
}

TEST(Context, that_would_train_alone_in_a_job_of_several_is_refused) {
  const InEnvironment launched(kByTuttiRun);
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("worker/1 in a job of 2 workers"), HasSubstr("Context(config)")),
               [] { Context(on_cpu(), Identity()); });
  Identity alone;
  alone.source = "this test";
  EXPECT_EQ(Context(on_cpu(), alone).world(), 1);
  EXPECT_EQ(Context(on_cpu(), identity("worker|a:1;a:2", "worker", 1)).rank(), 1);
}

TEST(Context, alone_under_a_launcher_of_one_is_fine) {
  auto variables = kByTuttiRun;
  variables["TUTTI_CLUSTER_SPEC"] = "worker|127.0.0.1:1";
  variables["TUTTI_TASK_INDEX"] = "0";
  const InEnvironment launched(variables);
  EXPECT_EQ(Context(on_cpu(), Identity()).world(), 1);
}

// Includes the threads of OpenBLAS, which LibTorch does not set.
TEST(Context, sets_the_threads_that_the_flags_name) {
  const auto openblas = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_num_threads"));
  for (const int threads : {2, 1}) {
    RunConfig config = on_cpu();
    config.compute.threads = threads;
    const Context context(config, Identity());
    EXPECT_EQ(at::get_num_threads(), threads);
    if (openblas != nullptr) {
      EXPECT_EQ(openblas(), threads);
    }
  }
  if (openblas == nullptr) GTEST_SKIP() << "NOT TESTED: LibTorch's BLAS is not OpenBLAS";
}

std::vector<std::string> names_of(const std::vector<DeviceSpec>& devices) {
  std::vector<std::string> names;
  for (const DeviceSpec& device : devices) names.push_back(device.to_string());
  return names;
}

TEST(Context, names_the_devices_of_the_job_in_the_order_of_the_ranks) {
  const std::string cluster = "ps|a:1,chief|a:2,worker|a:3;b:3";
  const Context context(on_cpu(), identity(cluster, "worker", 0));
  EXPECT_THAT(
      names_of(context.devices()),
      ElementsAre("/job:chief/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0",
                  "/job:worker/replica:0/task:1/device:CPU:0", "/job:ps/replica:0/task:0/device:CPU:0"));
  EXPECT_EQ(context.devices().at(static_cast<size_t>(context.rank_at({.job = "worker", .index = 1}))).task,
            1);
  EXPECT_EQ(context.local_devices().front().to_string(), "/job:worker/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(context.local_devices().size(), 1U + static_cast<size_t>(context.num_gpus()));
}

// With --device auto, a task knows only the GPUs of its host.
TEST(Context, leaves_open_what_only_other_hosts_know) {
  const Context context(RunConfig(), identity("worker|a:1;b:1,ps|b:2", "worker", 0));
  EXPECT_THAT(names_of(context.devices()),
              ElementsAre(context.num_gpus() > 0 ? "/job:worker/replica:0/task:0/device:GPU:0"
                                                 : "/job:worker/replica:0/task:0/device:CPU:0",
                          "/job:worker/replica:0/task:1", "/job:ps/replica:0/task:0/device:CPU:0"));
}

TEST(Context, knows_the_ranks_of_all_workers) {
  const Context context(on_cpu(), identity("ps|a:1,worker|a:3;b:3,chief|a:2", "ps", 0));
  EXPECT_EQ(context.rank_at({.job = "chief", .index = 0}), 0);
  EXPECT_EQ(context.rank_at({.job = "worker", .index = 1}), 2);
  for (const Task& task : {Task{"worker", 2}, Task{"ps", 0}})
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr(task.short_name()), HasSubstr("3 workers")),
                 [&] { context.rank_at(task); });
}

TEST(Context, names_the_only_worker_where_another_is_asked_for) {
  const Context context(on_cpu(), identity("worker|a:1", "worker", 0));
  expect_error(ErrorKind::InvalidArgument,
               "worker/3 is not a worker of this job, which has one worker, worker/0",
               [&] { context.rank_at({.job = "worker", .index = 3}); });
}

TEST(Context, knows_the_ranks_also_where_nobody_names_addresses) {
  Identity identity;
  identity.task = {.job = "worker", .index = 1};
  identity.membership = {.rank = 1, .world = 3};
  identity.source = "MPI";
  const Context context(on_cpu(), identity);
  EXPECT_EQ(context.rank_at({.job = "worker", .index = 2}), 2);
  EXPECT_EQ(context.devices().size(), 3U);
  EXPECT_EQ(context.tf_config(), "");
}

// Reading the text back gives the same task of the same cluster.
TEST(Context, tells_the_cluster_as_the_text_of_TF_CONFIG) {
  for (const char* job : {"worker", "ps"}) {
    const Context context(on_cpu(), identity("zebra|a:5,ps|a:1,chief|a:2,worker|a:3;b:3", job, 0));
    const Identity read = discover(RunConfig(), Environment({{"TF_CONFIG", context.tf_config()}}));
    EXPECT_EQ(read.source, "TF_CONFIG");
    EXPECT_EQ(read.task, context.task());
    EXPECT_EQ(read.membership.rank, context.rank());
    EXPECT_EQ(read.cluster.to_string(), context.cluster().to_string());
  }
  EXPECT_EQ(Context(on_cpu(), Identity()).tf_config(), R"({"task":{"type":"worker","index":0}})");
}

TEST(Context, of_a_task_that_trains_nothing_says_so) {
  Context(on_cpu(), Identity()).require_worker();
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("ps/0"), HasSubstr("tutti::serve")),
               [] { Context(on_cpu(), identity("ps|a:1,worker|a:2", "ps", 0)).require_worker(); });
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("evaluator/0"), HasSubstr("does not train")),
               [] { Context(on_cpu(), identity("", "evaluator", 0)).require_worker(); });
}

TEST(Context, tells_the_values_of_all_flags_and_which_of_them_all_tasks_share) {
  using testing::Contains;
  RunConfig config = on_cpu();
  config.training.batch = 7;
  config.checkpoints.logdir = "/a";
  const Context context(config, identity("worker|a:1;b:1", "worker", 0));
  EXPECT_EQ(context.flag_values().size(), values_of(config).size());
  EXPECT_THAT(context.shared_flags(), Contains("--batch 7"));
  EXPECT_THAT(context.shared_flags(), testing::Not(Contains(HasSubstr("--logdir"))));
  config.checkpoints.logdir = "/b";
  config.checkpoints.resume = "never";
  const Context other = context.with(config);
  for (const FlagValue& flag : other.flag_values()) {
    if (flag.name == "--logdir") {
      EXPECT_EQ(flag.text, "/b");
    }
    if (flag.name == "--resume") {
      EXPECT_EQ(flag.text, "never");
    }
  }
}

TEST(Context, shares_the_events_of_a_folder_with_its_copies) {
  RunConfig config = on_cpu();
  const Context without(config, identity("worker|a:1;b:1", "worker", 0));
  EXPECT_FALSE(static_cast<bool>(without.events()));
  config.checkpoints.logdir = "/run/";
  const Context context = without.with(config);
  EXPECT_TRUE(static_cast<bool>(context.events()));
  EXPECT_EQ(without.event_stream("/other/../run"), context.event_stream("/run"));
  context.event_stream("/run")->drop();
  EXPECT_FALSE(static_cast<bool>(context.events()));
}

TEST(Context, gives_a_folder_to_one_training_of_the_program) {
  const Context context(on_cpu(), identity("worker|a:1;b:1", "worker", 0));
  const Context copy = context.with(context.config());
  EXPECT_TRUE(context.claim_folder("/run"));
  EXPECT_FALSE(copy.claim_folder("/other/../run/"));
  EXPECT_TRUE(copy.claim_folder("/run/g"));
}

}  // namespace
}  // namespace tutti
