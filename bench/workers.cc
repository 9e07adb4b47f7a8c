// Training on two workers: Tutti's, two processes that know nothing of each other, and PyTorch's
// DistributedDataParallel over Gloo, and Horovod where Python has it; the MNIST network, one core each.
// Prints Markdown.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/sides.h"
#include "tutti/base/environment.h"

namespace {

constexpr int kRounds = 3;

// Prints the sum of what the reports say, and no memory.
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
  // One of a virtual environment has other versions of them.
  const std::string python =
      tutti::Environment::of_process().get("TUTTI_TEST_PYTHON").value_or("/usr/bin/python3");
  const std::string sum = kSumOfReports;
  return {
      shell("two workers", "$BIN/tutti run -n 2 -- " + training("a") + "; " + sum, bin),
      shell("two workers, --reduce fast",
            "TUTTI_REDUCE=fast $BIN/tutti run -n 2 -- " + training("a") + "; " + sum, bin),
      shell("two workers over Gloo", "TUTTI_COMM=gloo $BIN/tutti run -n 2 -- " + training("a") + "; " + sum,
            bin),
      shell("two workers over Gloo, --reduce fast",
            "TUTTI_COMM=gloo TUTTI_REDUCE=fast $BIN/tutti run -n 2 -- " + training("a") + "; " + sum, bin),
      shell("two independent processes",
            "taskset -c 0 " + training("a") + " & taskset -c 1 " + training("b") + "; wait; " + sum, bin),
      {"PyTorch DDP over Gloo", {python, peers + "/ddp.py", "2"}},
      {"Horovod over MPI",
       {"mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", "2", python,
        peers + "/horovod_mpi.py"}}};
}

}  // namespace

int main() {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string bin = self.parent_path().string();
  const auto measured = bench::measure(sides(bin), kRounds);
  std::map<std::string, double> speed;
  for (const auto& [name, runs] : measured) {
    std::vector<double> values;
    for (const auto& run : runs) values.push_back(run.images_per_second);
    speed[name] = bench::median(values);
  }
  fmt::print(
      "## Two workers\n\nThe MNIST network, Adam, batches of 50 a worker, fp32, one core each; median of {} "
      "rounds in turn "
      "of 300 steps (`./dev bench workers`).\n\n| | images/s | to two workers |\n|---|---|---|\n",
      kRounds);
  for (const auto& [name, value] : speed)
    fmt::print("| {} | {:.0f} | {:.3f} |\n", name, value, value / speed["two workers"]);
  return 0;
}
