// Tests that workers with rows of sharded tables go on without those that are lost, from shared memory or
// from the copies of their rows (`tutti run --min`, --replicas): the weights have the bits of a training that
// nothing has disturbed.
#include <filesystem>

#include <gmock/gmock.h>

#include "tests/together.h"
#include "tutti/base/error.h"

namespace tutti::testing::tables_survival_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Flags kRun = {"--batch", "8", "--lanes", "8", "--steps", "16", "--rows", "700"};
const Flags kGrowing = {"--dynamic", "--rows", "840", "--admit-after", "2", "--evict-unused-for", "3"};

struct Outcome {
  ProgramResult result;
  nlohmann::json report;
};

// The weights, which rows every table has, and what has been measured.
nlohmann::json outcome_in(const nlohmann::json& report) {
  return {report.value("weights_sha256", ""), report.value("metrics", nlohmann::json()),
          report.value("tables", nlohmann::json()), report.value("history", nlohmann::json())};
}

class TablesSurvive : public ::testing::Test {
 protected:
  static Flags program(const Flags& flags) {
    return with(with({program_path("../test/tables_program"), "--threads", "1"}, kRun), flags);
  }
  nlohmann::json undisturbed(const Flags& flags) const {
    const TestFolder folder;
    return outcome_in(report_of(Job{{{"worker", 1}}, program(flags)}, folder));
  }
  ProgramResult launch(int workers, const Flags& launcher, const Flags& flags) const {
    const Flags command = {program_path("tutti"), "run", "-n", std::to_string(workers), "--min", "1"};
    return run_program(with(with(with(command, launcher), {"--"}), program(flags)), {}, Crashes::AskedFor);
  }
  Outcome disturbed(int workers, const std::string& misfortune, const Flags& flags,
                    const Flags& launcher = {}) const {
    const TestFolder folder;
    const std::string report = folder / "report.json";
    Outcome outcome{launch(workers, launcher, with(flags, {"--misfortune", misfortune, "--report", report})),
                    {}};
    EXPECT_EQ(outcome.result.exit_code, 0) << outcome.result.out << outcome.result.err;
    if (outcome.result.exit_code == 0) outcome.report = json_of(report);
    return outcome;
  }
  // Nothing is made again but the step in flight.
  void expect_nothing_lost(int workers, const std::string& misfortune, const Flags& flags,
                           const nlohmann::json& expected) const {
    SCOPED_TRACE(std::to_string(workers) + " workers, " + misfortune);
    const Outcome outcome = disturbed(workers, misfortune, flags);
    EXPECT_EQ(outcome_in(outcome.report), expected);
    EXPECT_EQ(outcome.report.value("lost_steps", -1), 0);
    EXPECT_THAT(outcome.result.err, Not(HasSubstr("go back to the newest checkpoint")));
  }

  const TestFolder folder_;
};

TEST_F(TablesSurvive, any_worker_that_is_killed_anywhere_in_a_step) {
  const Flags flags = {"--optimizer", "mortal"};
  const nlohmann::json expected = undisturbed(flags);
  for (const char* comm : {"shm", "tcp"}) {
    const Flags over = with(flags, {"--comm", comm});
    for (const int worker : {0, 1, 2}) {
      for (const char* place : {"before", "lane", "update", "told"})
        expect_nothing_lost(3, fmt::format("{}@5/{}", worker, place), over, expected);
    }
    expect_nothing_lost(2, "0@3/update", over, expected);
    expect_nothing_lost(4, "1@0/before", over, expected);
    expect_nothing_lost(4, "3@16/end", over, expected);
  }
}

// The tables are all that the model has, so the optimiser is called for rows.
TEST_F(TablesSurvive, a_worker_that_is_killed_while_it_updates_rows) {
  for (const Flags& kind : {Flags{}, kGrowing, Flags{"--average", "0.9", "--clip-norm", "0.05"}}) {
    const Flags flags = with(kind, {"--optimizer", "mortal", "--bare"});
    const nlohmann::json expected = undisturbed(flags);
    for (const char* comm : {"shm", "tcp"}) {
      expect_nothing_lost(2, "1@5/update", with(flags, {"--comm", comm}), expected);
      expect_nothing_lost(3, "0@4/update,2@9/update", with(flags, {"--comm", comm}), expected);
    }
  }
}

// Some microseconds after a lane: mostly within the exchange of gradients, or the update.
TEST_F(TablesSurvive, workers_that_are_killed_at_any_time) {
  for (const Flags& kind : {Flags{"--optimizer", "adam", "--average", "0.9"}, Flags{"--optimizer", "ftrl"},
                            with(kGrowing, {"--replace-oldest", "--admit-after", "1"})}) {
    const nlohmann::json expected = undisturbed(kind);
    for (const int microseconds : {100, 400, 700, 1000, 1500, 2500}) {
      expect_nothing_lost(3, fmt::format("1@4/soon{0},2@8/soon{0}", microseconds),
                          with(kind, {"--comm", "shm"}), expected);
    }
  }
}

TEST_F(TablesSurvive, deaths_one_after_the_other_until_one_worker_is_left) {
  const nlohmann::json expected = undisturbed({});
  for (const char* comm : {"shm", "tcp"}) {
    expect_nothing_lost(4, "1@3/before,2@4/lane,0@9/told", {"--comm", comm}, expected);
    expect_nothing_lost(4, "0@3/lane,1@5/before,2@6/before", {"--comm", comm}, expected);
  }
}

TEST_F(TablesSurvive, with_any_kind_of_table_and_optimiser) {
  const std::vector<Flags> kinds = {
      {"--optimizer", "sgd", "--place", "block"},
      {"--optimizer", "momentum", "--place", "hash"},
      {"--optimizer", "adam", "--average", "0.9"},
      {"--optimizer", "ftrl", "--clip-norm", "0.05"},
      {"--optimizer", "mortal", "--clip-norm", "0.05", "--bare"},
      {"--own-loop", "--clip-norm", "0.05"},
      kGrowing,
      with(kGrowing, {"--replace-oldest", "--admit-after", "1", "--clip-norm", "0.05", "--average", "0.9"}),
      with(kGrowing, {"--own-loop", "--optimizer", "adam"}),
  };
  for (const Flags& kind : kinds) {
    const nlohmann::json expected = undisturbed(kind);
    for (const char* comm : {"shm", "tcp"})
      expect_nothing_lost(3, "1@4/lane,0@9/before", with(kind, {"--comm", comm}), expected);
  }
}

// Rows are dropped when a checkpoint is saved, which is interrupted.
TEST_F(TablesSurvive, a_death_while_a_checkpoint_is_saved) {
  const auto saving = [&](const std::string& folder) {
    return with(kGrowing, {"--checkpoint-every", "4", "--logdir", folder});
  };
  const nlohmann::json expected = undisturbed(saving(folder_ / "alone"));
  for (const std::string misfortune : {"0@4/told", "1@8/told,3@8/told", "2@5/before,1@12/told"}) {
    const TestFolder folder;
    expect_nothing_lost(4, misfortune, saving(folder / "run"), expected);
  }
}

TEST_F(TablesSurvive, and_take_in_a_worker_that_comes_back) {
  for (const Flags& kind :
       {Flags{"--optimizer", "adam", "--average", "0.9"}, kGrowing, Flags{"--own-loop"}}) {
    const nlohmann::json expected = undisturbed(kind);
    for (const char* comm : {"shm", "tcp"}) {
      for (const char* misfortune : {"1@3/before", "0@3/before"}) {
        const Outcome outcome =
            disturbed(3, misfortune, with(kind, {"--comm", comm, "--await-world", "3"}), {"--restarts", "1"});
        EXPECT_EQ(outcome_in(outcome.report), expected) << misfortune;
        EXPECT_EQ(outcome.report.value("world", 0), 3);
        EXPECT_EQ(outcome.report.value("lost_steps", -1), 0);
        EXPECT_THAT(outcome.result.err, HasSubstr("has come back: 3 go on"));
      }
    }
  }
}

TEST_F(TablesSurvive, workers_that_leave_because_of_a_signal) {
  const nlohmann::json expected = undisturbed({});
  expect_nothing_lost(4, "2@3/leave,0@7/leave", {}, expected);
  // Two neighbours at once: a checkpoint takes the place of the copies.
  expect_nothing_lost(4, "2@6/leave,1@6/leave", {"--logdir", folder_ / "run"}, expected);
  // The checkpoint that is saved for the others drops no rows.
  const auto growing = [this](const std::string& name) {
    return with(kGrowing, {"--checkpoint-every", "5", "--logdir", folder_ / name});
  };
  expect_nothing_lost(4, "2@6/leave,1@6/leave", growing("growing"), undisturbed(growing("alone")));
}

TEST_F(TablesSurvive, a_worker_that_is_stopped) {
  expect_nothing_lost(3, "1@5/stop", {"--timeout", "4"}, undisturbed({}));
}

// An owner and the holder of its copy are lost at once. In shared memory any worker has all rows.
TEST_F(TablesSurvive, go_back_to_a_checkpoint_if_the_copies_are_lost_as_well) {
  const nlohmann::json expected = undisturbed({});
  expect_nothing_lost(4, "1@10/before,2@10/before", {"--comm", "shm"}, expected);
  expect_nothing_lost(4, "0@10/before,1@10/before,3@10/before", {"--comm", "shm"}, expected);
  const Flags over_tcp = {"--comm", "tcp"};
  const Flags saving = with(over_tcp, {"--checkpoint-every", "4", "--logdir", folder_ / "tcp"});
  const Outcome outcome = disturbed(4, "1@10/before,2@10/before", saving);
  EXPECT_EQ(outcome_in(outcome.report), expected);
  EXPECT_EQ(outcome.report.value("lost_steps", -1), 2);
  // The copies are made again after a death, so the next one costs nothing.
  const Outcome apart = disturbed(4, "1@10/before,2@11/before", over_tcp);
  EXPECT_EQ(outcome_in(apart.report), expected);
  const ProgramResult none = launch(4, {}, with(over_tcp, {"--misfortune", "1@10/before,2@10/before"}));
  EXPECT_NE(none.exit_code, 0);
  EXPECT_THAT(none.err, HasSubstr("there is no checkpoint to which the other workers could go back"));
}

TEST_F(TablesSurvive, need_a_checkpoint_without_copies) {
  const ProgramResult result = launch(3, {}, {"--replicas", "0", "--misfortune", "1@3/before"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the others cannot go on without it"), HasSubstr("--replicas 0")));
}

}  // namespace
}  // namespace tutti::testing::tables_survival_test
