// Measures what --audit costs: the MNIST network on two workers with four lanes, over shared memory and TCP,
// one core each. Prints Markdown.
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/sides.h"

namespace {

constexpr int kRounds = 5;

bench::Side side(const std::string& comm, int every) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string bin = self.parent_path().string();
  return {
      fmt::format("{}, {}", comm, every == 0 ? "off" : fmt::format("--audit {}", every)),
      {"sh", "-c",
       fmt::format("F=$(mktemp); {0}/tutti run -n 2 -- {0}/mnist --comm {1} --audit {2} --lanes 4 --batch 25 "
                   "--steps 200 --threads 1 --logdir= --log-level error --report $F >/dev/null; "
                   "awk -F'[:,]' '/examples_per_second/ {{ print $2, 0 }}' $F; rm $F",
                   bin, comm, every)}};
}

}  // namespace

int main() {
  fmt::print(
      "## Audits\n\nThe MNIST network on two workers with two lanes of 25 images each, fp32, one core each; "
      "median "
      "of {} alternating rounds of 200 steps (`./dev bench audit`).\n\n| | images/s | to off "
      "|\n|---|---|---|\n",
      kRounds);
  for (const char* comm : {"shm", "tcp"}) {
    const std::vector<bench::Side> sides = {side(comm, 0), side(comm, 100), side(comm, 10), side(comm, 1)};
    const auto measured = bench::measure(sides, kRounds);
    const double off = measured.at(sides[0].name).per_second;
    for (const bench::Side& each : sides) {
      const double speed = measured.at(each.name).per_second;
      fmt::print("| {} | {:.0f} | {:.3f} |\n", each.name, speed, speed / off);
    }
  }
  return 0;
}
