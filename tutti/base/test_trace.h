#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/trace_events.h"

namespace tutti {

// For tests: the contents of a file of trace events, read with an independent parser.
struct ReadTrace {
  struct Span {
    int64_t begin, end;  // nanoseconds
    int64_t step;
    std::string category, name;
  };
  using Thread = std::pair<int, int>;  // process, thread

  Json json;
  std::map<int, std::string> processes;
  std::map<Thread, std::string> threads;
  std::map<Thread, std::vector<Span>> spans;

  // Returns the spans of a process that have this name, ordered by their beginning.
  std::vector<Span> spans_of(int process, const std::string& name) const {
    std::vector<Span> found;
    for (const auto& [thread, list] : spans) {
      for (const Span& span : list) {
        if (thread.first == process && span.name == name) found.push_back(span);
      }
    }
    std::sort(found.begin(), found.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    return found;
  }
};

inline ReadTrace read_trace(const std::string& path) {
  ReadTrace trace;
  trace.json = Json::parse(read_file(path));
  const auto nanoseconds = [](const Json& value) { return std::llround(value.get<double>() * 1000); };
  for (const Json& event : trace.json.at("traceEvents")) {
    const int pid = event.at("pid");
    const ReadTrace::Thread thread(pid, event.at("tid"));
    if (event.at("ph") == "X") {
      const int64_t begin = nanoseconds(event.at("ts"));
      trace.spans[thread].push_back({begin, begin + nanoseconds(event.at("dur")),
                                     event.value("args", Json::object()).value("step", int64_t{-1}),
                                     event.at("cat"), event.at("name")});
    } else if (event.at("name") == "process_name") {
      trace.processes[pid] = event.at("args").at("name");
    } else if (event.at("name") == "thread_name") {
      trace.threads[thread] = event.at("args").at("name");
    }
  }
  return trace;
}

// Reads the files of these ranks.
inline ReadTrace read_traces(const std::string& path, int ranks) {
  ReadTrace all = read_trace(path);
  for (int rank = 1; rank < ranks; ++rank) {
    ReadTrace other = read_trace(trace_path(path, rank));
    all.processes.merge(other.processes);
    all.threads.merge(other.threads);
    all.spans.merge(other.spans);
  }
  return all;
}

// Expects that any two spans of a thread are either nested or disjoint.
inline void expect_nested(const ReadTrace& trace) {
  for (auto [thread, spans] : trace.spans) {
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end);
    });
    std::vector<ReadTrace::Span> open;
    for (const auto& span : spans) {
      EXPECT_GE(span.begin, 0) << span.name;
      while (!open.empty() && open.back().end <= span.begin) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(span.end, open.back().end)
            << span.name << " in " << open.back().name << " of " << trace.threads.at(thread);
      }
      open.push_back(span);
    }
  }
}

}  // namespace tutti
