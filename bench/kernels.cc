// Compares the kernels of tutti/kernels with LibTorch's own ones, on the calls and the training steps of
// usual networks. Prints Markdown.
//   bench_kernels                           all operators and steps
//   bench_kernels TEXT [THREADS]            each call and step that contains the text
//   bench_kernels --operators [TEXT]        the operators that take the time of the steps, on one thread
//   bench_kernels --side KERNELS NETWORK    the steps of one network, for the parent or a profiler
#include "bench/kernels.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <regex>
#include <span>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "bench/sides.h"
#include "tutti/kernels/same_kernels.h"

namespace {

constexpr int kRounds = 15;
constexpr double kSecondsOfRound = 0.004;  // of each side
constexpr int kStepsOfSide = 10;
constexpr int kMemoryRounds = 3;

// The medians of the rounds.
struct Times {
  double libtorch;  // in seconds of one call
  double ours;
  double ratio;
};

// Calls and steps that have one table.
struct Group {
  std::string title;
  std::vector<bench::KernelCase> cases;
};

// Returns a time in seconds. If only one thread computes, other programs on the machine count less.
double seconds(int threads) {
  if (threads == 1) return bench::thread_seconds();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Calls `run` for the time of one round, and returns the time of the shortest call, since other programs can
// only make a call longer.
double shortest(const std::function<void()>& run, int threads) {
  run();  // fills the caches
  const double begin = seconds(threads);
  double last = begin;
  double least = std::numeric_limits<double>::infinity();
  while (last - begin < kSecondsOfRound) {
    run();
    const double now = seconds(threads);
    least = std::min(least, now - last);
    last = now;
  }
  return least;
}

// The sides take turns, so that both meet the same load.
Times times_of(const std::function<void()>& run, int threads) {
  at::set_num_threads(threads);
  std::vector<double> libtorch;
  std::vector<double> ours;
  std::vector<double> ratios;
  for (int round = 0; round < kRounds; ++round) {
    libtorch.push_back(shortest(run, threads));
    const tutti::kernels::SameKernels same;
    ours.push_back(shortest(run, threads));
    ratios.push_back(libtorch.back() / ours.back());
  }
  return {bench::median(libtorch), bench::median(ours), bench::median(ratios)};
}

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

// Prints the last row of a table, in which only ratios are.
void print_ratios(const std::string& name, const std::vector<std::vector<double>>& ratios) {
  fmt::print("| {} |", name);
  for (const std::vector<double>& values : ratios) fmt::print(" | | {:.2f} |", geometric_mean(values));
  fmt::print("\n");
}

std::vector<bench::KernelCase> named(std::vector<bench::KernelCase> cases, const std::string& text) {
  std::erase_if(cases, [&](const bench::KernelCase& each) {
    return (each.network + ", " + each.call).find(text) == std::string::npos;
  });
  return cases;
}

void print_table(const Group& group, const std::vector<int>& threads) {
  if (group.cases.empty()) return;
  fmt::print("\n### {}\n\n| |", group.title);
  for (const int count : threads)
    fmt::print(" LibTorch, {} {} | Tutti | ratio |", count, count == 1 ? "thread" : "threads");
  fmt::print("\n|---|");
  for (size_t i = 0; i < threads.size(); ++i) fmt::print("---|---|---|");
  fmt::print("\n");
  std::map<std::string, std::vector<std::vector<double>>> ratios;  // by network and number of threads
  std::vector<std::vector<double>> all(threads.size());
  for (const bench::KernelCase& each : group.cases) {
    ratios[each.network].resize(threads.size());
    fmt::print("| {}, {} |", each.network, each.call);
    for (size_t i = 0; i < threads.size(); ++i) {
      const Times times = times_of(each.run, threads[i]);
      fmt::print(" {:.1f} | {:.1f} | {:.2f} |", times.libtorch * 1e6, times.ours * 1e6, times.ratio);
      ratios[each.network][i].push_back(times.ratio);
      all[i].push_back(times.ratio);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
  for (const auto& [network, values] : ratios)
    if (values[0].size() > 1) print_ratios("geometric mean of " + network, values);
  print_ratios("**geometric mean of all**", all);
}

// Returns the operator of a call: its text without the shape, such as "conv3 stride 2, by input".
std::string operator_of(const std::string& call) {
  static const std::regex kShape(
      R"(( (?:stride|of|by) [0-9.]+)| (?:x|->|over|[0-9](?:[0-9x,]*[0-9])?)(?=[ ,]|$))");
  return std::regex_replace(call, kShape, "$1");
}

// One vector for each call: its ratios, by number of threads.
using Ratios = std::vector<std::vector<double>>;

void print_means(const std::string& name, const std::string& calls, const Ratios& ratios) {
  fmt::print("| {} | {} |", name, calls);
  for (size_t i = 0; i < ratios.front().size(); ++i) {
    std::vector<double> column;
    for (const std::vector<double>& of_call : ratios) column.push_back(of_call[i]);
    fmt::print(" {:.2f} |", geometric_mean(column));
  }
  fmt::print("\n");
}

// Prints one row for each operator: a table of the calls would be too long to read.
void print_table_of_operators(const Group& group, const std::vector<int>& threads) {
  fmt::print(
      "\n### {}\n\nEach ratio is the geometric mean over the calls of an operator, which have different "
      "shapes.\n\n| operator | calls |",
      group.title);
  for (const int count : threads) fmt::print(" ratio, {} {} |", count, count == 1 ? "thread" : "threads");
  fmt::print("\n|---|---|");
  for (size_t i = 0; i < threads.size(); ++i) fmt::print("---|");
  fmt::print("\n");
  std::vector<std::string> operators;  // in the order of their first calls
  std::map<std::string, Ratios> of_operators;
  std::map<std::string, Ratios> of_networks;
  Ratios all;
  for (const bench::KernelCase& each : group.cases) {
    const std::string name = operator_of(each.call);
    if (!of_operators.contains(name)) operators.push_back(name);
    std::vector<double> measured;
    for (const int count : threads) measured.push_back(times_of(each.run, count).ratio);
    for (Ratios* ratios : {&of_operators[name], &of_networks[each.network], &all})
      ratios->push_back(measured);
  }
  for (const std::string& name : operators)
    print_means(name, std::to_string(of_operators[name].size()), of_operators[name]);
  for (const auto& [network, ratios] : of_networks) print_means("geometric mean of " + network, "", ratios);
  print_means("**geometric mean of all**", "", all);
}

// A network is made for its step only, so that its memory is free for the next one.
bench::KernelCase call_of(const bench::StepCase& step) {
  const auto made = std::make_shared<std::function<void()>>();
  return {step.network, "step", [=] {
            if (!*made) *made = step.make();
            (*made)();
          }};
}

std::string program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

void print_memory(const std::vector<bench::StepCase>& steps) {
  fmt::print(
      "\n### Memory of training steps\n\n| | LibTorch, peak MiB | Tutti | Tutti / LibTorch |\n"
      "|---|---|---|---|\n");
  for (const bench::StepCase& step : steps) {
    std::vector<bench::Side> sides;
    for (const char* kernels : {"libtorch", "same"})
      sides.push_back({kernels, {program(), "--side", kernels, step.network}});
    const auto found = bench::measure(sides, kMemoryRounds);
    const double libtorch = found.at("libtorch").peak_mebibytes;
    const double ours = found.at("same").peak_mebibytes;
    fmt::print("| {} | {:.0f} | {:.0f} | {:.2f} |\n", step.network, libtorch, ours, ours / libtorch);
    std::fflush(stdout);
  }
}

std::vector<bench::StepCase> steps_named(const std::string& text) {
  std::vector<bench::StepCase> steps = bench::step_cases();
  std::erase_if(steps,
                [&](const auto& each) { return (each.network + ", step").find(text) == std::string::npos; });
  return steps;
}

int run_side(const std::string& kernels, const std::string& network) {
  std::optional<tutti::kernels::SameKernels> same;
  if (kernels == "same") same.emplace();
  at::set_num_threads(1);
  for (const bench::StepCase& each : steps_named(network)) {
    const std::function<void()> step = each.make();
    step();
    const double begin = seconds(1);
    for (int i = 0; i < kStepsOfSide; ++i) step();
    bench::print_measured(kStepsOfSide / (seconds(1) - begin));
  }
  return 0;
}

int measure_all(const std::string& text, const std::vector<int>& threads) {
  fmt::print(
      "## Kernels\n\nMicroseconds of a call with LibTorch's kernels (oneDNN, MKL) and with Tutti's, which "
      "give the same bits on every processor. A ratio above 1 means that Tutti's is faster. Both sides take "
      "turns in one process; medians of {} rounds, of the shortest call in each (`./dev bench kernels`).\n",
      kRounds);
  const std::vector<bench::StepCase> steps = steps_named(text);
  Group of_steps{"Training steps: forward, loss, backward and optimiser", {}};
  for (const bench::StepCase& step : steps) of_steps.cases.push_back(call_of(step));
  print_table(of_steps, threads);
  if (!steps.empty()) print_memory(steps);
  const auto print = text.empty() ? print_table_of_operators : print_table;
  print({"Products and convolutions", named(bench::product_cases(), text)}, threads);
  print({"Functions, reductions, normalisations, losses and attention", named(bench::function_cases(), text)},
        threads);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "--side") return run_side(words[1], words[2]);
  if (!words.empty() && words[0] == "--operators") {
    at::set_num_threads(1);
    for (const auto& step : steps_named(words.size() > 1 ? words[1] : "")) bench::print_operators(step);
    return 0;
  }
  return measure_all(words.empty() ? "" : words[0],
                     words.size() > 1 ? std::vector<int>{std::stoi(words[1])} : std::vector<int>{1, 2});
}
