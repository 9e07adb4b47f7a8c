// Tests that workers go on without those that are lost, and with those that come back (`tutti run --min`):
// the weights have the bits of a training that nothing has disturbed.
#include "tests/survival.h"

#include <filesystem>
#include <tuple>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/together.h"
#include "tutti/base/error.h"
#include "tutti/store/weight_hashes.h"

namespace tutti::testing::survival_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// With dropout and batch norm.
const Flags kRun = {"--net", "normed", "--lanes", "8", "--batch", "2", "--steps", "12"};

struct Way {
  std::string name;
  Flags flags;
  int servers = 0;
};

class Survival : public ::testing::TestWithParam<Way> {
 protected:
  Flags flags(const Flags& more = {}) const { return with(with(kRun, GetParam().flags), more); }
  std::string undisturbed(const Flags& more = {}) const {
    return hash_of(on_workers(1, flags(more)), folder_);
  }
  Outcome disturbed(const std::string& misfortune, const Flags& more = {}) const {
    return disturbed(4, with({"--misfortune", misfortune}, more));
  }
  Outcome disturbed(int workers, const Flags& more) const {
    const int servers = GetParam().servers;
    const Flags launch = {"--min", "1", "--ps", std::to_string(servers)};
    return run_changing(folder_, workers, launch,
                        servers > 0 ? with(flags(more), {"--strategy", "ps-sync"}) : flags(more));
  }

  const TestFolder folder_;
};

TEST_P(Survival, of_one_worker_that_is_killed) {
  const Outcome outcome = disturbed("2@5/before");
  EXPECT_EQ(outcome.sha256(), undisturbed());
  EXPECT_THAT(outcome.result.err,
              AllOf(HasSubstr("going on at step 5 with 3 workers"), Not(HasSubstr("resumed from"))));
  EXPECT_EQ(outcome.report.at("world"), 3);
  EXPECT_EQ(outcome.report.at("lost_steps"), 0);
  ASSERT_EQ(outcome.report.at("changes").size(), 1U);
  EXPECT_EQ(outcome.report.at("changes")[0].at("step"), 5);
  EXPECT_THAT(outcome.report.at("changes")[0].at("why").get<std::string>(), HasSubstr("worker/2"));
}

TEST_P(Survival, of_the_chief) {
  const Flags saving = {"--logdir", folder_ / "run", "--checkpoint-every", "4", "--hash-every", "1"};
  const Outcome outcome = disturbed("0@5/before", saving);
  EXPECT_EQ(outcome.sha256(), undisturbed());
  EXPECT_THAT(outcome.result.err, HasSubstr("going on at step 5 with 3 workers"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/ckpt-12"));
  if (GetParam().servers == 0) {
    EXPECT_EQ(store::read_weight_hashes(folder_ / "run").size(), 12U);
  }
}

TEST_P(Survival, of_all_but_one) {
  EXPECT_EQ(disturbed("0@5/before,1@5/before,3@7/told").sha256(), undisturbed());
}

TEST_P(Survival, of_workers_that_are_killed_before_the_run_begins) {
  EXPECT_EQ(disturbed("0@0/begins").sha256(), undisturbed());
  EXPECT_EQ(disturbed("1@0/begins,0@0/before,3@0/told").sha256(), undisturbed());
}

TEST_P(Survival, of_a_crash_in_a_lane) { EXPECT_EQ(disturbed("1@3/lane,3@8/lane").sha256(), undisturbed()); }

TEST_P(Survival, of_a_worker_that_is_killed_during_a_validation_and_at_the_end) {
  const Flags validating = {"--validate-every", "4", "--average", "0.9"};
  const Outcome outcome = disturbed("1@4/validated,0@8/validated,2@12/end", validating);
  const nlohmann::json alone = report_of(on_workers(1, flags(validating)), folder_);
  EXPECT_EQ(outcome.sha256(), alone.at("weights_sha256"));
  EXPECT_EQ(outcome.report.at("metrics"), alone.at("metrics"));
  EXPECT_EQ(outcome.report.at("history"), alone.at("history"));
}

TEST_P(Survival, of_a_worker_that_is_stopped) {
  const Outcome outcome = disturbed("1@5/stop", {"--timeout", "4"});
  EXPECT_EQ(outcome.sha256(), undisturbed());
  EXPECT_THAT(outcome.result.err, HasSubstr("with 3 workers"));
}

TEST_P(Survival, of_a_worker_that_leaves_because_of_a_signal_and_of_a_chief_that_does) {
  const Flags saving = {"--logdir", folder_ / "run", "--checkpoint-every", "5"};
  const Outcome outcome = disturbed("2@3/leave,0@7/leave", saving);
  EXPECT_EQ(outcome.sha256(), undisturbed());
  EXPECT_THAT(outcome.result.err, AllOf(HasSubstr("stopped by SIGTERM after step 4: the other workers go on"),
                                        HasSubstr("going on at step 4 with 3 workers"),
                                        HasSubstr("going on at step 8 with 2 workers")));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/ckpt-12"));
}

TEST_P(Survival, of_one_that_is_left_alone_by_a_signal) {
  const Outcome outcome = disturbed(2, {"--misfortune", "0@3/leave"});
  EXPECT_EQ(outcome.sha256(), undisturbed());
  EXPECT_EQ(outcome.report.at("world"), 1);
}

TEST(SurvivalOfFits, of_workers_that_are_killed_at_the_end_of_a_fit_and_between_two) {
  const TestFolder folder;
  const Flags twice = with(kRun, {"--fits-twice"});
  const std::string undisturbed = hash_of(on_workers(1, twice), folder);
  for (const Flags& comm : {Flags{}, Flags{"--comm", "tcp"}}) {
    for (const char* misfortune :
         {"2@0/between", "0@0/between,1@12/end", "1@12/end,2@0/between,3@15/before"}) {
      const Outcome outcome =
          run_changing(folder, 4, {"--min", "1"}, with(twice, comm + Flags{"--misfortune", misfortune}));
      EXPECT_EQ(outcome.sha256(), undisturbed) << misfortune;
    }
  }
}

// They go back to a checkpoint of the first fit, and make the second one as if nothing of it had been made.
TEST(SurvivalOfFits, of_workers_that_go_back_to_a_checkpoint) {
  const TestFolder folder;
  const Flags twice = with(kRun, {"--fits-twice", "--validate-every", "4"});
  const nlohmann::json alone = report_of(on_workers(1, twice), folder);
  for (const char* misfortune : {"1@5/before", "1@22/before", "0@24/end"}) {
    const TestFolder own;
    const Flags flags = {"--comm",   "tcp",       "--optimizer-state",  "sharded", "--misfortune", misfortune,
                         "--logdir", own / "run", "--checkpoint-every", "3"};
    const Outcome outcome = run_changing(own, 3, {"--min", "1"}, with(twice, flags));
    for (const char* same : {"weights_sha256", "steps", "metrics", "history"})
      EXPECT_EQ(outcome.report.at(same), alone.at(same)) << misfortune << " " << same;
  }
}

// One that is left alone has the whole state, and the others that join it have a part.
TEST(SurvivalOfParts, goes_back_to_a_checkpoint_whoever_joins) {
  const TestFolder folder;
  const std::string expected = hash_of(on_workers(1, kRun), folder);
  for (const int workers : {2, 3}) {
    for (const char* misfortune : {"0@2/before", "1@2/before"}) {
      const TestFolder own;
      const Flags flags = {"--comm",   "tcp",           "--optimizer-state",     "sharded",  "--misfortune",
                           misfortune, "--await-world", std::to_string(workers), "--logdir", own / "run"};
      const Outcome outcome =
          run_changing(own, workers, {"--min", "1", "--restarts", "1"}, with(kRun, flags));
      EXPECT_EQ(outcome.sha256(), expected) << workers << " " << misfortune;
      EXPECT_EQ(outcome.report.at("world"), workers);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Survival,
    ::testing::Values(Way{"shm", {"--comm", "shm"}}, Way{"tcp", {"--comm", "tcp"}},
                      Way{"own_loop", {"--own-loop"}}, Way{"own_loop_tcp", {"--own-loop", "--comm", "tcp"}},
                      Way{"one_server", {}, 1}, Way{"servers", {}, 3},
                      Way{"servers_that_clip", {"--clip-norm", "0.5", "--comm", "tcp"}, 2},
                      Way{"own_loop_servers", {"--own-loop"}, 2}),
    [](const auto& info) { return info.param.name; });

// The checkpoint is left out, and nothing is made again because of it.
TEST(SurvivalOfCheckpoints, to_which_a_lost_worker_has_not_written_its_part) {
  const TestFolder folder;
  const std::string expected = hash_of(on_workers(1, kRun), folder);
  for (int step = 3; step <= 9; ++step) {
    const TestFolder own;
    const Flags flags = {"--comm",   "shm",       "--checkpoint-every", "1",
                         "--logdir", own / "run", "--misfortune",       fmt::format("2@{}/before", step)};
    const Outcome outcome = run_changing(own, 3, {"--min", "1"}, with(kRun, flags));
    EXPECT_EQ(outcome.sha256(), expected);
    EXPECT_EQ(outcome.report.at("lost_steps"), 0);
    EXPECT_EQ(outcome.report.at("changes").size(), 1U) << outcome.report.at("changes");
  }
}

// Worker 1 is started again, and comes back before the last step: the others wait for it.
TEST(SurvivalWith, a_worker_that_joins_takes_over_the_whole_state) {
  const TestFolder folder;
  const Way ways[] = {{"shm", {"--comm", "shm"}},
                      {"tcp", {"--comm", "tcp"}},
                      {"own_loop", {"--own-loop"}},
                      {"fits", {"--fits-twice"}},
                      {"servers", {}, 2},
                      {"fits_with_a_server", {"--fits-twice"}, 1},
                      {"own_loop_servers", {"--own-loop"}, 2}};
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    const Flags flags = with(with(kRun, way.flags), {"--average", "0.9", "--validate-every", "4"});
    const nlohmann::json alone = report_of(on_workers(1, flags), folder);
    const Flags strategy = way.servers > 0 ? Flags{"--strategy", "ps-sync"} : Flags{};
    for (const char* misfortune : {"1@3/before", "0@3/before"}) {
      const Outcome outcome =
          run_changing(folder, 3, {"--min", "1", "--restarts", "1", "--ps", std::to_string(way.servers)},
                       with(flags, with({"--misfortune", misfortune, "--await-world", "3"}, strategy)));
      EXPECT_THAT(outcome.result.err, HasSubstr("has come back: 3 go on"));
      EXPECT_EQ(outcome.sha256(), alone.at("weights_sha256"));
      EXPECT_EQ(outcome.report.at("world"), 3);
      EXPECT_EQ(outcome.report.at("metrics"), alone.at("metrics"));
      EXPECT_EQ(outcome.report.at("history"), alone.at("history"));
    }
  }
}

// Over shared memory each worker updates its part of the weights. With several chunks, buckets and workers,
// by whose death a step is torn, or is whole and not told to the others yet.
TEST(SurvivalOfUpdates, that_are_torn) {
  const TestFolder folder;
  const Flags flags = {"--net", "cnn",         "--lanes", "4",      "--batch", "2",           "--steps",
                       "8",     "--optimizer", "mortal",  "--comm", "shm",     "--clip-norm", "1"};
  const std::string undisturbed = hash_of(on_workers(1, flags), folder);
  for (const auto& [workers, misfortune] :
       {std::pair(2, "0@5/update"), std::pair(2, "1@3/updated"), std::pair(3, "1@3/update,0@5/updated"),
        std::pair(3, "1@4/update,0@4/updated"), std::pair(4, "3@2/updated,0@4/update,1@6/update")}) {
    const Outcome outcome =
        run_changing(folder, workers, {"--min", "1"}, with(flags, {"--misfortune", misfortune}));
    EXPECT_EQ(outcome.sha256(), undisturbed) << misfortune;
    EXPECT_EQ(outcome.report.at("lost_steps"), 0);
  }
}

// The places of these deaths depend on how fast the machine is.
TEST(SurvivalOfUpdates, at_any_time_with_every_optimiser) {
  const TestFolder folder;
  for (const std::string optimizer : {"adam", "momentum", "ftrl", "grouped"}) {
    const Flags flags = {"--net",   "cnn", "--lanes",     "4",       "--batch", "1",
                         "--steps", "8",   "--optimizer", optimizer, "--comm",  "shm"};
    const std::string undisturbed = hash_of(on_workers(1, flags), folder);
    for (const char* misfortune : {"1@2/soon1000,0@4/soon4000", "2@2/soon2000,1@4/soon8000,0@6/soon16000"})
      EXPECT_EQ(run_changing(folder, 4, {"--min", "1"}, with(flags, {"--misfortune", misfortune})).sha256(),
                undisturbed)
          << optimizer << " " << misfortune;
  }
}

TEST(SurvivalOfUpdates, with_a_worker_that_joins) {
  const TestFolder folder;
  const Flags flags = {"--net", "cnn",     "--lanes", "4",           "--batch",
                       "2",     "--steps", "10",      "--optimizer", "mortal"};
  const std::string undisturbed = hash_of(on_workers(1, flags), folder);
  for (const char* misfortune : {"1@3/update", "0@3/updated", "2@2/update,0@2/updated"}) {
    const Outcome outcome = run_changing(folder, 3, {"--min", "1", "--restarts", "2"},
                                         with(flags, {"--misfortune", misfortune, "--await-world", "3"}));
    EXPECT_EQ(outcome.sha256(), undisturbed) << misfortune;
    EXPECT_EQ(outcome.report.at("world"), 3);
  }
}

TEST(SurvivalOfUpdates, go_back_to_a_checkpoint_if_the_state_is_sharded_over_a_network) {
  const TestFolder folder;
  const std::string undisturbed = hash_of(on_workers(1, kRun), folder);
  const Flags flags = {"--comm", "tcp", "--optimizer-state", "sharded", "--checkpoint-every", "2"};
  for (const std::string worker : {"0", "1"}) {
    const std::string misfortune = worker + "@5/before";
    const Outcome outcome =
        run_changing(folder, 3, {"--min", "1"},
                     with(kRun, flags + Flags{"--logdir", folder / worker, "--misfortune", misfortune}));
    EXPECT_EQ(outcome.sha256(), undisturbed) << misfortune;
    EXPECT_GT(outcome.report.at("lost_steps"), 0);
  }
}

// `tutti scale` changes the number of workers while they train.
TEST(SurvivalOfScaling, ends_with_the_bits_of_a_training_with_one_number_of_workers) {
  const TestFolder folder;
  for (const Flags& way : {Flags{"--comm", "shm"}, Flags{"--comm", "tcp"}, Flags{"--own-loop"}}) {
    const Flags flags = with({"--net", "normed", "--batch", "2", "--steps", "600"}, way);
    const std::string expected = hash_of(on_workers(1, with(flags, {"--lanes", "4"})), folder);
    const std::string logdir = folder / way.back();
    const std::string slow = folder.write("slow", "");
    const std::string report = folder / "report.json";
    RunningProgram training(
        changing_job(2, {"--min", "1", "--max", "4"},
                     with(flags, {"--logdir", logdir, "--dawdle", slow, "--report", report})));
    training.wait_for_error("2 workers connected");
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(logdir + "/launcher.json"); }));
    for (const char* workers : {"4", "1", "3"}) {
      const ProgramResult scaled = run_program({program_path("tutti"), "scale", logdir, workers});
      EXPECT_EQ(scaled.exit_code, 0) << scaled.out << scaled.err << training.err();
    }
    std::filesystem::remove(slow);
    EXPECT_EQ(training.wait(), 0) << training.out() << training.err();
    const nlohmann::json said = json_of(report);
    EXPECT_EQ(said.at("weights_sha256"), expected);
    EXPECT_EQ(said.at("world"), 3);
    EXPECT_EQ(said.at("lanes"), 4) << "as many as workers at most";
    EXPECT_EQ(said.at("lost_steps"), 0);
    EXPECT_GE(said.at("changes").size(), 3U);
  }
}

TEST(SurvivalOfPreemption, loses_the_worker_alone_whose_machine_is_taken_away) {
  const TestFolder folder;
  const Outcome outcome = run_changing(folder, 3, {"--min", "1", "--preempt-signal", "USR1"},
                                       with(kRun, {"--misfortune", "2@3/preempt"}));
  EXPECT_EQ(outcome.sha256(), hash_of(on_workers(1, kRun), folder));
  EXPECT_THAT(outcome.result.err, AllOf(HasSubstr("stopped by SIGTERM after step 4: the other workers go on"),
                                        HasSubstr("going on at step 4 with 2 workers")));
}

TEST(SurvivalOfPreemption, saves_and_ends_without_min) {
  const TestFolder folder;
  const Flags flags = with(kRun, {"--misfortune", "1@5/preempt", "--logdir", folder / "run"});
  EXPECT_EQ(
      run_program(changing_job(3, {"--preempt-signal", "USR1"}, flags), {}, Crashes::AskedFor).exit_code,
      128 + SIGTERM);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/ckpt-6"));
}

// All that know the state are killed at once: the job is started again, from its checkpoint if it has one.
TEST(SurvivalOfNobody, restarts_the_job) {
  const TestFolder folder;
  const std::string expected = hash_of(on_workers(1, kRun), folder);
  const Flags all = {"--misfortune", "0@6/before,1@6/before"};
  const Flags saving = with(all, {"--logdir", folder / "run", "--checkpoint-every", "4"});
  for (const Flags& flags : {saving}) {
    const Outcome outcome = run_changing(folder, 2, {"--min", "1", "--restarts", "3"}, with(kRun, flags));
    EXPECT_EQ(outcome.sha256(), expected);
    EXPECT_THAT(outcome.result.err, HasSubstr("resumed from"));
  }
}

// The first checkpoint is saved after the first step. Only a failure after which the run goes back counts.
TEST(SurvivalOfNobody, is_a_failure_for_which_checkpoints_are_more_frequent) {
  const TestFolder folder;
  const std::string expected = hash_of(on_workers(1, kRun), folder);
  const auto outcome = [&](const std::string& name, const char* misfortune) {
    const Flags saving = {"--logdir", folder / name,  "--checkpoint-every",
                          "auto",     "--misfortune", misfortune};
    Outcome one = run_changing(folder, 2, {"--min", "1", "--restarts", "3"}, with(kRun, saving));
    EXPECT_EQ(one.sha256(), expected);
    EXPECT_TRUE(std::filesystem::exists(folder / name + "/ckpt-1"));
    EXPECT_THAT(one.result.err, HasSubstr("a checkpoint every"));
    EXPECT_GT(one.report.at("checkpoints").at("interval"), 0);
    return one;
  };
  const Outcome survived = outcome("survived", "0@6/before");
  EXPECT_EQ(survived.report.at("checkpoints").at("failures"), 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "survived/ckpt-7")) << "the new chief has measured anew";
  const Outcome restarted = outcome("restarted", "0@6/before,1@6/before");
  EXPECT_THAT(restarted.result.err, HasSubstr("resumed from"));
  EXPECT_EQ(restarted.report.at("checkpoints").at("failures"), 1);
  EXPECT_LT(restarted.report.at("checkpoints").at("between_failures"),
            survived.report.at("checkpoints").at("between_failures"));
}

const Flags kOnServers = with(kRun, {"--strategy", "ps-sync"});

// There is no checkpoint, so nobody could go back.
Outcome without_servers(const TestFolder& folder, int servers, const Flags& flags,
                        const std::string& misfortune) {
  Outcome outcome =
      run_changing(folder, 3, {"--min", "1", "--ps", std::to_string(servers), "--restarts", "3"},
                   with(flags, {"--misfortune", misfortune}));
  EXPECT_THAT(outcome.result.err,
              AllOf(HasSubstr("has its part of the parameters again, from its copy on"),
                    HasSubstr("going on at step"), Not(HasSubstr("tutti run: restart "))));
  EXPECT_EQ(outcome.report.value("lost_steps", -1), 0);
  return outcome;
}

// Before, within and after a step, several in a row, and with workers and the chief. The places of the "soon"
// deaths depend on how fast the machine is.
TEST(SurvivalOfServers, take_their_parts_from_copies) {
  const TestFolder folder;
  const std::string expected = hash_of(on_workers(1, kRun), folder);
  for (const auto& [servers, misfortune] :
       {std::pair(2, "0@6/server"), std::pair(2, "1@6/server_within"), std::pair(2, "0@6/server_told"),
        std::pair(3, "0@3/server_soon2000,1@6/server_soon5000,2@9/server_soon10000"),
        std::pair(2, "0@4/server_within,1@5/server"), std::pair(2, "1@5/server,1@6/server_told"),
        std::pair(3, "1@6/server,2@6/before"), std::pair(2, "0@6/server_told,0@7/before"),
        std::pair(3, "2@12/server_told")}) {
    const Outcome outcome = without_servers(folder, servers, kOnServers, misfortune);
    EXPECT_EQ(outcome.sha256(), expected) << misfortune << outcome.result.err;
  }
}

TEST(SurvivalOfServers, take_slots_and_the_norm_of_gradients_from_copies) {
  const TestFolder folder;
  for (const Flags& flags : {Flags{"--optimizer", "momentum"}, Flags{"--optimizer", "ftrl"},
                             Flags{"--optimizer", "adam", "--clip-norm", "0.5"},
                             Flags{"--optimizer", "adam", "--own-loop", "--comm", "tcp"}}) {
    const std::string expected = hash_of(on_workers(1, with(kRun, flags)), folder);
    const Outcome outcome =
        without_servers(folder, 2, with(kOnServers, flags), "0@4/server_soon3000,1@8/server_told");
    EXPECT_EQ(outcome.sha256(), expected) << flags[1] << outcome.result.err;
  }
}

// The checkpoint that a server was to write a part of is not waited for.
TEST(SurvivalOfServers, save_checkpoints_afterwards) {
  const TestFolder folder;
  const std::string expected = hash_of(on_workers(1, kRun), folder);
  const Flags saving = {"--logdir", folder / "run", "--checkpoint-every", "4"};
  const Outcome outcome =
      run_changing(folder, 3, {"--min", "1", "--ps", "2", "--restarts", "3"},
                   with(with(kOnServers, saving), {"--misfortune", "0@4/server_told,1@10/server"}));
  EXPECT_EQ(outcome.sha256(), expected) << outcome.result.err;
  EXPECT_EQ(outcome.report.at("lost_steps"), 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/ckpt-12"));
}

TEST(SurvivalOfServers, go_back_to_a_checkpoint_without_copies) {
  const TestFolder folder;
  const std::string expected = hash_of(on_workers(1, kRun), folder);
  for (const auto& [servers, replicas, misfortune] :
       {std::tuple("2", "0", "1@6/server,2@6/before"), std::tuple("1", "1", "0@6/server"),
        std::tuple("2", "1", "1@6/servers")}) {
    const TestFolder own;
    const Flags flags = {"--logdir",   own / "run", "--checkpoint-every", "4",
                         "--replicas", replicas,    "--misfortune",       misfortune};
    const Outcome outcome =
        run_changing(own, 3, {"--min", "1", "--ps", servers, "--restarts", "3"}, with(kOnServers, flags));
    EXPECT_EQ(outcome.sha256(), expected) << misfortune << outcome.result.err;
    EXPECT_THAT(outcome.result.err, Not(HasSubstr("tutti run: restart ")));
    EXPECT_GE(outcome.report.at("lost_steps"), 1) << "the chief may not have finished step 5";
  }
}

TEST(SurvivalOfServers, without_workers_are_started_again_with_the_job) {
  const TestFolder folder;
  const Flags flags = {"--logdir", folder / "run", "--checkpoint-every",
                       "4",        "--misfortune", "0@6/before,1@6/before"};
  const std::string expected = hash_of(on_workers(1, kRun), folder);
  const Outcome outcome =
      run_changing(folder, 2, {"--min", "1", "--ps", "1", "--restarts", "3"}, with(kOnServers, flags));
  EXPECT_EQ(outcome.sha256(), expected);
  EXPECT_THAT(outcome.result.err, HasSubstr("resumed from"));
}

TEST(SurvivalOfServers, is_refused_where_the_others_do_not_wait_for_a_lost_worker) {
  for (const Flags& flags : {Flags{}, Flags{"--strategy", "ps-sync", "--backup", "1"}}) {
    const ProgramResult result =
        run_program(changing_job(2, {"--min", "1", "--ps", "1"}, with(kRun, flags)), {}, Crashes::AskedFor);
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::InvalidArgument)) << result.err;
    EXPECT_THAT(result.err, HasSubstr("--min with parameter servers needs --strategy ps-sync"));
  }
}

TEST(SurvivalOfTooFew, ends_the_job) {
  const ProgramResult result = run_program(
      changing_job(3, {"--min", "3"}, with(kRun, {"--misfortune", "1@5/before"})), {}, Crashes::AskedFor);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
}

TEST(SurvivalOfTooFew, saves_before_it_ends_if_they_leave_because_of_signals) {
  const TestFolder folder;
  const Flags flags = with(kRun, {"--misfortune", "1@5/leave", "--logdir", folder / "run"});
  EXPECT_EQ(run_program(changing_job(3, {"--min", "3"}, flags), {}, Crashes::AskedFor).exit_code,
            128 + SIGTERM);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/ckpt-6"));
}

TEST(SurvivalOfAnEnd, in_the_middle_is_a_failure_though_it_says_success) {
  const ProgramResult result = run_program(
      changing_job(3, {"--min", "1"}, with(kRun, {"--misfortune", "1@5/exit"})), {}, Crashes::AskedFor);
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::PeerLost)) << result.err;
}

TEST(SurvivalOfAnError, is_none) {
  const ProgramResult result =
      run_program(changing_job(3, {"--min", "1"}, with(kRun, {"--fail-at", "5"})), {}, Crashes::AskedFor);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the disk is on fire"));
}

}  // namespace
}  // namespace tutti::testing::survival_test
