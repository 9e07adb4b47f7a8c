// Tests sharded embeddings in processes: the same bits on any number of workers, with servers, and resumed.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/served.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/train/strategies/audits.h"

namespace tutti::testing::tables_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const Flags kFlags = {"--batch", "32", "--lanes", "4", "--steps", "16", "--log-level", "warning"};

struct Result {
  std::string hash;
  nlohmann::json metrics;
  nlohmann::json tables;
  bool operator==(const Result&) const = default;
};

Flags program() { return {program_path("../test/tables_program"), "--threads", "1"}; }

Job on_workers(int workers, const Flags& more = {}) {
  return {{{"worker", workers}}, with(with(program(), kFlags), more)};
}

Job on_servers(int servers, int workers, const Flags& more = {}) {
  const Flags sync = with(kFlags, {"--strategy", "ps-sync"});
  return {{{"ps", servers}, {"worker", workers}}, with(with(program(), sync), more)};
}

Result result_in(const nlohmann::json& report) {
  return {report.value("weights_sha256", ""), report.value("metrics", nlohmann::json()),
          report.value("tables", nlohmann::json())};
}

Result result_of(const Job& job) {
  const TestFolder folder;
  return result_in(report_of(job, folder));
}

// Trained in every way that gives the same bits.
void expect_same_everywhere(const Flags& flags) {
  const Result alone = result_of(on_workers(1, flags));
  ASSERT_FALSE(alone.hash.empty());
  for (const int workers : {2, 3, 4, 6}) EXPECT_EQ(result_of(on_workers(workers, flags)), alone) << workers;
  for (const int workers : {2, 3})
    EXPECT_EQ(result_of(on_workers(workers, with(flags, {"--comm", "tcp"}))), alone) << workers << " tcp";
  EXPECT_EQ(result_of(on_servers(1, 1, flags)), alone);
  EXPECT_EQ(result_of(on_servers(3, 2, flags)), alone);
  EXPECT_EQ(result_of(on_servers(2, 4, flags)), alone);
}

TEST(Tables, have_the_same_weights_in_any_way) { expect_same_everywhere({}); }

TEST(Tables, have_the_same_weights_with_any_optimiser) {
  for (const char* optimizer : {"sgd", "momentum", "adam", "ftrl"})
    expect_same_everywhere({"--optimizer", optimizer});
}

TEST(Tables, are_clipped_alike_in_any_way) {
  const Flags clipped = {"--clip-norm", "0.05"};
  EXPECT_NE(result_of(on_workers(1, clipped)).hash, result_of(on_workers(1)).hash);
  expect_same_everywhere(clipped);
}

// A lane that is audited is fetched by another worker too.
TEST(Tables, have_the_same_weights_if_lanes_are_audited) {
  for (const Flags& kind : {Flags(), Flags{"--own-loop"}, Flags{"--bare"},
                            Flags{"--dynamic", "--rows", "1000", "--admit-after", "2"}}) {
    const Result alone = result_of(on_workers(1, kind));
    for (const int workers : {1, 2, 3}) {
      const Flags audited = with(kind, {"--audit", "1"});
      EXPECT_EQ(result_of(on_workers(workers, audited)), alone) << workers;
      EXPECT_EQ(result_of(on_workers(workers, with(audited, {"--comm", "tcp"}))), alone) << workers << " tcp";
    }
  }
}

// Each of two workers has two of the four lanes, and so takes part in every audit.
TEST(Tables, are_spared_wrong_gradients_of_rows_by_an_audit) {
  for (const Flags& kind : {Flags(), Flags{"--own-loop"}, Flags{"--bare"},
                            Flags{"--dynamic", "--rows", "1000", "--admit-after", "2"}}) {
    const Result alone = result_of(on_workers(1, kind));
    int64_t step = 2;  // at which worker 1 audits a lane of worker 0, which it computes first
    while (draw_audit(1, step, 4, {"this", "this"}, 1).owner != 0) ++step;
    const Flags audited =
        with(kind, {"--audit", "1", "--audit-action", "redo", "--fault", fmt::format("1@{}/backward", step)});
    const TestFolder folder;
    const nlohmann::json report = report_of(on_workers(2, audited), folder);
    EXPECT_EQ(result_in(report), alone);
    const nlohmann::json& found = report.at("audits").at("found");
    ASSERT_EQ(found.size(), 1U) << report;
    EXPECT_EQ(found[0].at("step"), step);
    const bool is_bare = kind == Flags{"--bare"};
    EXPECT_EQ(found[0].at("tensor") == "the gradient of a row of a table", is_bare) << found;
  }
}

// Each group has rows of its own, also where both use the same servers.
TEST(Tables, of_two_groups_do_not_touch_each_other) {
  const Flags kind = {"--dynamic", "--rows", "1000"};
  const Result alone = result_of(on_workers(1, kind));
  const Flags twice = with(kind, {"--two-groups"});
  for (Job job :
       {on_workers(4, twice), on_workers(3, twice), on_servers(1, 2, twice), on_servers(3, 4, twice)}) {
    const TestFolder folder;
    job.program = with(job.program, {"--report", folder / "report"});
    const ProgramResult run = run_job(job);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    for (const char* group : {"0", "1"})
      EXPECT_EQ(result_in(nlohmann::json::parse(read_file(folder / (std::string("report.") + group)))), alone)
          << group;
  }
}

// The metrics are those of the average.
TEST(Tables, have_the_same_moving_average_in_any_way) {
  const Result last = result_of(on_workers(1));
  for (const Flags& kind :
       {Flags(), Flags{"--dynamic", "--rows", "1000", "--admit-after", "2"}, Flags{"--bare"}}) {
    const Flags averaged = with(kind, {"--average", "0.8"});
    expect_same_everywhere(averaged);
    const Result result = result_of(on_workers(1, averaged));
    EXPECT_EQ(result.hash, result_of(on_workers(1, kind)).hash);
    EXPECT_NE(result.metrics, result_of(on_workers(1, kind)).metrics);
  }
}

TEST(Tables, continue_their_moving_average_with_other_tasks) {
  for (const Flags& kind : {Flags(), Flags{"--dynamic"}}) {
    const Flags averaged = with(kind, {"--average", "0.8"});
    const Result straight = result_of(on_workers(1, averaged));
    const TestFolder folder;
    const Flags saving = with(
        averaged, {"--logdir", folder / "run", "--checkpoint-every", "2", "--checkpoint-rows", "changed"});
    result_of(on_workers(3, with(saving, {"--steps", "4"})));
    result_of(on_servers(3, 2, with(saving, {"--steps", "8", "--place", "hash"})));
    result_of(on_workers(2, with(saving, {"--steps", "12", "--comm", "tcp"})));
    EXPECT_EQ(result_of(on_servers(1, 2, saving)), straight);
  }
}

TEST(Tables, that_grow_have_the_same_weights_in_any_way) {
  expect_same_everywhere({"--dynamic", "--rows", "1000", "--admit-after", "2"});
  const Flags full = {"--dynamic", "--rows", "900"};
  const nlohmann::json refusing = result_of(on_workers(2, full)).tables;
  EXPECT_GT(refusing.at("users").at("refused"), 0) << refusing;
  expect_same_everywhere(full);
  const Flags replacing = with(full, {"--replace-oldest"});
  const nlohmann::json replaced = result_of(on_workers(2, replacing)).tables;
  EXPECT_GT(replaced.at("users").at("evicted"), 0) << replaced;
  expect_same_everywhere(replacing);
}

TEST(Tables, may_be_all_that_a_model_learns) {
  for (const char* optimizer : {"adagrad", "adam"})
    expect_same_everywhere({"--bare", "--optimizer", optimizer});
  expect_same_everywhere({"--bare", "--clip-norm", "0.05"});
}

// The tables are all that the model learns, so no hash of its weights differs.
TEST(Tables, are_compared_by_diff_whatever_the_number_of_owners) {
  const TestFolder folder;
  const auto train = [&](const std::string& name, int workers, const Flags& more) {
    const Flags flags = {"--bare", "--logdir", folder / name, "--checkpoint-every", "4"};
    result_of(on_workers(workers, with(flags, more)));
  };
  const auto diff = [&](const std::string& name, const std::string& other) {
    return run_program({program_path("tutti"), "diff", folder / name, folder / other});
  };
  train("one", 1, {});
  train("three", 3, {"--checkpoint-rows", "changed"});
  const ProgramResult same = diff("one", "three");
  EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
  EXPECT_THAT(same.out, HasSubstr("the same weights at all "));
  train("clipped", 1, {"--clip-norm", "0.001"});
  const ProgramResult others = diff("one", "clipped");
  EXPECT_EQ(others.exit_code, 1) << others.err;
  EXPECT_THAT(others.out,
              HasSubstr("the same weights, but other rows of tables or other buffers at step 4\n"));
  EXPECT_THAT(others.out, HasSubstr(" numbers, by at most "));

  for (const auto& file : fs::directory_iterator(folder / "three/ckpt-16")) {
    if (!file.path().filename().string().starts_with("rows")) continue;
    std::string bytes = read_file(file.path());
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    replace_file(file.path(), bytes);
    break;
  }
  const ProgramResult damaged = diff("one", "three");
  EXPECT_EQ(damaged.exit_code, exit_code(ErrorKind::DataLoss)) << damaged.out << damaged.err;
  EXPECT_THAT(damaged.err, HasSubstr("ckpt-16"));
}

TEST(Tables, continue_with_other_tasks) {
  for (const Flags& kind : {Flags(), Flags{"--bare"}, Flags{"--dynamic", "--evict-unused-for", "5"}}) {
    const TestFolder folder;
    const Flags saving = with(kind, {"--logdir", folder / "run", "--checkpoint-every", "4"});
    const TestFolder other;
    const Result straight =
        result_of(on_workers(1, with(kind, {"--logdir", other / "run", "--checkpoint-every", "4"})));
    result_of(on_workers(3, with(saving, {"--steps", "4"})));
    result_of(on_servers(3, 2, with(saving, {"--steps", "8", "--place", "hash"})));
    result_of(on_workers(2, with(saving, {"--steps", "12", "--place", "block", "--comm", "tcp"})));
    EXPECT_EQ(result_of(on_servers(1, 2, saving)), straight);
  }
}

TEST(Tables, continue_from_checkpoints_of_changed_rows) {
  for (const Flags& kind : {Flags(), Flags{"--dynamic"}}) {
    // Most rows are not looked up in a few steps.
    const Flags large = with(kind, {"--rows", "60000", "--batch", "4"});
    const Result straight = result_of(on_workers(1, large));
    const TestFolder folder;
    const Flags saving = with(large, {"--logdir", folder / "run", "--checkpoint-every", "1", "--keep", "2",
                                      "--checkpoint-rows", "changed"});
    result_of(on_workers(2, with(saving, {"--steps", "5"})));
    result_of(on_workers(3, with(saving, {"--steps", "8"})));
    result_of(on_servers(2, 2, with(saving, {"--steps", "11"})));
    const auto manifest = json_of(folder / "run/ckpt-11/manifest.json");
    EXPECT_TRUE(manifest.contains("base") || !kind.empty()) << manifest.dump(1);
    if (manifest.contains("base")) {
      const auto step = manifest.at("base").at("step").get<int>();
      EXPECT_TRUE(fs::exists(folder / "run/ckpt-" + std::to_string(step)));
    }
    EXPECT_EQ(result_of(on_workers(1, saving)), straight);
  }
}

TEST(Tables, of_a_killed_server_or_worker_are_trained_to_the_end) {
  const Flags flags = {"--steps", "60", "--average", "0.8"};
  const Result straight = result_of(on_workers(1, flags));
  for (const Flags& kind : {Flags(), Flags{"--own-loop"}}) {
    for (const char* lost : {"ps", "worker"}) {
      const TestFolder folder;
      const std::string report = folder / "report.json";
      const Flags saving = with(with(flags, kind),
                                {"--logdir", folder / "run", "--checkpoint-every", "3", "--report", report});
      // One restart: the other tasks must not end.
      const Flags launcher = {program_path("tutti"), "run", "--ps", "2", "-n", "2", "--restarts", "1", "--"};
      ServedRun run(std::string("tables-") + lost, with(launcher, on_servers(2, 2, saving).program));
      ASSERT_TRUE(eventually([&] { return fs::exists(folder / "run/ckpt-3"); }));
      run.kill(lost, 1);
      EXPECT_EQ(run.run().wait(), 0) << run.run().err();
      EXPECT_EQ(json_of(report).at("weights_sha256"), straight.hash) << lost;
      if (kind.empty()) {  // the program measures once more after the fit of a Trainer
        EXPECT_EQ(json_of(report).at("metrics"), straight.metrics) << lost;
      }
    }
  }
}

TEST(Tables, begin_with_the_rows_of_other_runs) {
  for (const Flags& kind : {Flags(), Flags{"--dynamic"}}) {
    const TestFolder folder;
    const Flags saving = with(kind, {"--logdir", folder / "run", "--keep-best"});
    result_of(on_workers(3, with(saving, {"--place", "hash"})));
    // `tutti export` makes the model with them.
    EXPECT_TRUE(json_of(folder / "run/best/latest/manifest.json").at("state").at("flags").contains("--rows"));
    for (const std::string& from : {folder / "run", folder / "run/best"}) {
      const Flags fresh = with(kind, {"--weights", from, "--steps", "3"});
      const Result alone = result_of(on_workers(1, fresh));
      EXPECT_NE(alone.hash, result_of(on_workers(1, with(kind, {"--steps", "3"}))).hash);
      EXPECT_EQ(result_of(on_workers(2, fresh)), alone);
      EXPECT_EQ(result_of(on_servers(2, 2, fresh)), alone);
    }
    const TestFolder other;
    result_of(on_servers(2, 2, with(kind, {"--logdir", other / "run", "--keep-best"})));
    const Flags best = {"--steps", "3", "--weights"};
    EXPECT_EQ(result_of(on_workers(1, with(kind, with(best, {other / "run/best"})))),
              result_of(on_workers(1, with(kind, with(best, {folder / "run/best"})))));
  }
}

TEST(Tables, are_trained_asynchronously) {
  const TestFolder folder;
  const Flags async = {"--strategy", "ps-async", "--steps", "240", "--logdir", folder / "run"};
  const nlohmann::json report = report_of(on_servers(2, 2, async), folder);
  EXPECT_EQ(report.at("steps"), 240);
  // The loss of a model that has learnt nothing is ln 2.
  EXPECT_LT(report.at("loss"), 0.6) << report;
  const nlohmann::json clipped =
      report_of(on_servers(2, 3, {"--strategy", "ps-async", "--clip-norm", "0.01", "--dynamic"}), folder);
  EXPECT_EQ(clipped.at("steps"), 16);
  EXPECT_GT(clipped.at("tables").at("items").at("rows"), 0);
  const nlohmann::json averaged =
      report_of(on_servers(2, 2, {"--strategy", "ps-async", "--steps", "120", "--average", "0.9"}), folder);
  EXPECT_EQ(averaged.at("steps"), 120);
  EXPECT_GT(averaged.at("metrics").at("auc"), 0) << averaged;
  // Connected workers continue it.
  EXPECT_FALSE(result_of(on_workers(2, {"--logdir", folder / "run", "--steps", "242", "--resume", "anyway"}))
                   .hash.empty());
}

TEST(Tables, are_trained_in_a_loop_of_the_program_as_by_a_trainer) {
  const auto of_steps = [](const Job& job) {
    Result result = result_of(job);
    nlohmann::json& metrics = result.metrics;  // the program measures once more after the fit of a Trainer
    metrics = {metrics.value("validation_auc", -1.0), metrics.value("validation_loss", -1.0)};
    return result;
  };
  for (const Flags& kind :
       {Flags{"--clip-norm", "0.05"}, Flags{"--dynamic", "--rows", "1000"}, Flags{"--bare"}}) {
    const TestFolder folder;
    const Flags flags = with(kind, {"--average", "0.8", "--steps", "14"});
    const Result trainer = of_steps(on_workers(1, flags));
    const Flags loop = with(flags, {"--own-loop"});
    EXPECT_EQ(of_steps(on_workers(1, loop)), trainer);
    EXPECT_EQ(of_steps(on_workers(3, with(loop, {"--comm", "tcp"}))), trainer);
    EXPECT_EQ(of_steps(on_servers(2, 2, loop)), trainer);
    const Flags saving = with(loop, {"--logdir", folder / "run"});
    result_of(on_servers(2, 3, with(saving, {"--stop-after", "9"})));
    EXPECT_EQ(of_steps(on_workers(2, saving)), trainer);
  }
  const TestFolder folder;
  const Flags async = {"--own-loop", "--strategy", "ps-async", "--lanes", "2", "--steps", "400"};
  const nlohmann::json report = report_of(on_servers(2, 2, async), folder);
  EXPECT_EQ(report.at("steps"), 400);
  EXPECT_LT(report.at("loss"), 0.6) << report;
}

TEST(Tables, are_exported_from_a_loop_of_the_program_with_their_average) {
  const Flags flags = {
      "--own-loop", "--export-checker", program_path("tutti-torch"), "--average", "0.8", "--steps",
      "8",          "--export-to"};
  const auto exported = [&](const Job& job) {
    const TestFolder folder;
    Job exporting = job;
    exporting.program = with(job.program, with(flags, {folder / "out"}));
    report_of(exporting, folder);
    EXPECT_FALSE(fs::exists(folder / "out/2"));
    const auto signature = json_of(folder / "out/1/signature.json");
    EXPECT_EQ(signature.at("weights"), "average");
    EXPECT_EQ(signature.at("step"), 8);
    return read_file(folder / "out/1/weights.safetensors");
  };
  const std::string alone = exported(on_workers(1));
  EXPECT_EQ(exported(on_workers(2)), alone);
  EXPECT_EQ(exported(on_workers(3, {"--comm", "tcp"})), alone);
  EXPECT_EQ(exported(on_servers(2, 2)), alone);
}

TEST(Tables, stop_together_although_they_have_asked_for_the_next_rows) {
  const Flags stopping = {"--stop-at", "5", "--steps", "40"};
  const Result alone = result_of(on_workers(1, stopping));
  EXPECT_EQ(result_of(on_workers(3, with(stopping, {"--comm", "tcp"}))), alone);
  EXPECT_EQ(result_of(on_servers(2, 2, stopping)), alone);
}

TEST(Tables, cannot_be_trained_by_passive_workers) {
  const ProgramResult result = run_program(with({program_path("tutti"), "run", "-n", "2", "--"},
                                                with(on_workers(2).program, {"--strategy", "in-graph"})));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("cannot be trained with --strategy in-graph"));
}

}  // namespace
}  // namespace tutti::testing::tables_test
