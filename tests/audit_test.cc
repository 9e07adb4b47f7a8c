// Tests the lie detector (--audit): a worker that computes wrongly is found and named before a weight
// changes.
#include <filesystem>

#include <gmock/gmock.h>

#include "tests/together.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/lanes/lanes.h"
#include "tutti/train/strategies/audits.h"

namespace tutti::testing::audit_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kLanes = 5;
constexpr int kWorkers = 3;

// With dropout and batch norm, and other numbers of lanes on each worker.
const Flags kPlain = {"--net", "normed", "--lanes", "5", "--batch", "2", "--steps", "12"};
const Flags kRun = with(kPlain, {"--audit", "1"});

// Returns the first step from 3 on at which the first lane that this worker computes is the audited one.
AuditedLane audit_of(int worker, int workers, int64_t& step) {
  const std::vector<std::string> hosts(static_cast<size_t>(workers), "this");
  for (step = 3;; ++step) {
    const AuditedLane audited = draw_audit(1, step, kLanes, hosts, 1);
    const bool has_it = audited.owner == worker && audited.lane == lanes_of(worker, workers, kLanes).begin;
    if (has_it || audited.is_audited_by(worker)) return audited;
  }
}

// Returns the last step before this one at which the worker computes the audited lane; null: there is none.
nlohmann::json lane_passed_before(int64_t step, int worker, int workers) {
  const std::vector<std::string> hosts(static_cast<size_t>(workers), "this");
  while (--step >= 0) {
    const AuditedLane audited = draw_audit(1, step, kLanes, hosts, 1);
    if (audited.owner == worker || audited.is_audited_by(worker)) return step;
  }
  return {};
}

std::string fault(int worker, int workers, const std::string& place) {
  int64_t step = 0;
  audit_of(worker, workers, step);
  return fmt::format("{}@{}/{}", worker, step, place);
}

ProgramResult run(int workers, const Flags& launch, const Flags& flags) {
  Flags command = {program_path("tutti"), "run", "-n", std::to_string(workers)};
  command = with(with(command, launch), {"--", together_program(), "--threads", "1"});
  return run_program(with(command, flags));
}

nlohmann::json report_of_run(int workers, const Flags& launch, const Flags& flags, const TestFolder& folder) {
  const std::string report = folder / "report.json";
  std::filesystem::remove(report);
  const ProgramResult result = run(workers, launch, with(flags, {"--report", report}));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.exit_code == 0 ? json_of(report) : nlohmann::json();
}

struct Way {
  std::string name;
  Flags flags;
};

class Audit : public ::testing::TestWithParam<Way> {
 protected:
  Flags flags(const Flags& more = {}) const { return with(with(kRun, GetParam().flags), more); }
  std::string undisturbed() const { return hash_of(on_workers(1, with(kPlain, GetParam().flags)), folder_); }

  const TestFolder folder_;
};

TEST_P(Audit, raises_no_false_alarm_and_changes_no_bit) {
  const std::string expected = undisturbed();
  for (const int workers : {1, 2, 3, 4, 6}) {
    const nlohmann::json report = report_of(on_workers(workers, flags()), folder_);
    EXPECT_EQ(report.at("weights_sha256"), expected) << workers;
    EXPECT_EQ(report.at("audits").at("made"), 12) << workers;
    EXPECT_EQ(report.at("audits").at("found").size(), 0U) << workers;
  }
}

TEST_P(Audit, names_worker_lane_and_tensor_and_saves_nothing) {
  int64_t step = 0;
  const AuditedLane audited = audit_of(1, kWorkers, step);
  for (const auto& [place, tensor] : {std::pair("gradient", "the gradient of pred.bias"),
                                      std::pair("activation", "the gradient of conv.weight"),
                                      std::pair("weight", "the gradient of conv.weight"),
                                      std::pair("buffer", "the buffer norm.running_mean")}) {
    const ProgramResult result =
        run(kWorkers, {}, flags({"--fault", fault(1, kWorkers, place), "--logdir", folder_ / place}));
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::DataLoss)) << result.err;
    EXPECT_THAT(result.err, HasSubstr(fmt::format(
                                "DataLoss: at step {}, lane {} was computed wrongly by rank 1 (worker/1 on ",
                                step, audited.lane)));
    EXPECT_THAT(result.err,
                AllOf(HasSubstr(fmt::format(", first {}: rank 0 (worker/0 on ", tensor)),
                      HasSubstr("This step has not changed the weights"), Not(HasSubstr("traceback"))))
        << place;
    EXPECT_FALSE(std::filesystem::exists(folder_ / place + std::string("/latest")));
  }
}

TEST_P(Audit, makes_a_step_again_after_a_fault_that_passes) {
  for (const int workers : {1, 2, 3}) {
    for (const char* place : {"gradient", "activation"}) {
      const int worker = workers - 1;
      const nlohmann::json report = report_of_run(
          workers, {}, flags({"--audit-action", "redo", "--fault", fault(worker, workers, place)}), folder_);
      EXPECT_EQ(report.at("weights_sha256"), undisturbed()) << workers;
      const nlohmann::json& found = report.at("audits").at("found");
      ASSERT_EQ(found.size(), 1U) << report;
      EXPECT_EQ(found[0].at("action"), "redo");
      EXPECT_EQ(found[0].at("certain"), true);
      EXPECT_EQ(found[0].at("workers").size(), 1U);
      EXPECT_THAT(found[0].at("workers")[0].get<std::string>(),
                  HasSubstr(fmt::format("worker/{} on", worker)));
    }
  }
}

TEST_P(Audit, stops_if_a_fault_stays) {
  const Flags redo = {"--audit-action", "redo", "--fault", fault(1, kWorkers, "broken")};
  const ProgramResult of_three = run(kWorkers, {}, flags(redo));
  EXPECT_EQ(of_three.exit_code, exit_code(ErrorKind::DataLoss)) << of_three.err;
  EXPECT_THAT(of_three.err, HasSubstr("was computed wrongly by rank 1 (worker/1 on "));
  const ProgramResult of_two = run(2, {}, flags({"--fault", fault(1, 2, "weight")}));
  EXPECT_EQ(of_two.exit_code, exit_code(ErrorKind::DataLoss)) << of_two.err;
  EXPECT_THAT(of_two.err, AllOf(HasSubstr("nobody can tell which are right"),
                                HasSubstr("rank 0 (worker/0 on "), HasSubstr("rank 1 (worker/1 on ")));
}

TEST_P(Audit, evicts_a_worker_and_ends_with_the_bits_of_an_undisturbed_run) {
  const std::string expected = undisturbed();
  for (const int worker : {0, 1}) {
    for (const char* place : {"broken", "gradient", "weight"}) {
      const nlohmann::json report = report_of_run(
          kWorkers, {"--min", "1", "--restarts", "2"},
          flags({"--audit-action", "evict", "--fault", fault(worker, kWorkers, place)}), folder_);
      EXPECT_EQ(report.at("weights_sha256"), expected) << worker << place;
      EXPECT_EQ(report.at("world"), kWorkers - 1);
      EXPECT_EQ(report.at("lost_steps"), 0);
      const nlohmann::json& found = report.at("audits").at("found");
      ASSERT_EQ(found.size(), 1U) << report;
      EXPECT_EQ(found[0].at("action"), "evict");
      const auto step = found[0].at("step").get<int64_t>();
      EXPECT_EQ(found[0].at("passed")[0], lane_passed_before(step, worker, kWorkers));
      EXPECT_THAT(found[0].at("workers")[0].get<std::string>(),
                  HasSubstr(fmt::format("worker/{} on", worker)));
    }
  }
}

TEST_P(Audit, goes_on_in_a_resumed_run_with_other_workers) {
  const std::string expected = undisturbed();
  const Flags saving = flags({"--logdir", folder_ / "run", "--audit-action", "redo"});
  EXPECT_EQ(run(2, {}, with(saving, {"--stop-after", "3"})).exit_code, 0);
  int64_t step = 0;
  audit_of(2, kWorkers, step);
  const nlohmann::json report =
      report_of_run(kWorkers, {}, with(saving, {"--fault", fault(2, kWorkers, "gradient")}), folder_);
  EXPECT_EQ(report.at("weights_sha256"), expected);
  EXPECT_EQ(report.at("audits").at("made"), 9);
  EXPECT_EQ(report.at("audits").at("found")[0].at("step"), step);
}

INSTANTIATE_TEST_SUITE_P(Ways, Audit,
                         ::testing::Values(Way{"shm", {"--comm", "shm"}}, Way{"tcp", {"--comm", "tcp"}},
                                           Way{"own_loop", {"--own-loop"}},
                                           Way{"own_loop_tcp", {"--own-loop", "--comm", "tcp"}}),
                         [](const auto& info) { return info.param.name; });

TEST(AuditOf, lanes_without_examples_of_bf16_and_of_other_networks_raises_no_false_alarm) {
  const TestFolder folder;
  for (const Flags& flags :
       {Flags{"--examples", "54", "--no-drop-remainder", "--batch", "10", "--lanes", "4", "--net", "normed"},
        Flags{"--precision", "bf16", "--net", "normed", "--lanes", "3"},
        Flags{"--net", "masked", "--lanes", "1"}, Flags{"--net", "normed", "--lanes", "1"},
        Flags{"--net", "lstm", "--lanes", "2", "--batch", "2"},
        Flags{"--wire-precision", "bf16", "--comm", "tcp", "--lanes", "4"}}) {
    const Flags all = with(flags, {"--steps", "6"});
    for (const int workers : {1, 2, 3}) {
      const std::string expected = hash_of(on_workers(workers, all), folder);
      const nlohmann::json report = report_of(on_workers(workers, with(all, {"--audit", "2"})), folder);
      EXPECT_EQ(report.at("weights_sha256"), expected);
      EXPECT_EQ(report.at("audits").at("found").size(), 0U);
      EXPECT_GE(report.at("audits").at("made"), 1);
    }
  }
}

// Returns the parameters and the buffers after all steps.
std::string weights_of(const std::string& logdir) {
  return read_file(logdir + "/ckpt-12/weights.safetensors");
}

// The sum is wrong after the lanes were hashed.
TEST(AuditOf, sums_names_the_worker_and_ends_with_the_bits_of_an_undisturbed_run) {
  const TestFolder folder;
  const std::string plain = folder / "plain";
  const std::string expected =
      hash_of(on_workers(1, with(kPlain, {"--own-loop", "--logdir", plain})), folder);
  for (const char* comm : {"shm", "tcp"}) {
    const Flags faulty = with(kRun, {"--own-loop", "--comm", comm, "--fault", "1@4/sum", "--audit-action"});
    const ProgramResult stopped = run(kWorkers, {}, with(faulty, {"stop"}));
    EXPECT_EQ(stopped.exit_code, exit_code(ErrorKind::DataLoss)) << stopped.err;
    EXPECT_THAT(stopped.err,
                AllOf(HasSubstr("DataLoss: at step 4, the sum of the worker's lanes of the gradient of "),
                      HasSubstr("is wrong at rank 1 (worker/1 on "), HasSubstr("got another result. "),
                      HasSubstr("Steps since 3, when rank 1 (worker/1 on ")));
    for (const std::string action : {"redo", "evict"}) {
      const Flags launch = action == "redo" ? Flags() : Flags{"--min", "1", "--restarts", "2"};
      const std::string logdir = folder / (comm + action);
      const nlohmann::json report =
          report_of_run(kWorkers, launch, with(faulty, {action, "--logdir", logdir}), folder);
      EXPECT_EQ(report.at("weights_sha256"), expected) << comm << action;
      EXPECT_TRUE(weights_of(logdir) == weights_of(plain)) << comm << action;
      EXPECT_EQ(report.at("world"), action == "redo" ? kWorkers : kWorkers - 1);
      const nlohmann::json& found = report.at("audits").at("found");
      ASSERT_EQ(found.size(), 1U) << report;
      EXPECT_EQ(found[0].at("step"), 4);
      EXPECT_EQ(found[0].at("lane"), nullptr);
      EXPECT_EQ(found[0].at("ranks"), std::vector<int>{1});
      EXPECT_EQ(found[0].at("passed"), std::vector<int>{3});
      EXPECT_EQ(found[0].at("action"), action);
    }
  }
}

// A weight is wrong once the lanes were computed. The others go on without the worker after the step.
TEST(AuditOf, updates_repairs_them_and_evicts_the_worker) {
  const TestFolder folder;
  const std::string plain = folder / "plain";
  const std::string expected =
      hash_of(on_workers(1, with(kPlain, {"--own-loop", "--logdir", plain})), folder);
  for (const char* state : {"replicated", "sharded"}) {
    const Flags faulty =
        with(kRun, {"--own-loop", "--optimizer-state", state, "--fault", "1@4/update", "--audit-action"});
    for (const std::string action : {"redo", "evict"}) {
      const Flags launch = action == "redo" ? Flags() : Flags{"--min", "1", "--restarts", "2"};
      const std::string logdir = folder / (state + action);
      const nlohmann::json report =
          report_of_run(kWorkers, launch, with(faulty, {action, "--logdir", logdir}), folder);
      EXPECT_EQ(report.at("weights_sha256"), expected) << state << action;
      EXPECT_TRUE(weights_of(logdir) == weights_of(plain)) << state << action;
      EXPECT_EQ(report.at("world"), action == "redo" ? kWorkers : kWorkers - 1);
      const nlohmann::json& found = report.at("audits").at("found");
      ASSERT_EQ(found.size(), 1U) << report;
      EXPECT_EQ(found[0].at("ranks"), std::vector<int>{1});
      EXPECT_EQ(found[0].at("passed"), std::vector<int>{3});
      EXPECT_EQ(found[0].at("action"), action);
    }
  }
}

// The residuals of rounding end with the values that a run without the fault has.
TEST(AuditOf, rounded_gradients_makes_a_step_again) {
  const TestFolder folder;
  const Flags rounded = {"--wire-precision", "bf16", "--comm", "tcp"};
  const std::string expected = hash_of(on_workers(kWorkers, with(kPlain, rounded)), folder);
  const Flags faulty = {"--audit-action", "redo", "--fault", fault(1, kWorkers, "gradient")};
  const nlohmann::json report = report_of_run(kWorkers, {}, with(with(kRun, rounded), faulty), folder);
  EXPECT_EQ(report.at("weights_sha256"), expected);
  EXPECT_EQ(report.at("audits").at("found").size(), 1U);
}

TEST(AuditIsRefused, where_it_cannot_do_what_it_says) {
  const ProgramResult evicting = run(2, {}, with(kRun, {"--audit-action", "evict"}));
  EXPECT_EQ(evicting.exit_code, exit_code(ErrorKind::InvalidArgument));
  EXPECT_THAT(evicting.err,
              HasSubstr("--audit-action evict: the workers cannot change. Start them with `tutti"));
  const ProgramResult synced =
      run(2, {}, {"--net", "synced", "--lanes", "2", "--steps", "2", "--audit", "1"});
  EXPECT_EQ(synced.exit_code, exit_code(ErrorKind::InvalidArgument));
  EXPECT_THAT(synced.err, HasSubstr("--audit 1: SyncBatchNorm"));
}

}  // namespace
}  // namespace tutti::testing::audit_test
