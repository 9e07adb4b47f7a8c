#include "tools/bench/request.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>

#include <fmt/format.h>

#include "tools/bench/figures.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti::bench {

void add_request_flags(FlagSet& set, Request& request) {
  set.add("--sizes", request.sizes,
          fmt::format("bytes: 4K,1M or {} for every fourth power of two between", request.sizes));
  set.add("--seconds", request.seconds, "about how long each size is measured");
  set.require("--seconds", "a number of seconds above 0",
              [](const std::string& text) { return std::strtod(text.c_str(), nullptr) > 0; });
  set.add("--workers,-n", request.workers, "workers to start where no launcher has; 0: one a core");
  set.at_least("--workers", 0);
  set.add("--json", request.json, "write the figures to this file too");
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
  if (!request.json.empty()) static_cast<void>(FileDescriptor(request.json, O_WRONLY | O_CREAT));
}

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace tutti::bench
