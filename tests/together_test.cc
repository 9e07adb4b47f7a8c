// Tests several workers as users run them: equal bits, and processes that are killed, stopped, told to stop,
// or never started.
#include "tests/together.h"

#include <filesystem>
#include <signal.h>
#include <stdexcept>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/base/ports.h"

namespace tutti::testing::together_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void expect_the_bits_of_one(const std::vector<int>& in_memory, const std::vector<int>& over_tcp) {
  const TestFolder folder;
  for (const Flags& net : {Flags{"--net", "normed", "--clip-norm", "0.5"}, Flags{"--net", "odd"}}) {
    const Flags flags = with(net, {"--lanes", "8", "--batch", "3", "--steps", "50"});
    const std::string alone = hash_of(on_workers(1, flags), folder);
    for (const int workers : in_memory)
      EXPECT_EQ(hash_of(on_workers(workers, flags), folder), alone) << net[1] << " by " << workers;
    for (const int workers : over_tcp)
      EXPECT_EQ(hash_of(on_workers(workers, with(flags, {"--comm", "tcp"})), folder), alone)
          << net[1] << " by tcp, " << workers;
  }
}

TEST(Together, every_world_and_backend_gives_the_same_bits) { expect_the_bits_of_one({2, 3, 4}, {2, 3}); }

TEST(TogetherSoak, every_world_and_backend_gives_the_same_bits) {
  expect_the_bits_of_one({5, 6, 7, 8}, {4, 5, 8});
}

// A run of three workers that does not end by itself; all its processes have a mark.
class LongRun {
 public:
  explicit LongRun(const Flags& flags)
      : mark_(fmt::format("TUTTI_TEST_MARK={}-{}", getpid(), next_number())),
        run_(training(3, with({"--lanes", "3", "--batch", "2", "--steps", "10000000"}, flags)), {mark_}) {
    run_.wait_for_output("under way");
  }

  pid_t worker(int index) const {
    const auto marked = processes_with(mark_);
    for (const pid_t pid : processes_with("TUTTI_TASK_INDEX=" + std::to_string(index))) {
      if (std::find(marked.begin(), marked.end(), pid) != marked.end()) return pid;
    }
    throw std::runtime_error(fmt::format("there is no worker {}", index));
  }
  RunningProgram& run() { return run_; }
  bool all_gone() const {
    return eventually([&] { return processes_with(mark_).empty(); });
  }

 private:
  static int next_number() {
    static int number = 0;
    return number++;
  }

  const std::string mark_;
  RunningProgram run_;
};

// Returns the last texts of the workers that begin with `start`, without the names of the workers.
std::vector<std::string> texts_after(const std::string& output, const std::string& start) {
  std::vector<std::string> texts;
  for (size_t at = 0; (at = output.find("] " + start, at)) != std::string::npos; ++at)
    texts.push_back(output.substr(at, output.find('\n', at) - at));
  return texts;
}

TEST(Together, a_killed_worker_is_named_by_all_others_and_nobody_is_left) {
  for (const char* comm : {"shm", "tcp"}) {
    LongRun run({"--comm", comm});
    kill(run.worker(1), SIGKILL);
    EXPECT_EQ(run.run().wait(), 128 + SIGKILL);
    EXPECT_TRUE(run.all_gone());
    EXPECT_THAT(run.run().err(), HasSubstr("worker/1"));
    const auto texts = texts_after(run.run().err(), "PeerLost");
    ASSERT_FALSE(texts.empty()) << run.run().err();
    for (const std::string& text : texts) {
      EXPECT_EQ(text, texts[0]);
      EXPECT_THAT(text, HasSubstr("worker/1"));
      EXPECT_THAT(text, HasSubstr("step"));
    }
  }
}

TEST(Together, the_error_of_one_worker_is_what_all_others_report) {
  for (const char* comm : {"shm", "tcp"}) {
    const auto result =
        run_program(training(3, {"--steps", "100", "--batch", "2", "--fail-at", "5", "--comm", comm}));
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("] error: the disk is on fire"));
    const auto texts = texts_after(result.err, "PeerLost");
    EXPECT_FALSE(texts.empty()) << result.err;
    for (const std::string& text : texts)
      EXPECT_THAT(text, HasSubstr("worker/1 gave up at step 5: the disk is on fire"));
  }
}

TEST(Together, a_call_that_only_the_chief_makes_is_an_error_that_says_so) {
  for (const char* comm : {"shm", "tcp"}) {
    const auto result = run_program(
        training(2, {"--steps", "2", "--batch", "2", "--evaluate", "--only-chief", "--comm", comm}));
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::PeerLost)) << result.err;
    EXPECT_THAT(result.err, HasSubstr("inside a condition such as `if (ctx.is_chief())`"));
  }
}

TEST(Together, one_worker_alone_can_evaluate) {
  const TestFolder folder;
  const Flags flags = {"--steps", "2", "--lanes", "2", "--batch", "2", "--evaluate"};
  const nlohmann::json alone = report_of(on_workers(1, flags), folder).at("metrics");
  for (const char* comm : {"shm", "tcp"}) {
    const Flags chief = with(flags, {"--only-chief", "--here", "--comm", comm});
    EXPECT_EQ(report_of(on_workers(2, chief), folder).at("metrics"), alone) << comm;
  }
}

TEST(Together, a_hook_ends_the_training_at_the_step_of_one_worker) {
  const TestFolder folder;
  const Flags flags = {"--net", "normed", "--lanes", "4", "--batch", "3", "--steps", "100", "--stop-at", "7"};
  const nlohmann::json alone = report_of(on_workers(1, flags), folder);
  EXPECT_EQ(alone.at("steps"), 8);
  const Flags kept = with(flags, {"--logdir", folder / "log"});
  for (const int workers : {4, 2, 1}) {
    const nlohmann::json report = report_of(on_workers(workers, kept), folder);
    EXPECT_EQ(report.at("steps"), 8) << workers;
    EXPECT_EQ(report.at("weights_sha256"), alone.at("weights_sha256")) << workers;
  }
}

TEST(Together, a_hooks_changes_of_the_weights_have_the_same_bits_on_any_number_of_workers) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--lanes", "4", "--batch", "3", "--steps", "20"};
  const std::string without = hash_of(on_workers(1, flags), folder);
  const std::string alone = hash_of(on_workers(1, with(flags, {"--decay"})), folder);
  EXPECT_NE(alone, without);
  for (const char* state : {"sharded", "replicated"})
    EXPECT_EQ(hash_of(on_workers(2, with(flags, {"--decay", "--optimizer-state", state})), folder), alone)
        << state;
}

TEST(Together, workers_whose_learning_rates_differ_are_all_told_so) {
  for (const char* comm : {"shm", "tcp"}) {
    const ProgramResult result = run_program(
        training(3, {"--batch", "2", "--steps", "20", "--rate-of-rank-1", "0.5", "--comm", comm}));
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
    EXPECT_THAT(result.err,
                HasSubstr("different learning rates at step 3: rank 0 uses 0.001, rank 1 uses 0.5"));
  }
}

TEST(Together, a_stopped_worker_is_named_when_the_time_is_up) {
  LongRun run({"--timeout", "2"});
  kill(run.worker(2), SIGSTOP);
  EXPECT_NE(run.run().wait(), 0);
  EXPECT_TRUE(run.all_gone());
  const auto texts = texts_after(run.run().err(), "Timeout");
  ASSERT_FALSE(texts.empty()) << run.run().err();
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts[0]);
    EXPECT_THAT(text, HasSubstr("worker/2"));
    EXPECT_THAT(text, HasSubstr("for 2 s"));
  }
}

TEST(Together, a_worker_that_never_comes_is_named) {
  const std::vector<int> ports = free_ports(2);
  const std::string spec = fmt::format("worker|127.0.0.1:{};127.0.0.1:{}", ports[0], ports[1]);
  for (const int present : {0, 1}) {
    const auto result = run_program({together_program(), "--cluster_spec", spec, "--job_name", "worker",
                                     "--task_index", std::to_string(present), "--timeout", "1"});
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::Timeout)) << result.err;
    EXPECT_THAT(result.err, HasSubstr(std::to_string(ports[1 - static_cast<size_t>(present)])));
  }
}

TEST(Together, sigterm_stops_all_after_one_step_and_any_number_goes_on_from_there) {
  const TestFolder folder;
  const std::string logdir = folder / "run";
  const Flags flags = {"--net", "normed", "--logdir", logdir};
  {
    LongRun run(flags);
    kill(run.run().pid(), SIGTERM);
    EXPECT_EQ(run.run().wait(), 128 + SIGTERM);
    EXPECT_TRUE(run.all_gone());
    EXPECT_THAT(run.run().err(), HasSubstr("checkpoint saved; run the program again to continue"));
  }
  const int64_t stopped_at = json_of(logdir + "/latest/manifest.json").at("step").get<int64_t>();
  const std::string steps = std::to_string(stopped_at + 20);
  const Flags same = {"--net", "normed", "--lanes", "3", "--batch", "2", "--steps", steps};
  const std::string straight = hash_of(on_workers(1, same), folder);
  EXPECT_EQ(hash_of(on_workers(2, with(same, {"--logdir", logdir})), folder), straight);
}

TEST(Together, sigterm_ends_and_saves_a_job_in_which_a_worker_was_stopped) {
  const TestFolder folder;
  LongRun run({"--logdir", folder / "run"});
  kill(run.worker(2), SIGSTOP);
  kill(run.run().pid(), SIGTERM);
  EXPECT_EQ(run.run().wait(), 128 + SIGTERM);
  EXPECT_TRUE(run.all_gone());
  EXPECT_THAT(run.run().err(), HasSubstr("checkpoint saved; run the program again to continue"));
}

TEST(Together, a_worker_that_is_told_to_end_while_another_does_not_answer_ends_as_told) {
  LongRun run({"--timeout", "2"});
  kill(run.worker(2), SIGSTOP);
  kill(run.worker(1), SIGTERM);
  EXPECT_NE(run.run().wait(), 0);
  EXPECT_TRUE(run.all_gone());
  EXPECT_THAT(run.run().err(),
              HasSubstr("stopped by SIGTERM, without a new checkpoint, since the other tasks did not"));
}

TEST(Together, a_stopped_chief_is_named_when_the_time_is_up_whatever_the_others_wait_for) {
  for (const char* comm : {"shm", "tcp"}) {
    LongRun run({"--timeout", "2", "--comm", comm});
    kill(run.worker(0), SIGSTOP);
    EXPECT_NE(run.run().wait(), 0);
    EXPECT_TRUE(run.all_gone());
    const auto texts = texts_after(run.run().err(), "Timeout");
    ASSERT_FALSE(texts.empty()) << run.run().err();
    for (const std::string& text : texts) {
      EXPECT_THAT(text, HasSubstr("worker/0"));
      EXPECT_THAT(text, Not(HasSubstr("worker/1")));
      EXPECT_THAT(text, Not(HasSubstr("nothing from worker/2")));
    }
  }
}

TEST(Together, workers_with_different_flags_do_not_start) {
  for (const std::string flag : {"batch", "lanes"}) {
    const auto result = run_program(
        {program_path("tutti"), "run", "-n", "2", "--", "sh", "-c",
         fmt::format("exec {} --steps 5 --{} $((2 + TUTTI_TASK_INDEX))", together_program(), flag)});
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, ::testing::ContainsRegex(fmt::format(
                                "worker/0 on [^ ]+ has '--{0} 2', worker/1 on [^ ]+ has '--{0} 3'", flag)));
  }
}

// Compares one lane of 6 examples with three of 2: the batch is the same, and so are its mean and variance.
TEST(Together, synchronised_batch_norm_trains_as_one_worker_on_the_whole_batch) {
  const TestFolder folder;
  const auto loss = [&](int workers, const Flags& flags) {
    const std::string report = folder / "report.json";
    const auto result =
        run_program(training(workers, with({"--net", "synced", "--steps", "30", "--report", report}, flags)));
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return result.exit_code == 0 ? json_of(report).at("loss").get<double>() : -1;
  };
  const double alone = loss(1, {"--batch", "6"});
  for (const char* comm : {"shm", "tcp"})
    EXPECT_NEAR(loss(3, {"--batch", "2", "--comm", comm}), alone, 1e-4 * alone) << comm;
  // If the statistics were those of each lane alone, the loss would differ.
  EXPECT_GT(std::abs(loss(1, {"--batch", "2", "--lanes", "3"}) - alone), 1e-3 * alone);
}

TEST(Together, synchronised_batch_norm_says_what_it_needs) {
  const auto uneven = run_program(training(2, {"--net", "synced", "--lanes", "3", "--steps", "1"}));
  EXPECT_EQ(uneven.exit_code, exit_code(ErrorKind::InvalidArgument));
  EXPECT_THAT(uneven.err, HasSubstr("there are 3 lanes for 2 workers"));
  const auto short_step = run_program(training(
      3, {"--net", "synced", "--batch", "7", "--epochs", "1", "--no-drop-remainder", "--examples", "600"}));
  EXPECT_EQ(short_step.exit_code, exit_code(ErrorKind::InvalidArgument));
  EXPECT_THAT(short_step.err, HasSubstr("SyncBatchNorm needs examples in every lane"));
  EXPECT_THAT(short_step.err, HasSubstr("--drop-remainder"));
  const auto gave_up = run_program(training(
      3, {"--net", "synced", "--steps", "100", "--batch", "2", "--fail-at", "5", "--timeout", "30"}));
  const auto texts = texts_after(gave_up.err, "PeerLost");
  ASSERT_FALSE(texts.empty()) << gave_up.err;
  for (const std::string& text : texts)
    EXPECT_THAT(text, HasSubstr("worker/1 gave up at step 5: the disk is on fire"));
}

}  // namespace
}  // namespace tutti::testing::together_test
