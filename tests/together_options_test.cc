// Tests options of several workers: sharded state, sums in any order, reduced precision on the wire, uneven
// data.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <future>
#include <regex>
#include <set>
#include <sys/stat.h>

#include <gmock/gmock.h>

#include "tests/served.h"
#include "tests/together.h"
#include "tutti/base/error.h"
#include "tutti/base/test_refused_calls.h"

namespace tutti::testing::together_options_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Flags kNormed = {"--net", "normed", "--clip-norm", "0.5", "--lanes", "4", "--batch", "3"};

// The default is not tested here.
const Flags kSharded = {"--optimizer-state", "sharded"};
const Flags kReplicated = {"--optimizer-state", "replicated"};

TEST(TogetherOptions, sharded_state_gives_the_same_bits) {
  const TestFolder folder;
  const Flags flags = with(kNormed, {"--steps", "20"});
  const std::string expected = hash_of(on_workers(1, flags), folder);
  for (const int workers : {1, 2, 3}) {
    for (const char* comm : {"auto", "tcp"}) {
      for (const Flags& state : {kSharded, kReplicated})
        EXPECT_EQ(hash_of(on_workers(workers, with(with(flags, state), {"--comm", comm})), folder), expected)
            << workers << " workers, " << comm << ", " << state.back();
    }
  }
}

// Returns the maximum private memory of a worker, without the memory that workers share, in megabytes.
double most_private_memory(int workers, const Flags& flags) {
  const ProgramResult result = run_program(training(workers, flags));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  double most = 0;
  static const std::regex kLine("private memory ([0-9]+)");
  for (std::sregex_iterator it(result.out.begin(), result.out.end(), kLine); it != std::sregex_iterator();
       ++it)
    most = std::max(most, std::stod((*it)[1]) / 1024);
  return most;
}

TEST(TogetherOptions, sharded_state_takes_the_memory_of_a_part) {
  constexpr double kState = 2.0 * 4 * (784 * 20000 + 20000 + 20000 * 10 + 10) / (1 << 20);  // Adam's state
  const Flags flags = {"--net", "wide", "--lanes", "4", "--batch", "1", "--steps", "3", "--say-memory"};
  for (const int workers : {2, 4}) {
    const double whole = most_private_memory(workers, with(flags, kReplicated));
    const double part = most_private_memory(workers, with(flags, kSharded));
    EXPECT_GT(whole, kState) << workers;
    EXPECT_NEAR(whole - part, kState * (workers - 1) / workers, 0.1 * kState) << workers;
  }
}

// Opening a named pipe at the end would wait forever.
TEST(TogetherOptions, a_report_that_cannot_be_written_is_an_error_at_the_start) {
  const TestFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const std::string& path : {folder / "pipe", folder.path(), folder / "pipe/no/folder.json"}) {
    for (const int workers : {1, 2}) {
      const auto result =
          run_program(training(workers, with(kNormed, {"--steps", "100000000", "--report", path})));
      EXPECT_EQ(result.exit_code, 2) << path;
      EXPECT_THAT(result.err, HasSubstr("InvalidArgument: --report: ")) << path;
    }
  }
}

TEST(TogetherOptions, closed_standard_streams_do_not_matter) {
  const TestFolder folder;
  const Flags flags = with(kNormed, {"--steps", "5"});
  const std::string expected = hash_of(on_workers(1, flags), folder);
  for (const char* closed : {">&-", "2>&-", "<&- >&- 2>&-"}) {
    for (const int workers : {1, 2}) {
      std::string script;
      for (const std::string& word : training(workers, flags)) script += "'" + word + "' ";
      script += "--report " + (folder / "closed.json") + " ";
      EXPECT_EQ(run_program({"sh", "-c", script + closed}).exit_code, 0) << closed;
      EXPECT_EQ(json_of(folder / "closed.json").value("weights_sha256", ""), expected) << closed;
      std::filesystem::remove(folder / "closed.json");
    }
  }
}

TEST(TogetherOptions, checkpoints_do_not_show_how_the_state_was_kept) {
  const TestFolder folder;
  const std::string expected = hash_of(on_workers(1, with(kNormed, {"--steps", "24"})), folder);
  for (const char* every : {"5", "0.001s", "auto"}) {
    const Flags saving = with(kNormed, {"--logdir", folder / every, "--checkpoint-every", every});
    hash_of(on_workers(3, with(with(saving, {"--steps", "8"}), kSharded)), folder);
    hash_of(on_workers(2, with(with(saving, {"--steps", "16"}), kReplicated)), folder);
    EXPECT_EQ(hash_of(on_workers(2, with(with(saving, {"--steps", "24"}), kSharded)), folder), expected)
        << every;
  }
}

TEST(TogetherOptions, the_report_says_how_gradients_were_added) {
  const TestFolder folder;
  const Flags flags = with(kNormed, {"--steps", "10"});
  const auto tree = report_of(on_workers(2, flags), folder);
  EXPECT_EQ(tree.at("reduce"), "tree");
  for (const char* comm : {"shm", "tcp"}) {
    const auto fast = report_of(on_workers(3, with(flags, {"--reduce", "fast", "--comm", comm})), folder);
    EXPECT_EQ(fast.at("reduce"), "fast");
    EXPECT_NEAR(fast.at("loss").get<double>(), tree.at("loss").get<double>(), 1e-2);
  }
  const auto rounded =
      report_of(on_workers(2, with(flags, {"--wire-precision", "bf16", "--comm", "tcp"})), folder);
  EXPECT_EQ(rounded.at("reduce"), "tree, bfloat16 on the wire");
  EXPECT_NEAR(rounded.at("loss").get<double>(), tree.at("loss").get<double>(), 1e-1);
}

TEST(TogetherOptions, nccl_without_a_gpu_each_is_an_error_and_one_worker_needs_nothing) {
  const TestFolder folder;
  const Flags flags = with(kNormed, {"--steps", "3", "--device", "cpu", "--comm", "nccl"});
  const auto result = run_program(training(2, flags));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("--comm nccl is not possible: worker/0 on "));
  EXPECT_THAT(result.err, HasSubstr(" has no GPU. Use --comm auto"));
  EXPECT_EQ(report_of(on_workers(1, flags), folder).at("steps"), 3);
}

// With steps of 4 x 70, the third step would have 40 of 600 examples, and its last three lanes none.
TEST(TogetherOptions, examples_that_do_not_fill_a_step_are_left_out_or_shared_unevenly) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--lanes", "4", "--batch", "70", "--epochs", "1", "--examples", "600"};
  const auto dropped = report_of(on_workers(2, flags), folder);
  EXPECT_EQ(dropped.at("steps"), 2);
  EXPECT_EQ(dropped.at("examples"), 560);
  const auto all = report_of(on_workers(3, with(flags, {"--no-drop-remainder"})), folder);
  EXPECT_EQ(all.at("steps"), 3);
  EXPECT_EQ(all.at("examples"), 600);
  EXPECT_EQ(all.at("weights_sha256"), hash_of(on_workers(1, with(flags, {"--no-drop-remainder"})), folder));
  const auto result = run_program(training(2, {"--net", "odd", "--batch", "40000"}));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("do not fill one step of 2 lanes with 40000 examples each"));
}

TEST(TogetherOptions, a_program_without_tutti_run_finds_its_place_or_is_told) {
  const Flags launch = {program_path("tutti"), "run", "-n", "2", "--", together_program()};
  const ProgramResult found = run_program(with(launch, {"own-context"}));
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("rank 0 of 2"), HasSubstr("rank 1 of 2")));
  const ProgramResult told = run_program(with(launch, {"lonely-context"}));
  EXPECT_EQ(told.exit_code, 2);
  EXPECT_THAT(told.out, HasSubstr("in a job of 2 workers"));
}

// Runs two workers, of which the second has additional flags.
ProgramResult with_a_different_worker(const Flags& flags, const Flags& of_the_second) {
  Flags program = with({together_program()}, flags);
  std::string more;
  for (const std::string& word : of_the_second) more += " '" + word + "'";
  const std::string script =
      "if [ \"$TUTTI_TASK_INDEX\" = 1 ]; then exec \"$@\"" + more + "; else exec \"$@\"; fi";
  return run_program(
      with({program_path("tutti"), "run", "-n", "2", "--", "sh", "-c", script, "sh"}, program));
}

TEST(TogetherOptions, a_worker_with_another_flag_is_named_by_all_at_once) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--lanes", "2", "--batch", "3", "--steps", "5", "--timeout", "50"};
  const std::vector<std::pair<Flags, std::string>> cases = {
      {{"--clip-norm", "0.5"}, "--clip-norm"},  // a flag of the program
      {{"--steps", "7"}, "--steps"},
      {{"--comm", "tcp"}, "--comm"},
      {{"--optimizer-state", "replicated"}, "--optimizer-state"},
      {{"--no-nan-guard"}, "--nan-guard"},
      {{"--threads", "1"}, "--threads"},
      {{"--timeline", folder / "trace.json"}, "--timeline"},
      {{"--other-labels"}, "column label"},
  };
  for (const auto& [more, name] : cases) {
    const ProgramResult result = with_a_different_worker(flags, more);
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << more[0] << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr(name)) << more[0];
    EXPECT_THAT(result.err, HasSubstr("worker/1")) << more[0];
    EXPECT_THAT(result.err, HasSubstr("worker/0")) << more[0];
    EXPECT_THAT(result.err, ::testing::Not(HasSubstr("Timeout"))) << more[0];
  }
}

TEST(TogetherOptions, a_worker_that_cannot_begin_is_what_all_report) {
  const ProgramResult result =
      with_a_different_worker({"--net", "odd", "--lanes", "2", "--steps", "5"}, {"--profile-steps", "3..5"});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("worker/1 could not start: --profile-steps needs an output file"));
}

TEST(TogetherOptions, flags_of_one_task_alone_may_differ) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--lanes", "2", "--batch", "3", "--steps", "5", "--threads", "1"};
  const Flags own = {"--log-level", "warning", "--report", folder / "report.json", "--timeout", "40"};
  EXPECT_EQ(with_a_different_worker(flags, own).exit_code, 0);
}

TEST(TogetherOptions, rounded_gradients_go_on_to_the_bit) {
  const TestFolder folder;
  Flags flags = with(kNormed, {"--wire-precision", "bf16", "--comm", "tcp"});
  for (const Flags& state : {kReplicated, kSharded}) {
    const Flags how = with(flags, state);
    const std::string expected = hash_of(on_workers(2, with(how, {"--steps", "20"})), folder);
    const Flags saving = with(how, {"--logdir", folder / state.back()});
    hash_of(on_workers(2, with(saving, {"--steps", "9"})), folder);
    EXPECT_EQ(hash_of(on_workers(2, with(saving, {"--steps", "20"})), folder), expected) << state.back();
    const ProgramResult other = run_program(training(3, with(saving, {"--steps", "22"})));
    EXPECT_EQ(other.exit_code, 0) << other.err;
    EXPECT_THAT(other.err, HasSubstr("workers 2, not 3"));
    EXPECT_THAT(other.err, HasSubstr("rounding residuals"));
  }
}

TEST(TogetherOptions, two_jobs_do_not_share_a_log_directory) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--lanes", "2", "--batch", "4", "--logdir", folder / "run"};
  RunningProgram first(training(1, with(flags, {"--steps", "100000"})));
  first.wait_for_output("under way");
  const ProgramResult second = run_program(training(2, with(flags, {"--steps", "10"})));
  EXPECT_EQ(second.exit_code, exit_code(ErrorKind::InvalidArgument)) << second.err;
  EXPECT_THAT(second.err, HasSubstr("is in use by worker/0 on host"));
  EXPECT_THAT(second.err, HasSubstr("pid " + std::to_string(first.pid())));
  ::kill(first.pid(), SIGKILL);
  first.wait();
  const ProgramResult third = run_program(training(2, with(flags, {"--steps", "10"})));
  EXPECT_EQ(third.exit_code, 0) << third.err;
}

TEST(TogetherOptions, train_resume_and_export_on_a_file_system_without_links) {
  const TestFolder folder;
  const auto trained = [&](const std::string& steps) {
    return run_program(training(2, {"--lanes", "2", "--batch", "3", "--checkpoint-every", "2", "--steps",
                                    steps, "--logdir", folder / "run"}));
  };
  const bool refused = with_refused_calls(link_calls(), EPERM, [&] {
    const ProgramResult first = trained("4");
    EXPECT_EQ(first.exit_code, 0) << first.err;
    const std::string warning = "there is no link '" + folder.path() + "/run/latest'";
    EXPECT_THAT(first.err, HasSubstr(warning));
    EXPECT_EQ(first.err.find(warning), first.err.rfind(warning)) << first.err;
    const ProgramResult again = trained("6");
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_THAT(again.err, HasSubstr("resumed from " + folder.path() + "/run/ckpt-4"));
    for (const char* from : {"run", "run/latest"}) {
      // A program that is started and not forked: it starts itself to check what it has exported.
      const ProgramResult exported = run_program(
          {"env", together_program(), "--export", folder / "exports", "--export-from", folder / from});
      EXPECT_EQ(exported.exit_code, 0) << exported.err;
    }
  });
  if (!refused) GTEST_SKIP() << "NOT TESTED: this process may not filter system calls";
}

// Worker 1 has a gradient that is no number, from a loss that is one. No task may use it.
TEST(TogetherOptions, a_gradient_that_is_no_number_is_named_with_its_rank_by_all) {
  const Flags flags = {"--net",
                       "normed",
                       "--lanes",
                       "4",
                       "--batch",
                       "3",
                       "--threads",
                       "1",
                       "--steps",
                       "200",
                       "--break-gradient-at",
                       "7"};
  const std::vector<Flags> ways = {{"--comm", "shm"},
                                   {"--comm", "tcp"},
                                   {"--comm", "shm", "--own-loop"},
                                   {"--comm", "tcp", "--own-loop"},
                                   {"--comm", "tcp", "--optimizer-state", "sharded"}};
  for (const Flags& way : ways) {
    const Terminals terminals({{"worker", 2}});
    const auto first = terminals.start("worker", 0, with(flags, way));
    const auto second = terminals.start("worker", 1, with(flags, way));
    for (RunningProgram* task : {second.get(), first.get()}) {
      EXPECT_NE(task->wait(), 0) << way.back();
      EXPECT_THAT(task->err(), AllOf(HasSubstr("the gradient of "), HasSubstr("is not finite on rank 1"),
                                     HasSubstr("at step 7")))
          << way.back();
    }
  }
  const ProgramResult alone = run_program(training(1, flags));
  EXPECT_NE(alone.exit_code, 0);
  EXPECT_THAT(alone.err, HasSubstr("is not finite on rank 0 at step 7"));
  const Flags unguarded = with(flags, {"--no-nan-guard", "--comm", "tcp"});
  EXPECT_EQ(run_program(training(2, unguarded)).exit_code, 0);
}

TEST(TogetherOptions, a_second_task_of_one_index_is_refused_and_the_job_goes_on) {
  for (const char* comm : {"shm", "tcp"}) {
    const Terminals terminals({{"worker", 3}});
    const Flags flags = {"--batch", "2", "--steps", "20", "--comm", comm};
    const auto first = terminals.start("worker", 0, flags);
    // One of the two gets the place; which one does not matter. The job begins after the other was refused.
    const auto one = terminals.start("worker", 1, flags);
    const auto twin = terminals.start("worker", 1, flags);
    auto end_of_one = std::async(std::launch::async, [&] { return one->wait(); });
    auto end_of_twin = std::async(std::launch::async, [&] { return twin->wait(); });
    const auto is_over = [](const std::future<int>& end) {
      return end.wait_for(std::chrono::milliseconds(10)) == std::future_status::ready;
    };
    while (!is_over(end_of_one) && !is_over(end_of_twin)) continue;
    const auto third = terminals.start("worker", 2, flags);
    EXPECT_EQ(first->wait(), 0) << first->err();
    EXPECT_EQ(third->wait(), 0) << third->err();
    EXPECT_EQ((std::set{end_of_one.get(), end_of_twin.get()}),
              (std::set{0, exit_code(ErrorKind::InvalidArgument)}));
    EXPECT_THAT(one->err() + twin->err(), HasSubstr("two tasks have the same index: worker/1 on "));
  }
}

TEST(TogetherOptions, a_gradient_that_is_no_number_is_refused_by_servers_and_masters) {
  const Flags flags = {
      "--net", "normed", "--lanes", "4", "--batch", "3", "--steps", "200", "--break-gradient-at", "7"};
  for (const int servers : {1, 2}) {
    const Terminals terminals(servers, 2);
    const Flags sync = with(flags, {"--strategy", "ps-sync"});
    std::vector<std::unique_ptr<RunningProgram>> all;
    for (int i = 0; i < servers; ++i) all.push_back(terminals.start("ps", i, sync));
    const auto first = terminals.start("worker", 0, sync);
    const auto second = terminals.start("worker", 1, sync);
    for (RunningProgram* task : {first.get(), second.get()}) {
      EXPECT_EQ(task->wait(), exit_code(ErrorKind::InvalidArgument)) << task->err();
      EXPECT_THAT(task->err(), HasSubstr("the gradients of worker/1 ("));
      EXPECT_THAT(task->err(), HasSubstr("are not finite at step 7"));
    }
  }
  const Terminals terminals({{"master", 1}, {"worker", 2}});
  const Flags passive = with(flags, {"--strategy", "in-graph"});
  const auto first = terminals.start("worker", 0, passive);  // rank 1, since the master is rank 0
  const auto second = terminals.start("worker", 1, passive);
  const auto master = terminals.start("master", 0, passive);
  EXPECT_EQ(master->wait(), exit_code(ErrorKind::InvalidArgument)) << master->err();
  EXPECT_THAT(master->err(), HasSubstr("the gradients of worker/0 ("));
  EXPECT_THAT(master->err(), HasSubstr("are not finite at step 7"));
  for (RunningProgram* task : {first.get(), second.get()}) ::kill(task->pid(), SIGKILL);
}

TEST(TogetherOptions, the_plan_says_what_makes_the_bits_depend_on_the_number_of_workers) {
  const auto plan_of = [](const Flags& flags) {
    const ProgramResult result =
        run_program(training(2, with({"--lanes", "4", "--batch", "3", "--steps", "2"}, flags)));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  EXPECT_THAT(plan_of({"--net", "synced"}), HasSubstr("depend on the number of workers (SyncBatchNorm)"));
  EXPECT_THAT(plan_of({"--net", "synced", "--own-loop"}), HasSubstr("number of workers (SyncBatchNorm)"));
  EXPECT_THAT(plan_of({"--reduce", "fast"}), HasSubstr("number of workers (--reduce fast)"));
  EXPECT_THAT(plan_of({"--wire-precision", "bf16", "--comm", "tcp"}),
              HasSubstr("number of workers (bfloat16 on the wire)"));
  EXPECT_THAT(plan_of({}), ::testing::Not(HasSubstr("depend on the number")));
}

}  // namespace
}  // namespace tutti::testing::together_options_test
