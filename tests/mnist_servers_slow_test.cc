// Tests the third example as in its chapter: the program of the first, with a server and three workers,
// started task by task at terminals and all at once.
#include <iterator>
#include <regex>
#include <set>

#include <gmock/gmock.h>

#include "tests/few_digits.h"
#include "tests/served.h"

namespace tutti::testing::mnist_servers_slow_test {
namespace {

using ::testing::HasSubstr;

Flags short_training() {
  return {"--threads",       "1",    "--batch", "4",         "--steps", "300",
          "--learning-rate", "1e-3", "--data",  few_digits()};
}

// Returns the steps whose lines were printed, as often as they occur.
std::multiset<int> steps_in(const std::string& text) {
  static const std::regex kLine(R"(step (\d+)  accuracy \(batch\) [01]\.\d{4})");
  std::multiset<int> steps;
  for (auto line = std::sregex_iterator(text.begin(), text.end(), kLine); line != std::sregex_iterator();
       ++line)
    steps.insert(std::stoi((*line)[1]));
  return steps;
}

int count_in(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

const std::multiset<int> kAll = {0, 100, 200, 300};

TEST(MnistWithServers, runs_at_four_terminals) {
  const Terminals terminals(1, 3);
  const Flags program = {program_path("mnist")};
  std::vector<std::unique_ptr<RunningProgram>> workers;
  // The order of the starts does not matter.
  for (const int index : {2, 0})
    workers.push_back(terminals.start("worker", index, short_training(), program));
  const auto server = terminals.start("ps", 0, {}, program);
  workers.push_back(terminals.start("worker", 1, short_training(), program));
  std::string out;
  std::string err;
  for (const auto& worker : workers) {
    EXPECT_EQ(worker->wait(), 0) << worker->err();
    out += worker->out();
    err += worker->err();
  }
  EXPECT_EQ(server->wait(), 0) << server->err();
  EXPECT_EQ(steps_in(err), kAll) << "each from the one that has made it:\n" << err;
  EXPECT_EQ(count_in(out, "test accuracy"), 1) << out;
  EXPECT_THAT(workers[1]->out(), HasSubstr("after 300 steps"));
  EXPECT_THAT(server->err(), HasSubstr("the job is done"));
}

TEST(MnistWithServers, runs_all_at_once) {
  for (const Flags& more : {Flags{}, Flags{"--strategy", "ps-sync", "--lanes", "3", "--log-placement"}}) {
    const Flags command =
        with({program_path("tutti"), "run", "--ps", "1", "-n", "3", "--", program_path("mnist")},
             short_training());
    const ProgramResult result = run_program(with(with(command, more), {"--steps", "100"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(steps_in(result.err), (std::multiset<int>{0, 100})) << result.err;
    EXPECT_EQ(count_in(result.out, "test accuracy"), 1) << result.out;
  }
}

}  // namespace
}  // namespace tutti::testing::mnist_servers_slow_test
