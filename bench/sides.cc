#include "bench/sides.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <sched.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/wait.h>

#include <fmt/format.h>

namespace bench {
namespace {

// For the shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::optional<Measured> run(const Side& side) {
  std::string command;
  for (const std::string& word : side.command) command += quoted(word) + " ";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + "2>/dev/null").c_str(), "r"), pclose);
  if (!pipe) return std::nullopt;
  std::string last;
  char line[256];
  while (fgets(line, sizeof(line), pipe.get()) != nullptr) last = line;
  std::istringstream text(last);
  Measured measured;
  if (!(text >> measured.images_per_second >> measured.peak_mebibytes)) return std::nullopt;
  return measured;
}

}  // namespace

void pin_to_one_core() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int core = CPU_SETSIZE - 1; core >= 0; --core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

void print_measured(double images_per_second) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print("{:.1f} {:.1f}\n", images_per_second, static_cast<double>(usage.ru_maxrss) / 1024);
}

std::map<std::string, std::vector<Measured>> measure(const std::vector<Side>& sides, int rounds) {
  std::map<std::string, std::vector<Measured>> all;
  for (int round = 0; round < rounds; ++round) {
    for (const Side& side : sides) {
      std::cerr << fmt::format("round {}/{}: {}\n", round + 1, rounds, side.name);
      if (const auto measured = run(side)) all[side.name].push_back(*measured);
    }
  }
  return all;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace bench
