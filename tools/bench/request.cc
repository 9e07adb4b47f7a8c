#include "tools/bench/request.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "tools/bench/figures.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti::bench {

void add_request_flags(FlagSet& set, Request& request) {
  set.add(
      "--sizes", request.sizes,
      fmt::format("sizes in bytes: a list such as 4K,1M, or a range such as {}, in which each size is four "
                  "times the previous one",
                  request.sizes));
  set.add("--seconds", request.seconds, "approximate number of seconds to measure each size");
  set.above("--seconds", 0, 1e6);
  add_task_flags(set, request);
}

void add_task_flags(FlagSet& set, Request& request) {
  set.add("--workers,-n", request.workers,
          "number of workers to start if no launcher has started them; 0: one per core");
  set.between("--workers", 0, 1024);
  set.add("--json", request.json, "also write the results to this file");
}

std::vector<int64_t> sizes_of(const Request& request) {
  std::vector<int64_t> sizes = parse_sizes(request.sizes);
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

int start_tasks(const char* benchmark, const std::vector<std::string>& arguments,
                const Environment& environment, const LaunchOptions& tasks) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe"), "bench", benchmark};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return launch(command, environment, tasks);
}

void check_json(const Request& request) {
  if (!request.json.empty()) require_replaceable(request.json);
}

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace tutti::bench
