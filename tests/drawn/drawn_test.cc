// Draws training programs, and for each a way to run it: on several workers, with servers, or by a master,
// and possibly with a task that is killed or told to stop in the middle. The result must have the bits of one
// process. There are ten draws, and forty more in the soak tests; TUTTI_TEST_DRAWS="200..1200" draws others
// than these.
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tests/drawn/training.h"
#include "tests/together.h"
#include "tutti/base/config.h"
#include "tutti/cluster/identity.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::testing {
namespace {

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Returns the range in TUTTI_TEST_DRAWS, or the usual one.
Range drawn_range(Range usual) {
  const char* text = std::getenv("TUTTI_TEST_DRAWS");
  if (text == nullptr) return usual;
  const std::string range = text;
  const size_t dots = range.find("..");
  if (dots == std::string::npos) return {std::stoull(range), std::stoull(range) + 1};
  return {std::stoull(range.substr(0, dots)), std::stoull(range.substr(dots + 2))};
}

// Returns the results that must be equal: hash, steps, examples, and each metric to its last digit.
std::string result_in(const std::string& report) {
  if (!std::filesystem::exists(report)) return "no report";
  const nlohmann::json json = json_of(report);
  return fmt::format("{} after {} steps, {} examples, metrics {}",
                     json.at("weights_sha256").get<std::string>(), json.at("steps").dump(),
                     json.at("examples").dump(), json.at("metrics").dump());
}

// Trains in one process, which is this one.
std::string alone(const Draw& draw, const TestFolder& folder, const Words& more_flags = {}) {
  const std::string report = folder / "alone.json";
  tutti::RunConfig config;
  FlagSet set("the draw");
  add_standard_flags(set, config);
  Words words =
      Words{"drawn"} + draw.flags() + Words{"--report", report, "--log-level", "error"} + more_flags;
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  EXPECT_FALSE(set.parse(static_cast<int>(arguments.size()), arguments.data(), Environment{}));
  train(Context(config, Identity{}), draw);
  return result_in(report);
}

// A way to run a program.
struct Way {
  Words launcher;
  Words flags;
  int64_t accident_rank = 0;
  int signal = 0;  // 0: no accident
  int64_t pass = 0;

  std::string describe() const {
    return fmt::format(
        "{} {}{}", fmt::join(launcher, " "), fmt::join(flags, " "),
        signal == 0 ? "" : fmt::format(", signal {} at pass {} of rank {}", signal, pass, accident_rank));
  }
};

Way draw_way(Dice& dice, const Draw& draw) {
  Way way;
  const int64_t workers = dice.between(1, 4);
  way.launcher = {"-n", std::to_string(workers)};
  std::string kind = dice.one_of<std::string>({"allreduce", "allreduce", "ps-sync", "in-graph"});
  // A loop has no passive workers, and a hook that changes the weights is an error with servers.
  if (draw.own_loop && kind == "in-graph") kind = "ps-sync";
  if (draw.decays_weights && kind == "ps-sync") kind = draw.own_loop ? "allreduce" : "in-graph";
  if (kind == "allreduce") {
    way.flags = {"--comm", dice.one_of<std::string>({"shm", "tcp"}), "--optimizer-state",
                 dice.one_of<std::string>({"auto", "replicated", "sharded"})};
  } else {
    way.flags = {"--strategy", kind};
  }
  if (kind == "ps-sync") {
    way.launcher = way.launcher + Words{"--ps", std::to_string(dice.between(1, 3))};
    way.flags =
        way.flags + Words{"--placement", dice.one_of<std::string>({"round-robin", "greedy", "split:64"})};
  }
  if (dice.one_in(2)) {
    way.signal = dice.one_of<int>({SIGKILL, SIGTERM});
    way.accident_rank = dice.between(0, workers - 1);
    way.pass = dice.between(1, 6);
  }
  return way;
}

// Runs the program, and runs it once more after an accident that ends the job.
std::string run(const Draw& draw, const Way& way, const TestFolder& folder) {
  const std::string report = folder / "run.json";
  Words command = Words{program_path("tutti"), "run"} + way.launcher;
  Words flags = Words{"--draw", std::to_string(draw.number), "--report", report} + draw.flags() + way.flags;
  if (way.signal != 0) {
    command = command + Words{"--restarts", "1"};
    flags = flags + Words{"--logdir",
                          folder / "run",
                          "--checkpoint-every",
                          "2",
                          "--accident",
                          folder / "mark",
                          "--rank",
                          std::to_string(way.accident_rank),
                          "--pass",
                          std::to_string(way.pass),
                          "--signal",
                          std::to_string(way.signal)};
  }
  command = command + Words{"--", program_path("../test/drawn_program")} + flags;
  ProgramResult result = run_program(command);
  if (way.signal == SIGTERM && result.exit_code == 128 + SIGTERM) result = run_program(command);
  if (result.exit_code != 0)
    return fmt::format("exit code {}:\n{}{}", result.exit_code, result.out, result.err);
  return result_in(report);
}

void expect_the_bits_of_one(Range draws) {
  for (uint64_t number = draws.begin; number < draws.end; ++number) {
    const TestFolder folder;
    const Draw draw(number);
    const std::string expected = alone(draw, folder);
    Dice dice(number + (uint64_t{1} << 32));
    const Way way = draw_way(dice, draw);
    EXPECT_EQ(run(draw, way, folder), expected) << draw.describe() << "\n  by " << way.describe();
  }
}

// Loops and threads change no bit of a program whose kernels are the same everywhere.
void expect_the_bits_of_one_target(Range draws) {
  for (uint64_t number = draws.begin; number < draws.end; ++number) {
    const TestFolder folder;
    const Draw draw = Draw(number).with_operators();
    std::string expected;
    kernels::on_every_target([&] {
      for (const std::string threads : {"1", "3"}) {
        const std::string result = alone(draw, folder, {"--threads", threads});
        if (expected.empty()) expected = result;
        EXPECT_EQ(result, expected) << draw.describe() << "\n  with " << threads << " threads";
      }
    });
  }
}

TEST(Drawn, operators_end_with_the_same_bits_on_every_target_and_with_any_threads) {
  expect_the_bits_of_one_target(drawn_range({0, 15}));
}

TEST(DrawnSoak, operators_end_with_the_same_bits_on_every_target_and_with_any_threads) {
  expect_the_bits_of_one_target(drawn_range({15, 215}));
}

TEST(Drawn, every_program_ends_with_the_same_bits_in_every_way_of_running_it) {
  expect_the_bits_of_one(drawn_range({0, 10}));
}

TEST(DrawnSoak, every_program_ends_with_the_same_bits_in_every_way_of_running_it) {
  expect_the_bits_of_one(drawn_range({10, 50}));
}

}  // namespace
}  // namespace tutti::testing
