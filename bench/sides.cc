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
#include <unistd.h>

#include <fmt/format.h>

namespace bench {
namespace {

// Quotes a text for the shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// Returns the last line that the command prints, or "". `end` is appended to the shell command.
std::string last_line(const std::vector<std::string>& words, const char* end = "") {
  std::string command;
  for (const std::string& word : words) command += quoted(word) + " ";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + end).c_str(), "r"), pclose);
  if (!pipe) return "";
  std::string last;
  char line[4096];
  while (fgets(line, sizeof(line), pipe.get()) != nullptr) last = line;
  if (last.ends_with('\n')) last.pop_back();
  return last;
}

std::optional<Measured> run(const Side& side) {
  std::istringstream text(last_line(side.command, "2>/dev/null"));
  Measured measured;
  if (!(text >> measured.per_second >> measured.peak_mebibytes)) return std::nullopt;
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

void print_measured(double per_second) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print("{:.1f} {:.1f}\n", per_second, static_cast<double>(usage.ru_maxrss) / 1024);
}

std::map<std::string, Measured> measure(const std::vector<Side>& sides, int rounds) {
  struct Values {
    std::vector<double> per_second;
    std::vector<double> peak_mebibytes;
  };
  std::map<std::string, Values> all;
  for (int round = 0; round < rounds; ++round) {
    for (const Side& side : sides) {
      std::cerr << fmt::format("round {}/{}: {}\n", round + 1, rounds, side.name);
      const auto measured = run(side);
      if (!measured) continue;
      all[side.name].per_second.push_back(measured->per_second);
      all[side.name].peak_mebibytes.push_back(measured->peak_mebibytes);
    }
  }
  std::map<std::string, Measured> medians;
  for (const auto& [name, values] : all)
    medians[name] = {median(values.per_second), median(values.peak_mebibytes)};
  return medians;
}

Scratch::Scratch(const std::string& parent) : path_(fmt::format("{}/tutti-bench-{}", parent, getpid())) {
  std::filesystem::create_directories(path_);
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::optional<std::string> peer_python(const std::string& peers) {
  const std::filesystem::path script = folder() / "../scripts/peer-python";
  const auto build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  const std::string python = last_line({script.string(), build.string(), peers});
  return python.empty() ? std::nullopt : std::optional(python);
}

std::string last_line_of(const std::vector<std::string>& command) {
  return last_line(command, "2>/dev/null");
}

std::optional<std::string> pytorch_python(const std::string& libtorch) {
  const std::string wanted = libtorch.substr(0, libtorch.rfind('.') + 1);
  const auto fits = [&](const std::string& python) {
    return last_line_of({python, "-c", "import torch; print(torch.__version__)"}).starts_with(wanted);
  };
  for (const char* python : {"/usr/bin/python3", "python3"}) {
    if (fits(python)) return python;
  }
  std::optional<std::string> other = peer_python("torch");
  return other && fits(*other) ? other : std::nullopt;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace bench
