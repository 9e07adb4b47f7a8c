#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/sweep/results.h"
#include "tutti/base/json.h"

// Reading the files that the processes of a sweep have written.
namespace tutti {

// Returns the last lines of a log, each indented and on a separate line; "" if there are none.
std::string last_lines(const std::string& path);

// Finds the output of --print-config, which begins and ends with a brace alone in its line. `tutti run` puts
// the name of a task before each line; the first task counts. mpirun mixes the lines of all ranks, which are
// the same; each counts once.
std::optional<Json> find_configuration(const std::string& output);

struct FoundStop {
  std::optional<Stop> stop;
  std::string
      problem;  // completes "it has ended, but ..." if the report is missing or of an unfinished stage
};

// Reads the report of a process that has ended.
FoundStop find_stop(const std::string& path, int64_t stop_after);

}  // namespace tutti
