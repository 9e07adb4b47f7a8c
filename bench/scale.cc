// Predicts how training scales: fits a cost model (scale_model.h) to runs on this machine, checks it on
// other runs, and applies it to a cluster with the given parameters. Prints Markdown and draws a
// picture.
//   bench_scale --latency-us 5 --gbit 100 --step-ms 250 --gradient-mb 500 --ranks-per-host 4
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/scale_model.h"
#include "bench/sides.h"
#include "tools/plot/chart.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/flags.h"
#include "tutti/base/json.h"

namespace {

namespace chart = tutti::chart;
using bench::Cluster;
using bench::Exchange;
using bench::ExchangeSample;
using bench::Link;
using bench::Machine;
using chart::Chart;
using chart::Mark;

constexpr std::array kExchanges = {Exchange::Ring, Exchange::Tree, Exchange::Hierarchical, Exchange::Direct};
constexpr double kGradientBytes = 1663370 * 4;  // size of the MNIST network's gradients
constexpr double kBetween = 1 << 20;
constexpr std::array kWorkers = {1, 2, 3, 4, 6, 8};
constexpr std::array kNetworkWorkers = {2, 4, 8};
constexpr int kLargest = 1024;

// The model is fitted to these measurements and must predict all others.
bool is_fitted(int workers) { return workers == 1 || workers == 2 || workers == 4; }
bool is_fitted(const ExchangeSample& sample) { return is_fitted(sample.ranks) && sample.bytes != kBetween; }

struct Arguments {
  int64_t rounds = 3;
  int64_t steps = 60;
  int64_t batch = 50;
  int64_t ranks_per_host = 8;
  double latency_us = 20;
  double gbit = 25;
  double message_us = 5;
  double step_ms = 100;
  double backward = 0.67;
  double gradient_mb = 100;
  double bucket_mb = 25;
  double jitter = 0.02;
  double memory_us = 1;
  double memory_gb = 10;
  std::string svg = "docs/benchmarks/scale.svg";

  Cluster cluster() const {
    return {static_cast<int>(ranks_per_host),
            step_ms * 1e-3,
            backward,
            gradient_mb * 1e6,
            bucket_mb * 1e6,
            jitter,
            {latency_us * 1e-6, gbit * 1e9 / 8},
            message_us * 1e-6,
            {memory_us * 1e-6, memory_gb * 1e9}};
  }
};

void add_flags(tutti::FlagSet& set, Arguments& a) {
  const auto add_positive = [&](const char* name, double& value, const char* help) {
    set.add(name, value, help);
    set.above(name, 0);
  };
  set.group("The cluster");
  add_positive("--latency-us", a.latency_us, "latency of a message between hosts, in microseconds");
  add_positive("--gbit", a.gbit, "bandwidth of a host's link, in gigabits per second");
  add_positive("--message-us", a.message_us,
               "time to send one of several concurrent messages, in microseconds");
  add_positive("--step-ms", a.step_ms, "time of a step of one worker alone, in milliseconds");
  add_positive("--backward", a.backward, "share of the step for the backward pass");
  add_positive("--gradient-mb", a.gradient_mb, "size of all gradients, in 10^6 bytes");
  add_positive("--bucket-mb", a.bucket_mb,
               "size of the gradients that are exchanged together, in 10^6 bytes");
  set.add("--jitter", a.jitter, "standard deviation of the time of a worker's step, as a share of the step");
  set.at_least("--jitter", 0);
  set.add("--ranks-per-host", a.ranks_per_host, "workers on a host, each with a device");
  set.at_least("--ranks-per-host", 1);
  add_positive("--memory-us", a.memory_us, "time to check one other rank of the host, in microseconds");
  add_positive("--memory-gb", a.memory_gb, "bandwidth of a rank in memory, in 10^9 bytes per second");
  set.group("The runs on this machine");
  set.add("--rounds", a.rounds, "number of rounds in which everything is measured");
  set.at_least("--rounds", 1);
  set.add("--steps", a.steps, "number of steps of each training");
  set.at_least("--steps", 1);
  set.add("--batch", a.batch, "examples of a worker and step");
  set.at_least("--batch", 1);
  set.add("--svg", a.svg, "where the picture goes");
}

// --- Measuring

// Runs other programs and reads their output.
class Runner {
 public:
  explicit Runner(const Arguments& arguments)
      : arguments_(arguments),
        bin_(std::filesystem::read_symlink("/proc/self/exe").parent_path()),
        file_(fmt::format("/tmp/tutti-scale-{}.json", getpid())) {}
  ~Runner() { unlink(file_.c_str()); }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Returns the seconds of a step.
  double step(int workers, const char* comm) const {
    const tutti::Json report = run(fmt::format(
        "'{0}/tutti' run -n {1} -- '{0}/mnist' --device cpu --comm {2} --batch {3} --steps {4} --threads 1 "
        "--logdir= --log-level error --report {5}",
        bin_, workers, workers == 1 ? "auto" : comm, arguments_.batch, arguments_.steps, file_));
    return static_cast<double>(workers * arguments_.batch) / report.at("examples_per_second").get<double>();
  }

  // Returns measurements of an all-reduce.
  std::vector<ExchangeSample> exchange(int ranks, const char* comm, const char* operation) const {
    const tutti::Json figures = run(fmt::format(
        "'{}/tutti' bench collectives -n {} --comm {} --operation {} --sizes 4K,{:.0f},{:.0f} --seconds 0.5 "
        "--log-level error --json {}",
        bin_, ranks, comm, operation, kBetween, kGradientBytes, file_));
    std::vector<ExchangeSample> samples;
    for (const tutti::Json& row : figures.at("rows"))
      samples.push_back({ranks, row.at("bytes").get<double>(), row.at("median_us").get<double>() * 1e-6});
    return samples;
  }

 private:
  tutti::Json run(const std::string& command) const {
    fmt::print(stderr, "{}\n", command);
    if (std::system((command + " >/dev/null").c_str()) != 0)  // NOLINT(cert-env33-c): our own words
      tutti::fail(tutti::ErrorKind::InvalidArgument, "bench_scale: this failed: {}", command);
    return tutti::parse_json(tutti::read_file(file_), file_);
  }

  const Arguments& arguments_;
  const std::string bin_;
  const std::string file_;
};

// The medians over the rounds.
struct Measured {
  std::vector<ExchangeSample> memory;
  std::vector<ExchangeSample> loopback;
  std::map<int, double> steps;           // [workers], in shared memory
  std::map<int, double> loopback_steps;  // [workers]
};

std::vector<ExchangeSample> medians(const std::vector<std::vector<ExchangeSample>>& rounds) {
  std::vector<ExchangeSample> result = rounds.front();
  for (size_t i = 0; i < result.size(); ++i) {
    std::vector<double> seconds;
    for (const auto& round : rounds) seconds.push_back(round[i].seconds);
    result[i].seconds = bench::median(seconds);
  }
  return result;
}

std::map<int, double> medians(const std::map<int, std::vector<double>>& rounds) {
  std::map<int, double> result;
  for (const auto& [workers, seconds] : rounds) result[workers] = bench::median(seconds);
  return result;
}

Measured measure(const Arguments& arguments) {
  const Runner runner(arguments);
  std::vector<std::vector<ExchangeSample>> memory;
  std::vector<std::vector<ExchangeSample>> loopback;
  std::map<int, std::vector<double>> steps;
  std::map<int, std::vector<double>> loopback_steps;
  for (int64_t round = 0; round < arguments.rounds; ++round) {
    memory.emplace_back();
    loopback.emplace_back();
    for (const int workers : kWorkers) {
      steps[workers].push_back(runner.step(workers, "shm"));
      if (workers == 1) continue;
      for (const auto& sample : runner.exchange(workers, "shm", "all_reduce_in_place"))
        memory.back().push_back(sample);
    }
    for (const int workers : kNetworkWorkers) {
      loopback_steps[workers].push_back(runner.step(workers, "tcp"));
      for (const auto& sample : runner.exchange(workers, "tcp", "all_reduce"))
        loopback.back().push_back(sample);
    }
  }
  return {medians(memory), medians(loopback), medians(steps), medians(loopback_steps)};
}

// --- The model of this machine

struct Model {
  Machine machine;
  bench::Links memory;
  bench::Links loopback;

  double step(int workers) const {
    return compute_seconds(machine, workers) + bench::memory_exchange(memory.link_for(workers, machine.cores),
                                                                      workers, machine.cores, kGradientBytes);
  }
  double loopback_step(int workers) const {
    return compute_seconds(machine, workers) +
           bench::loopback_exchange(loopback.link_for(workers, machine.cores), workers, machine.cores,
                                    kGradientBytes);
  }
};

std::vector<ExchangeSample> fitted_only(const std::vector<ExchangeSample>& samples) {
  std::vector<ExchangeSample> some;
  std::copy_if(samples.begin(), samples.end(), std::back_inserter(some),
               [](const ExchangeSample& sample) { return is_fitted(sample); });
  return some;
}

Model fit(const Measured& measured, int cores) {
  Model model;
  model.memory = fit_links(bench::memory_exchange, cores, fitted_only(measured.memory));
  model.loopback = fit_links(bench::loopback_exchange, cores, fitted_only(measured.loopback));
  std::vector<bench::StepSample> samples;
  for (const auto& [workers, seconds] : measured.steps) {
    if (!is_fitted(workers)) continue;
    const double exchange =
        bench::memory_exchange(model.memory.link_for(workers, cores), workers, cores, kGradientBytes);
    samples.push_back({workers, std::max(seconds - exchange, seconds / 10)});
  }
  model.machine = bench::fit_machine(cores, samples);
  return model;
}

// --- The report

constexpr const char* kThisMachine = R"(### This machine

The MNIST network ({:.2f} MB of gradients), batches of {} per worker, one thread each, {} cores; medians of {} alternating rounds. The cores both
compute and move the bytes, so here no part of an exchange is hidden behind the backward pass, and workers beyond the number of
cores take turns. The model was fitted to training with 1, 2 and 4 workers over shared memory, and to exchanges of 4 KB and of all
gradients among 2 and 4 ranks. All other rows are predictions: the fit saw at most half of the 8 workers, and no training over TCP.
Ranks that take turns have a latency and a bandwidth of their own; the values of 4 ranks are used for any number. This, and that
taking turns costs no latency, was decided after an earlier run of all these rows: the numbers are predicted, but not the form of the
model.

)";

constexpr const char* kCores = R"(
A core with a single worker computes a step in {:.1f} ms. Each further core that computes makes all of them {:.0f} % slower, since they share
memory, caches and clock.

)";

constexpr const char* kCluster = R"(### A cluster

The same model, applied to a cluster in which each worker has a device, and the network moves bytes while they compute. The behaviour of a
network cannot be measured on one machine: **the parameters are assumptions, not measurements, and so are the figures that follow from
them.** Measure your own with [`tutti bench collectives`](../operations.md#measure-the-network) and pass them to `bench_scale`.

| parameter | flag | the cluster, assumed | this machine, fitted |
|---|---|---|---|
)";

constexpr const char* kEfficiency = R"(
Expected efficiency: the time of a step with one worker / the time of a step with all, at the same number of examples per worker. Workers of
one host share memory in all variants if there is one host, and in the hierarchical variants also if there are several. Buckets of {:g} MB.

| workers | hosts | ring | tree | hierarchical | hierarchical, direct (Tutti) |
|---|---|---|---|---|---|
)";

constexpr const char* kBuckets = R"(
Large buckets pay the latency less often; small ones are hidden better ({} workers; Tutti's own buckets have at least 1 MiB):

| bucket, MB | ring | tree | hierarchical | hierarchical, direct (Tutti) |
|---|---|---|---|---|
)";

constexpr const char* kLeftOut = R"(
The last column is what Tutti does: shared memory inside a host, and between hosts each rank sends its slices directly to their owners, with
as many bytes as a ring but all messages at once. The other columns are the alternatives. The model ignores congestion in switches when many
hosts send at once.
)";

double error_percent(double predicted, double measured) { return 100 * (predicted / measured - 1); }

void print_step_rows(const char* over, const std::map<int, double>& measured, bool used,
                     const std::function<double(int)>& predict) {
  for (const auto& [workers, seconds] : measured) {
    const double predicted = predict(workers);
    fmt::print("| {} | {} | {} | {:.1f} | {:.1f} | {:+.0f} |\n", workers, over,
               used && is_fitted(workers) ? "yes" : "no", predicted * 1e3, seconds * 1e3,
               error_percent(predicted, seconds));
  }
}

void print_exchange_rows(const char* over, const std::vector<ExchangeSample>& samples,
                         const bench::Links& links, int cores, bench::ExchangeModel model) {
  for (const ExchangeSample& sample : samples) {
    const auto& [ranks, bytes, seconds] = sample;
    const double predicted = model(links.link_for(ranks, cores), ranks, cores, bytes);
    fmt::print("| {} | {} | {:.0f} | {} | {:.1f} | {:.1f} | {:+.0f} |\n", ranks, over, bytes / 1e3,
               is_fitted(sample) ? "yes" : "no", predicted * 1e6, seconds * 1e6,
               error_percent(predicted, seconds));
  }
}

void print_this_machine(const Arguments& arguments, const Measured& measured, const Model& model) {
  const int cores = model.machine.cores;
  fmt::print(kThisMachine, kGradientBytes / 1e6, arguments.batch, cores, arguments.rounds);
  fmt::print(
      "| workers | over | fitted to | step predicted, ms | measured, ms | error, % "
      "|\n|---|---|---|---|---|---|\n");
  print_step_rows("shared memory", measured.steps, true, [&](int workers) { return model.step(workers); });
  print_step_rows("TCP", measured.loopback_steps, false,
                  [&](int workers) { return model.loopback_step(workers); });
  fmt::print(
      "\n| ranks | all-reduce over | KB | fitted to | predicted, us | measured, us | error, % "
      "|\n|---|---|---|---|---|---|---|\n");
  print_exchange_rows("shared memory", measured.memory, model.memory, cores, bench::memory_exchange);
  print_exchange_rows("TCP", measured.loopback, model.loopback, cores, bench::loopback_exchange);
  fmt::print(kCores, model.machine.compute * 1e3, model.machine.contention * 100);
}

std::string in_microseconds(double seconds) { return fmt::format("{:.1f} us", seconds * 1e6); }
std::string in_gigabytes(double bandwidth) {
  return std::isfinite(bandwidth) ? fmt::format("{:.2f} GB/s", bandwidth / 1e9) : "no end";
}

std::string latency(const Link& link) { return in_microseconds(link.latency); }
std::string bandwidth(const Link& link) { return in_gigabytes(link.bandwidth); }
std::string of_links(const bench::Links& links, std::string (*text)(const Link&)) {
  return fmt::format("{}, taking turns {}", text(links.spread), text(links.crowded));
}

void print_parameters(const Arguments& arguments, const Model& model) {
  const Cluster cluster = arguments.cluster();
  const auto row = [](const char* what, const char* flag, const std::string& assumed,
                      const std::string& fitted) {
    fmt::print("| {} | `{}` | {} | {} |\n", what, flag, assumed, fitted);
  };
  fmt::print(kCluster);
  row("latency of the network", "--latency-us", in_microseconds(cluster.network.latency),
      of_links(model.loopback, latency) + " (its own TCP)");
  row("bandwidth of a host's link", "--gbit", in_gigabytes(cluster.network.bandwidth),
      of_links(model.loopback, bandwidth) + " (a core that copies)");
  row("sending one of several messages at once", "--message-us", in_microseconds(cluster.message),
      "not fitted");
  row("step of one worker", "--step-ms", fmt::format("{:g} ms", arguments.step_ms),
      fmt::format("{:.1f} ms", model.machine.compute * 1e3));
  row("of it backward, which hides an exchange", "--backward", fmt::format("{:g}", arguments.backward),
      "none hides");
  row("gradients", "--gradient-mb", fmt::format("{:g} MB", arguments.gradient_mb),
      fmt::format("{:.2f} MB", kGradientBytes / 1e6));
  row("exchanged as one", "--bucket-mb", fmt::format("{:g} MB", arguments.bucket_mb), "all");
  row("ranks a host", "--ranks-per-host", fmt::format("{}", arguments.ranks_per_host),
      fmt::format("1 to 8 on {} cores", model.machine.cores));
  row("latency of memory, a rank", "--memory-us", in_microseconds(cluster.memory.latency),
      of_links(model.memory, latency));
  row("bandwidth of memory, a rank", "--memory-gb", in_gigabytes(cluster.memory.bandwidth),
      of_links(model.memory, bandwidth));
  row("deviation of a step", "--jitter", fmt::format("{:g} %", arguments.jitter * 100), "not fitted");
}

void print_efficiency(const Cluster& cluster) {
  fmt::print(kEfficiency, cluster.bucket / 1e6);
  for (int workers = 1; workers <= kLargest; workers *= 2) {
    fmt::print("| {} | {} |", workers, (workers + cluster.ranks_per_host - 1) / cluster.ranks_per_host);
    for (const Exchange exchange : kExchanges)
      fmt::print(" {:.3f} |", efficiency(cluster, exchange, workers));
    fmt::print("\n");
  }
}

void print_buckets(const Cluster& given) {
  fmt::print(kBuckets, kLargest);
  for (const double megabytes : {1.05, 4.2, 25.0, given.bytes / 1e6}) {
    Cluster cluster = given;
    cluster.bucket = megabytes * 1e6;
    fmt::print("| {:g} |", megabytes);
    for (const Exchange exchange : kExchanges)
      fmt::print(" {:.3f} |", efficiency(cluster, exchange, kLargest));
    fmt::print("\n");
  }
  fmt::print(kLeftOut);
}

Chart machine_chart(const Measured& measured, const Model& model) {
  Chart chart;
  std::array<chart::Series, 5> series = {{{"model, shared memory", Mark::Line, {}, 0},
                                          {"measured, fitted to", Mark::Dots, {}, 0},
                                          {"measured, foretold", Mark::Rings, {}, 0},
                                          {"model, TCP", Mark::Dashes, {}, 1},
                                          {"measured over TCP, foretold", Mark::Rings, {}, 1}}};
  const auto add = [](chart::Series& to, int workers, double seconds) {
    to.points.push_back({static_cast<double>(workers), seconds * 1e3});
  };
  for (const auto& [workers, seconds] : measured.steps)
    add(series[is_fitted(workers) ? 1 : 2], workers, seconds);
  for (const auto& [workers, seconds] : measured.loopback_steps) add(series[4], workers, seconds);
  for (int workers = 1; workers <= kWorkers.back(); ++workers) {
    add(series[0], workers, model.step(workers));
    if (workers > 1) add(series[3], workers, model.loopback_step(workers));
  }
  chart.title = fmt::format("This machine, {} cores", model.machine.cores);
  chart.x = {.label = "workers", .least = 0, .most = 8.5, .ticks = {1, 2, 3, 4, 5, 6, 7, 8}};
  chart.y = {.label = "milliseconds a step", .least = 0};
  chart.series.assign(series.begin(), series.end());
  chart.legend = chart::Legend::UpperLeft;
  return chart;
}

Chart cluster_chart(const Cluster& cluster) {
  Chart chart;
  chart.title = "A cluster, as assumed";
  chart.x = {.label = "workers",
             .least = 1,
             .most = kLargest,
             .logarithmic = true,
             .ticks = {1, 4, 16, 64, 256, 1024}};
  chart.y = {.label = "efficiency", .least = 0, .most = 1};
  for (const Exchange exchange : kExchanges) {
    chart::Series series;
    series.name = name_of(exchange);
    series.mark =
        exchange == Exchange::Hierarchical || exchange == Exchange::Direct ? Mark::Line : Mark::Dashes;
    for (int workers = 1; workers <= kLargest; workers *= 2)
      series.points.push_back({static_cast<double>(workers), efficiency(cluster, exchange, workers)});
    chart.series.push_back(series);
  }
  return chart;
}

void tell(const Arguments& arguments, const Measured& measured, const Model& model) {
  const Cluster cluster = arguments.cluster();
  fmt::print("## Scale\n\n");
  print_this_machine(arguments, measured, model);
  print_parameters(arguments, model);
  print_efficiency(cluster);
  print_buckets(cluster);
  tutti::replace_file(arguments.svg, chart::svg_of({machine_chart(measured, model), cluster_chart(cluster)}));
  fmt::print(
      "\n![Step time on this machine, and expected efficiency on a cluster](scale.svg)\n\n(`./dev bench "
      "scale`)\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Arguments arguments;
    tutti::FlagSet flags(
        "Fits a cost model to training on this machine, and predicts the speed of a cluster.");
    add_flags(flags, arguments);
    // Environment variables for training are meant for the programs that this one starts.
    if (const auto text = flags.parse(argc, argv, tutti::Environment())) {
      fmt::print("{}", *text);
      return 0;
    }
    const Measured measured = measure(arguments);
    tell(arguments, measured, fit(measured, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))));
    return 0;
  } catch (const tutti::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return tutti::exit_code(error.kind());
  }
}
