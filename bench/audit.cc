// Measures what --audit costs: the MNIST network on two workers with four lanes, over shared memory and TCP,
// one core each. Prints Markdown.
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/sides.h"

namespace {

constexpr int kRounds = 5;
constexpr int kSteps = 300;

// Trains and prints the speed and the CPU time in seconds, with the start of the processes.
constexpr const char* kRun =
    R"(F=$(mktemp); TIMEFORMAT='%U %S'; T=$({ time $BIN/tutti run -n 2 -- $BIN/mnist --lanes 4 --batch 25 --threads 1 )"
    R"(--logdir= --log-level error --report $F $FLAGS >/dev/null 2>&1; } 2>&1); )"
    R"(echo $(awk -F'[:,]' '/examples_per_second/ { print $2 }' $F) $(echo $T | awk '{ print $1 + $2 }'); rm $F)";

bench::Side side(const std::string& comm, int every) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  return {fmt::format("{}, {}", comm, every == 0 ? "off" : fmt::format("--audit {}", every)),
          {"bash", "-c",
           fmt::format("BIN={}; FLAGS='--steps {} --comm {} --audit {}'; {}", self.parent_path().string(),
                       kSteps, comm, every, kRun)}};
}

}  // namespace

int main() {
  fmt::print(
      "## Audits\n\nThe MNIST network on two workers with two lanes of 25 images each, fp32, one core each; "
      "median of {} alternating rounds of {} steps (`./dev bench audit`).\n\n| | images/s | to off | CPU "
      "time, s | to "
      "off |\n|---|---|---|---|---|\n",
      kRounds, kSteps);
  for (const char* comm : {"shm", "tcp"}) {
    const std::vector<bench::Side> sides = {side(comm, 0), side(comm, 10), side(comm, 1)};
    const auto measured = bench::measure(sides, kRounds);
    const bench::Measured& off = measured.at(sides[0].name);
    for (const bench::Side& each : sides) {
      const auto& [speed, cpu] = measured.at(each.name);
      fmt::print("| {} | {:.0f} | {:.3f} | {:.1f} | {:.3f} |\n", each.name, speed, speed / off.per_second,
                 cpu, cpu / off.peak_mebibytes);
    }
  }
  return 0;
}
