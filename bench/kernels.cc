// Compares the kernels of tutti/kernels with LibTorch's own ones, call by call, on the shapes of usual
// networks. Prints Markdown. `bench_kernels [TEXT [THREADS]]` measures only the calls that contain the text.
#include "bench/kernels.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <map>
#include <memory>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "tutti/kernels/same_kernels.h"

namespace {

constexpr int kRounds = 15;
constexpr double kSecondsOfRound = 0.004;  // of each side

struct Times {
  double libtorch = std::numeric_limits<double>::infinity();  // in seconds of one call
  double ours = std::numeric_limits<double>::infinity();
  double ratio() const { return libtorch / ours; }
};

// Returns a time in seconds. If only one thread computes, it is the time that this thread has used, so that
// other programs on the machine count less.
double seconds(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Calls `run` for the time of one round, and lowers `least` to the shortest call.
void measure(const std::function<void()>& run, int threads, double& least) {
  run();  // fills the caches
  const double begin = seconds(threads);
  double last = begin;
  while (last - begin < kSecondsOfRound) {
    run();
    const double now = seconds(threads);
    least = std::min(least, now - last);
    last = now;
  }
}

// Takes the shortest call of each side, since other programs can only make a call longer. The sides take
// turns, so that both meet the same load.
Times times_of(const bench::KernelCase& of, int threads) {
  at::set_num_threads(threads);
  Times times;
  for (int round = 0; round < kRounds; ++round) {
    measure(of.run, threads, times.libtorch);
    const tutti::kernels::SameKernels same;
    measure(of.run, threads, times.ours);
  }
  return times;
}

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string text = argc > 1 ? argv[1] : "";
  const std::vector<int> threads = argc > 2 ? std::vector<int>{std::stoi(argv[2])} : std::vector<int>{1, 2};
  fmt::print(
      "## Kernels\n\nMicroseconds of the shortest call with LibTorch's kernels (oneDNN, MKL) and with "
      "Tutti's, "
      "which give the same bits on every processor. A ratio above 1 means that Tutti's is faster "
      "(`./dev bench kernels`).\n");
  std::vector<bench::KernelCase> cases = bench::product_cases();
  const std::vector<bench::KernelCase> functions = bench::function_cases();
  cases.insert(cases.end(), functions.begin(), functions.end());
  for (const int count : threads) {
    fmt::print("\n| network | call, {} {} | LibTorch | Tutti | ratio |\n|---|---|---|---|---|\n", count,
               count == 1 ? "thread" : "threads");
    std::map<std::string, std::vector<double>> ratios;
    for (const bench::KernelCase& each : cases) {
      if ((each.network + " " + each.call).find(text) == std::string::npos) continue;
      const Times times = times_of(each, count);
      fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.2f} |\n", each.network, each.call, times.libtorch * 1e6,
                 times.ours * 1e6, times.ratio());
      std::fflush(stdout);
      ratios[each.network].push_back(times.ratio());
      ratios["all"].push_back(times.ratio());
    }
    fmt::print("\n| network, {} {} | geometric mean | smallest ratio |\n|---|---|---|\n", count,
               count == 1 ? "thread" : "threads");
    for (const auto& [network, values] : ratios)
      fmt::print("| {} | {:.2f} | {:.2f} |\n", network, geometric_mean(values),
                 *std::min_element(values.begin(), values.end()));
  }
  return 0;
}
