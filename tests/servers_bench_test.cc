// Tests `tutti bench ps` from a user's point of view.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/tool.h"
#include "tutti/base/file.h"
#include "tutti/base/ports.h"

namespace tutti::testing::servers_bench_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Words command(const Words& flags) {
  return Words{program_path("tutti"), "bench", "ps", "--seconds", "0.01"} + flags;
}

class ServersBench : public ::testing::Test {
 protected:
  ServersBench() {
    // The test must not depend on the launcher of the test.
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    unsetenv("TF_CONFIG");
  }
  nlohmann::json written() const { return nlohmann::json::parse(read_file(json_)); }

  const TestFolder folder_;
  const std::string json_ = folder_ / "figures.json";
};

TEST_F(ServersBench, starts_a_server_and_workers_and_measures_both_ways_to_it) {
  const auto result = run_program(command({"-n", "2", "--sizes", "4,1M", "--json", json_}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("guardian")));
  EXPECT_THAT(result.out, HasSubstr("servers: 1, workers: 2, float32"));
  EXPECT_THAT(result.out, Not(HasSubstr("is gone")));
  for (const char* over : {"memory", "network"}) {
    EXPECT_THAT(result.out, ContainsRegex(std::string(over) + " +4 B +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+"));
    EXPECT_THAT(result.out, ContainsRegex(std::string(over) + " +1 MiB +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+"));
  }
  EXPECT_THAT(result.out, HasSubstr("all results were correct"));
  const nlohmann::json figures = written();
  EXPECT_EQ(figures.at("servers"), 1);
  EXPECT_EQ(figures.at("workers"), 2);
  ASSERT_EQ(figures.at("rows").size(), 2 * 2);
  for (const auto& row : figures.at("rows")) {
    EXPECT_GE(row.at("calls"), 2 * 5) << row;
    EXPECT_GT(row.at("median_us"), 0) << row;
    EXPECT_GE(row.at("p99_us"), row.at("median_us")) << row;
    EXPECT_GT(row.at("server_us"), 0) << row;
    // Counts both directions, in the units of the file.
    EXPECT_NEAR(row.at("gb_per_s").get<double>(),
                2 * row.at("bytes").get<double>() / row.at("median_us").get<double>() / 1e3,
                0.01 * row.at("gb_per_s").get<double>() + 1e-5)
        << row;
  }
}

// Each of three servers has at least one element at any size.
TEST_F(ServersBench, splits_every_size_among_the_servers) {
  const auto result = run_program(Words{program_path("tutti"), "run", "--ps", "3", "-n", "1", "--"} +
                                  command({"--sizes", "4,1002", "--over", "network", "--json", json_}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("servers: 3, workers: 1"));
  std::vector<int64_t> sizes;
  const nlohmann::json figures = written();
  for (const auto& row : figures.at("rows")) sizes.push_back(row.at("bytes"));
  EXPECT_THAT(sizes, ::testing::ElementsAre(12, 1004));
}

TEST_F(ServersBench, measures_servers_that_were_started_by_hand) {
  const std::vector<int> ports = free_ports(2);
  const Words cluster = {"--cluster_spec", "ps|127.0.0.1:" + std::to_string(ports[0]) +
                                               ",worker|127.0.0.1:" + std::to_string(ports[1])};
  RunningProgram server(Words{program_path("tutti"), "serve", "--job_name", "ps", "--task_index", "0"} +
                        cluster);
  const auto worker =
      run_program(command({"--sizes", "64", "--job_name", "worker", "--task_index", "0"}) + cluster);
  EXPECT_EQ(worker.exit_code, 0) << worker.err;
  EXPECT_THAT(worker.out, HasSubstr("all results were correct"));
  EXPECT_EQ(server.wait(), 0) << server.err();
}

TEST_F(ServersBench, says_what_is_wrong_before_it_starts_anything) {
  const auto complaint = [](const Words& flags) {
    const auto result = run_program(command(flags));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    return result.err;
  };
  EXPECT_THAT(complaint({"--over", "air"}), HasSubstr("'air' is not one of all, memory, network"));
  EXPECT_THAT(complaint({"--sizes", "4,big"}), HasSubstr("'big' is not a size"));
  EXPECT_THAT(complaint({"--size", "4"}), HasSubstr("did you mean '--sizes'?"));
  EXPECT_THAT(complaint({"--lanes", "4"}), HasSubstr("unknown flag '--lanes'"));
  EXPECT_THAT(complaint({"--cluster_spec", "worker|127.0.0.1:1;127.0.0.1:2", "--task_index", "0"}),
              HasSubstr("has no job 'ps'"));
  EXPECT_THAT(complaint({"--cluster_spec", "ps|127.0.0.1:1,worker|127.0.0.1:2", "--job_name", "worker",
                         "--task_index", "0", "-n", "2"}),
              HasSubstr("there are already 1 workers and 1 servers"));
  EXPECT_THAT(run_program({program_path("tutti"), "bench", "pss"}).err, HasSubstr("did you mean 'ps'?"));
}

TEST_F(ServersBench, names_a_server_that_does_not_come) {
  const std::string cluster = "ps|127.0.0.1:9,worker|127.0.0.1:" + std::to_string(free_ports(1).front());
  const auto result = run_program(command(
      {"--cluster_spec", cluster, "--job_name", "worker", "--task_index", "0", "--start-timeout", "1"}));
  EXPECT_EQ(result.exit_code, 11);
  EXPECT_THAT(result.err, HasSubstr("ps/0 (127.0.0.1:9)"));
}

TEST_F(ServersBench, help_has_what_matters_and_no_more) {
  const auto help = run_program({program_path("tutti"), "bench", "ps", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* flag : {"--over", "--sizes", "--seconds", "--workers, -n", "--ps", "--json", "--timeout",
                           "--cluster_spec", "--tls-ca", "tutti run --ps 2 -n 4"})
    EXPECT_THAT(help.out, HasSubstr(flag));
  EXPECT_THAT(help.out, Not(HasSubstr("--lanes")));
  EXPECT_THAT(run_program({program_path("tutti"), "bench"}).out, HasSubstr("tutti bench ps"));
}

}  // namespace
}  // namespace tutti::testing::servers_bench_test
