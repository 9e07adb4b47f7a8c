// Tests `tutti bench collectives` from a user's point of view.
#include <sstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/tool.h"
#include "tutti/base/file.h"
#include "tutti/base/ports.h"

namespace tutti::testing::network_bench_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class NetworkBench : public ::testing::Test {
 protected:
  NetworkBench() {
    // The test must not depend on this machine's GPUs, nor on the launcher of the test.
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    unsetenv("TF_CONFIG");
  }
  static Words command(const Words& flags) {
    return Words{program_path("tutti"), "bench", "collectives", "--seconds", "0.01"} + flags;
  }
  static ProgramResult bench(const Words& flags, const Words& environment = {}) {
    return run_program(command(flags), environment);
  }
  static ProgramResult bench_under_tutti_run(const std::string& ranks, const Words& flags,
                                             const Words& environment = {}) {
    return run_program(Words{program_path("tutti"), "run", "-n", ranks, "--"} + command(flags), environment);
  }
  nlohmann::json written() const { return nlohmann::json::parse(read_file(json_)); }

  const TestFolder folder_;
  const std::string json_ = folder_ / "figures.json";
};

TEST_F(NetworkBench, starts_its_own_ranks_and_measures_everything) {
  const auto result = bench({"-n", "2", "--sizes", "4,1K,1M", "--json", json_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("guardian")));
  EXPECT_THAT(result.out, HasSubstr("2 ranks over shm, 2 of them on the machine of rank 0"));
  EXPECT_THAT(result.out, HasSubstr("all results were correct"));
  for (const char* name : {"all_reduce", "all_reduce_in_place", "all_reduce_any_order", "reduce_scatter",
                           "all_gather", "all_to_all", "broadcast"}) {
    EXPECT_THAT(result.out,
                ContainsRegex(std::string(name) + " +1 KiB +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+\n"));
  }
  EXPECT_THAT(result.out, ContainsRegex("barrier +- +[0-9]+ +[0-9.]+ +[0-9.]+ +- +-\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("worker/1")));  // only rank 0 prints

  const nlohmann::json figures = written();
  EXPECT_EQ(figures.at("ranks"), 2);
  EXPECT_EQ(figures.at("comm"), "shm");
  EXPECT_EQ(figures.at("rows").size(), 7 * 3 + 1);
  for (const auto& row : figures.at("rows")) {
    EXPECT_GT(row.at("median_us"), 0) << row;
    EXPECT_GE(row.at("p99_us"), row.at("median_us")) << row;
    EXPECT_GE(row.at("repetitions"), 5) << row;
    if (row.at("operation") == "barrier") continue;
    // The bandwidth is size / time in the units of the file.
    EXPECT_NEAR(row.at("gb_per_s").get<double>(),
                row.at("bytes").get<double>() / row.at("median_us").get<double>() / 1e3,
                0.01 * row.at("gb_per_s").get<double>() + 1e-5)
        << row;
  }
}

// All parts have equal length: 4 bytes become 12, and 1 KiB (256 floats) becomes 258 floats.
TEST_F(NetworkBench, rounds_up_to_a_part_for_each_of_three_ranks) {
  const auto result = bench_under_tutti_run(
      "3", {"--operation", "all_gather,broadcast", "--sizes", "4,8,1K", "--json", json_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<int64_t> sizes;
  const nlohmann::json figures = written();
  for (const auto& row : figures.at("rows")) sizes.push_back(row.at("bytes"));
  EXPECT_THAT(sizes, ::testing::ElementsAre(12, 1032, 4, 8, 1024));
}

TEST_F(NetworkBench, goes_over_tcp_and_leaves_out_what_needs_shared_memory) {
  const auto result = bench_under_tutti_run("2", {"--comm", "tcp", "--sizes", "64", "--json", json_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(written().at("comm"), "tcp");
  EXPECT_EQ(written().at("rows").size(), 6 + 1);
  EXPECT_THAT(result.out, Not(HasSubstr("in_place")));

  const auto in_place = bench({"-n", "2", "--comm", "tcp", "--operation", "all_reduce_in_place"});
  EXPECT_EQ(in_place.exit_code, 2);
  EXPECT_THAT(in_place.err, HasSubstr("all_reduce_in_place needs memory that all ranks share, but they are "
                                      "connected over tcp"));
}

TEST_F(NetworkBench, runs_under_mpirun) {
  if (run_program({"sh", "-c", "command -v mpirun"}).exit_code != 0)
    GTEST_SKIP() << "NOTHING IS TESTED HERE: there is no mpirun (apt-get install openmpi-bin)";
  const auto result =
      run_program(Words{"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "3"} +
                  command({"--operation", "all_reduce,barrier", "--sizes", "4..64"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("3 ranks over shm"));
  EXPECT_THAT(result.out, ContainsRegex("all_reduce +64 B "));
}

TEST_F(NetworkBench, minds_the_variables_of_training_and_no_others) {
  const Words small = {"-n", "2", "--operation", "barrier"};
  EXPECT_THAT(bench(small, {"TUTTI_LANES=8", "TUTTI_COMM=tcp"}).out, HasSubstr("2 ranks over tcp"));
  EXPECT_THAT(bench(small, {"TUTTI_LANES=8", "TUTTI_COMM=tcp"}).err, Not(HasSubstr("LANES")));
  EXPECT_THAT(bench(small, {"TUTTI_LANE=8"}).err, HasSubstr("unknown variable TUTTI_LANE"));
}

TEST_F(NetworkBench, says_what_is_wrong_before_it_starts_anything) {
  const auto complaint = [](const Words& flags) {
    const auto result = bench(flags);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    return result.err;
  };
  EXPECT_THAT(complaint({"--operation", "allreduce"}), HasSubstr("did you mean 'all_reduce'?"));
  EXPECT_THAT(complaint({"--sizes", "4,big"}), HasSubstr("'big' is not a size"));
  EXPECT_THAT(complaint({"--seconds", "0"}), HasSubstr("--seconds"));
  EXPECT_THAT(complaint({"--size", "4"}), HasSubstr("did you mean '--sizes'?"));
  EXPECT_THAT(complaint({"--lanes", "4"}), HasSubstr("unknown flag '--lanes'"));
  EXPECT_THAT(complaint({"-n", "1"}), HasSubstr("must be from 2 to 1024"));
  EXPECT_THAT(run_program({program_path("tutti"), "bench", "collectivs"}).err,
              HasSubstr("did you mean 'collectives'?"));
}

TEST_F(NetworkBench, does_not_contradict_its_launcher) {
  const auto other = bench_under_tutti_run("2", {"-n", "3"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("-n 3, but there are already 2 ranks"));
  const auto alone = bench_under_tutti_run("1", {});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("an exchange needs at least two"));
}

TEST_F(NetworkBench, names_a_rank_that_does_not_come) {
  const std::string cluster = "worker|127.0.0.1:" + std::to_string(free_ports(1).front()) + ";127.0.0.1:9";
  const auto result = bench({"--cluster_spec", cluster, "--task_index", "0", "--timeout", "1"});
  EXPECT_EQ(result.exit_code, 11);
  EXPECT_THAT(result.err, HasSubstr("worker/1 (127.0.0.1:9)"));
}

TEST_F(NetworkBench, cannot_write_is_said_at_once) {
  const auto result = bench({"-n", "2", "--json", folder_ / "no/such/folder.json"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("no/such/folder.json"));
  EXPECT_THAT(result.out, Not(HasSubstr("median us")));
}

TEST_F(NetworkBench, help_has_what_matters_and_no_more) {
  const auto help = run_program({program_path("tutti"), "bench", "collectives", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* flag : {"--operation", "--sizes", "--seconds", "--workers, -n", "--json", "--comm",
                           "--timeout", "--cluster_spec", "tutti run -n 4"})
    EXPECT_THAT(help.out, HasSubstr(flag));
  EXPECT_THAT(help.out, Not(HasSubstr("--lanes")));
  EXPECT_THAT(run_program({program_path("tutti"), "bench"}).out, HasSubstr("collectives"));
  EXPECT_THAT(run_program({program_path("tutti"), "help"}).out, HasSubstr("bench"));
}

}  // namespace
}  // namespace tutti::testing::network_bench_test
