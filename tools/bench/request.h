#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/launch/launcher.h"
#include "tutti/base/config.h"
#include "tutti/base/environment.h"

// The common parts of benchmarks with several tasks.
namespace tutti::bench {

// The options common to all benchmarks. Each benchmark adds further options.
struct Request {
  std::string sizes = {};
  double seconds = 0.2;
  int64_t workers = 0;
  std::string json = {};
  RunConfig config = {};
};

// Adds the flags for sizes, and calls add_task_flags().
void add_request_flags(FlagSet& set, Request& request);
// Adds the flags for the number of workers, and for the file with the results.
void add_task_flags(FlagSet& set, Request& request);

// Returns the sizes in ascending order.
std::vector<int64_t> sizes_of(const Request& request);

// Starts the tasks if none have been started, each as this program with the same arguments.
int start_tasks(const char* benchmark, const std::vector<std::string>& arguments,
                const Environment& environment, const LaunchOptions& tasks);

// Throws if the path cannot be written, before anything is measured.
void check_json(const Request& request);

// Prints a line of the result immediately.
void say(const std::string& line);

}  // namespace tutti::bench
