#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/launch/launcher.h"
#include "tutti/base/environment.h"
#include "tutti/base/flags.h"

// What the benchmarks of several tasks have in common.
namespace tutti::bench {

// What may be asked of each. A benchmark's own wishes are added to it.
struct Request {
  std::string sizes = {};
  double seconds = 0.2;
  int64_t workers = 0;
  std::string json = {};
  Flags flags = {};
};

void add_request_flags(FlagSet& set, Request& request);

// From the smallest on.
std::vector<int64_t> sizes_of(const Request& request);

// Where nobody has started any task: does so, each as this program with the same arguments.
int start_tasks(const char* benchmark, const std::vector<std::string>& arguments,
                const Environment& environment, const LaunchOptions& tasks);

// A path that cannot be written is better heard of before anything is measured.
void check_json(const Request& request);

// A line of the result, at once.
void say(const std::string& line);

}  // namespace tutti::bench
