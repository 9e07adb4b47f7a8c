// Compares training with a parameter server: Tutti's, asynchronous and synchronous, two independent
// processes, and TensorFlow's if pip can install it; one server and two workers, which share two cores. Also
// measures the server's memory and the cost of pushes alone. Prints Markdown.
//   bench_servers
//   bench_servers task FILE COMMAND...    runs the command; for a server, writes its use of memory
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/sides.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/ports.h"

namespace {

constexpr int kRounds = 3;
constexpr int kSteps = 300;  // per worker
constexpr int kWorkers = 2;

constexpr const char* kAsync = "Tutti ps-async";
constexpr const char* kHalf = "Tutti ps-async, bf16";
constexpr const char* kSync = "Tutti ps-sync";
constexpr const char* kAlone = "two independent processes";
constexpr const char* kTensorFlow = "TensorFlow's parameter server";

// The network's parameters, Adam's two slots for each, and the gradients that a server may hold per worker.
constexpr double kParametersMiB = 1663370 * 4.0 / (1 << 20);
constexpr int kSlots = 2;
constexpr int kGradientsOfAWorker = 2;

// --- A task and its memory.

struct Memory {
  double own = 0;  // MiB
  double all = 0;  // including the memory of its workers that it maps
};

Memory memory_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  std::map<std::string, double> kilobytes;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name >> kilobytes[name];
  }
  const double all = kilobytes["VmRSS:"] / 1024;
  return {all - kilobytes["RssShmem:"] / 1024, all};
}

// Returns the exit code. Writes the peak memory of a server to the file.
int run_task(const std::string& file, char** command) {
  constexpr std::chrono::milliseconds kPause{20};
  const bool is_server = tutti::Environment::of_process().get("TUTTI_JOB_NAME").value_or("") == "ps";
  const pid_t pid = fork();
  if (pid == 0) {
    execv(command[0], command);
    _exit(127);
  }
  Memory peak;
  int status = 0;
  while (waitpid(pid, &status, is_server ? WNOHANG : 0) == 0) {
    const Memory now = memory_of(pid);
    peak = {std::max(peak.own, now.own), std::max(peak.all, now.all)};
    std::this_thread::sleep_for(kPause);
  }
  if (is_server) std::ofstream(file) << peak.own << " " << peak.all;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// --- The measured programs.

class Programs {
 public:
  Programs()
      : self_(std::filesystem::read_symlink("/proc/self/exe")),
        bin_(std::filesystem::path(self_).parent_path()) {}

  std::vector<bench::Side> sides() const;
  Memory idle_server() const;
  Memory server(const std::string& strategy) const;
  tutti::Json pushes(int workers, const std::string& sizes) const;

 private:
  std::string mnist(int steps) const {
    return fmt::format(
        "'{}/mnist' --device cpu --batch 50 --steps {} --threads 1 --logdir= --log-level error ", bin_,
        steps);
  }
  std::string with_server(const std::string& program) const {
    return fmt::format("'{}/tutti' run --ps 1 -n {} -- {}", bin_, kWorkers, program);
  }
  // Prints the sum of the speeds in the reports, and 0 for the memory.
  static bench::Side side(const std::string& name, const std::string& script) {
    return {name,
            {"sh", "-c",
             "F=$(mktemp -d); " + script +
                 "; cat $F/*.json | awk -F'[:,]' '/examples_per_second/ { sum += $2 } END { print sum, 0 }'; "
                 "rm -r $F"}};
  }
  std::string file() const { return fmt::format("/tmp/tutti-bench-servers-{}", getpid()); }
  std::string take_file() const;
  Memory take_memory() const;
  static void must_run(const std::string& command);

  const std::string self_;
  const std::string bin_;
};

std::vector<bench::Side> Programs::sides() const {
  const auto trained = [&](const std::string& strategy, int steps) {
    return with_server(mnist(steps) + "--strategy " + strategy + " --report $F/a.json >/dev/null");
  };
  const auto alone = [&](int core, const char* report) {
    return fmt::format("taskset -c {} {} --report $F/{}.json >/dev/null", core, mnist(kSteps), report);
  };
  return {side(kAlone, alone(0, "a") + " & " + alone(1, "b") + "; wait"),
          // Each push is a step.
          side(kAsync, trained("ps-async", kWorkers * kSteps)),
          side(kHalf, trained("ps-async --precision bf16", kWorkers * kSteps)),
          side(kSync, trained("ps-sync", kSteps)),
          {kTensorFlow,
           {bench::peer_python("tensorflow").value_or("false"),
            (bench::folder() / "peers/ps_tensorflow.py").string(), std::to_string(kWorkers)}}};
}

void Programs::must_run(const std::string& command) {
  fmt::print(stderr, "{}\n", command);
  if (std::system(("{ " + command + "; } >/dev/null").c_str()) != 0)  // NOLINT(cert-env33-c): our own words
    tutti::fail(tutti::ErrorKind::InvalidArgument, "bench_servers: this failed: {}", command);
}

std::string Programs::take_file() const {
  const std::string text = tutti::read_file(file());
  unlink(file().c_str());
  return text;
}

Memory Programs::take_memory() const {
  Memory memory;
  std::istringstream(take_file()) >> memory.own >> memory.all;
  return memory;
}

Memory Programs::idle_server() const {
  const auto ports = tutti::free_ports(2);
  const std::string cluster = fmt::format("'ps|127.0.0.1:{},worker|127.0.0.1:{}'", ports[0], ports[1]);
  must_run(
      fmt::format("TUTTI_JOB_NAME=ps '{0}' task {1} {2} --cluster_spec {3} --task_index 0 & "
                  "'{4}/tutti' stop --cluster_spec {3} && wait",
                  self_, file(), mnist(1), cluster, bin_));
  return take_memory();
}

Memory Programs::server(const std::string& strategy) const {
  must_run(with_server(fmt::format("'{}' task {} {} --strategy {}", self_, file(), mnist(kSteps), strategy)));
  return take_memory();
}

tutti::Json Programs::pushes(int workers, const std::string& sizes) const {
  must_run(fmt::format("'{}/tutti' bench ps -n {} --sizes {} --seconds 2 --log-level error --json {}", bin_,
                       workers, sizes, file()));
  return tutti::parse_json(take_file(), file());
}

// --- The report.

void print_ratio(const std::string& what, double measured, const std::string& wanted) {
  fmt::print("| {} | {} | {} |\n", what, measured > 0 ? fmt::format("{:.2f}", measured) : "not measured",
             wanted);
}

void print_training(const Programs& programs) {
  const std::vector<bench::Side> sides = programs.sides();
  std::map<std::string, double> speed;
  for (const auto& [name, measured] : bench::measure(sides, kRounds)) speed[name] = measured.per_second;
  fmt::print(
      "## Parameter servers\n\n### Training\n\nThe MNIST network, Adam, batches of 50 per worker, fp32 "
      "unless stated otherwise; one server and two workers, which have one core each and share both cores "
      "with the server; median of {} alternating rounds of {} steps of each worker (`./dev bench "
      "servers`).\n\n| | images/s | to two independent processes |\n|---|---:|---:|\n",
      kRounds, kSteps);
  for (const bench::Side& side : sides) {
    if (speed[side.name] > 0) {
      fmt::print("| {} | {:.0f} | {:.2f} |\n", side.name, speed[side.name], speed[side.name] / speed[kAlone]);
    } else {
      fmt::print("| {} | not measured: it did not run here | |\n", side.name);
    }
  }
  fmt::print("\n| ratio | measured | to reach |\n|---|---:|---:|\n");
  print_ratio("ps-async / two independent processes", speed[kAsync] / speed[kAlone], "0.85");
  print_ratio("ps-sync / two independent processes", speed[kSync] / speed[kAlone], "0.80");
  const auto to_tensorflow = [&](const char* name) {
    return speed[kTensorFlow] > 0 ? speed[name] / speed[kTensorFlow] : 0;
  };
  print_ratio("ps-async / TensorFlow's", to_tensorflow(kAsync), "1.5");
  print_ratio("ps-async in bf16 / TensorFlow's in fp32", to_tensorflow(kHalf), "");
}

void print_memory(const Programs& programs) {
  const double limit = kParametersMiB * (1 + kSlots + kWorkers * kGradientsOfAWorker);
  const Memory idle = programs.idle_server();
  fmt::print(
      "\n### Memory of the server\n\nPeak resident memory of the server during this training, above the "
      "{:.0f} MiB of an idle server. Parameters, slots and {} gradients per worker take {:.1f} MiB. Workers "
      "on the same machine keep their gradients in memory that the server can access as well; the last "
      "column includes it.\n\n| | MiB | of that limit | MiB with what it sees of its workers "
      "|\n|---|---:|---:|---:|\n",
      idle.all, kGradientsOfAWorker, limit);
  for (const char* strategy : {"ps-async", "ps-sync"}) {
    const Memory memory = programs.server(strategy);
    fmt::print("| {} | {:.1f} | {:.2f} | {:.1f} |\n", strategy, memory.own - idle.own,
               (memory.own - idle.own) / limit, memory.all - idle.all);
  }
}

void print_pushes(const Programs& programs) {
  fmt::print(
      "\n### Pushes\n\nA push is an update by plain SGD and returns the new values (`tutti bench ps`). The "
      "target at 4 KiB is 10000 pushes per second of the server's CPU.\n\n| workers | over | bytes | median "
      "us | GB/s | pushes/s | pushes a second of the server's CPU |\n|---:|---|---:|---:|---:|---:|---:|\n");
  const auto print = [&](int workers, const std::string& sizes) {
    const tutti::Json figures = programs.pushes(workers, sizes);
    for (const tutti::Json& row : figures.at("rows")) {
      const auto number = [&](const char* name) { return row.at(name).get<double>(); };
      fmt::print("| {} | {} | {:.0f} | {:.1f} | {:.2f} | {:.0f} | {:.0f} |\n", workers,
                 row.at("over").get<std::string>(), number("bytes"), number("median_us"), number("gb_per_s"),
                 number("calls_per_s"), 1e6 / number("server_us"));
    }
  };
  print(1, "4K,64M");
  for (const int workers : {kWorkers, 4, 8}) print(workers, "4K");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 3 && std::string(argv[1]) == "task") return run_task(argv[2], argv + 3);
  const Programs programs;
  print_training(programs);
  print_memory(programs);
  print_pushes(programs);
  return 0;
}
