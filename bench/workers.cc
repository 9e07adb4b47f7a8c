// Compares training on two workers: Tutti, two independent processes, PyTorch's DistributedDataParallel over
// Gloo, and Horovod (the latter two if pip can install them); the MNIST network, one core each. Prints
// Markdown.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/sides.h"

namespace {

constexpr int kRounds = 3;
constexpr const char* kTwoWorkers = "two workers";

// Prints the sum of the speeds in the reports, and 0 for the memory.
constexpr const char* kSumOfReports =
    "cat $F/*.json | awk -F'[:,]' '/examples_per_second/ { sum += $2 } END { print sum, 0 }'; rm -r $F";

std::string training(const std::string& report) {
  return "$BIN/mnist --batch 50 --steps 300 --threads 1 --logdir= --log-level error --report $F/" + report +
         ".json >/dev/null";
}

bench::Side shell(const std::string& name, const std::string& script, const std::string& bin) {
  return {name, {"sh", "-c", "BIN=" + bin + "; F=$(mktemp -d); " + script}};
}

std::vector<bench::Side> sides(const std::string& bin) {
  const std::string peers = (bench::folder() / "peers").string();
  const std::string sum = kSumOfReports;
  return {shell(kTwoWorkers, "$BIN/tutti run -n 2 -- " + training("a") + "; " + sum, bin),
          shell("two workers, --reduce fast",
                "TUTTI_REDUCE=fast $BIN/tutti run -n 2 -- " + training("a") + "; " + sum, bin),
          shell("two workers over TCP", "TUTTI_COMM=tcp $BIN/tutti run -n 2 -- " + training("a") + "; " + sum,
                bin),
          shell("two workers over TCP, --reduce fast",
                "TUTTI_COMM=tcp TUTTI_REDUCE=fast $BIN/tutti run -n 2 -- " + training("a") + "; " + sum, bin),
          shell("two independent processes",
                "taskset -c 0 " + training("a") + " & taskset -c 1 " + training("b") + "; wait; " + sum, bin),
          {"PyTorch DDP over Gloo, the distribution's", {"/usr/bin/python3", peers + "/ddp.py", "2"}},
          {"PyTorch DDP over Gloo, PyPI's",
           {bench::peer_python("torch").value_or("false"), peers + "/ddp.py", "2"}},
          {"Horovod over MPI, with the distribution's PyTorch",
           {"mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", "2",
            bench::peer_python("horovod").value_or("false"), peers + "/horovod_mpi.py"}}};
}

}  // namespace

int main() {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string bin = self.parent_path().string();
  const auto measured = bench::measure(sides(bin), kRounds);
  fmt::print(
      "## Two workers\n\nThe MNIST network, Adam, batches of 50 per worker, fp32, one core each; median of "
      "{} alternating rounds of 300 steps (`./dev bench workers`).\n\n| | images/s | to two workers "
      "|\n|---|---|---|\n",
      kRounds);
  const double two_workers = measured.contains(kTwoWorkers) ? measured.at(kTwoWorkers).per_second : 0;
  for (const auto& [name, side] : measured)
    fmt::print("| {} | {:.0f} | {:.3f} |\n", name, side.per_second, side.per_second / two_workers);
  return 0;
}
