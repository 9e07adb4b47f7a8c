#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace tutti::store {

// What --report writes. A number that is not finite, and one that is not known, is null in the file: JSON has
// no NaN.
struct Report {
  std::string strategy;
  std::string reduce = "tree";  // or "fast": then the bits depend on the number of workers
  int64_t world = 1;
  int64_t lanes = 1;
  int64_t steps = 0;
  int64_t examples = 0;
  double seconds = 0;
  double examples_per_second = 0;
  std::optional<double> loss;
  std::map<std::string, std::optional<double>> metrics;
  std::string weights_sha256;  // over the trained parameters alone
  int64_t restarts = 0;
  int64_t lost_steps = 0;
  // Where steps are made by one worker at a time: how many were made so many steps after their parameters
  // were read; and where steps do without some, how many gradients came too late. Left out of the file where
  // there are none.
  std::map<int64_t, int64_t> staleness = {};
  int64_t dropped_gradients = 0;
  int64_t skipped_examples = 0;  // of the data (--bad-rows skip); likewise
  std::string tutti_version;
  std::string libtorch_version;
  std::string precision;
  std::string device;
  std::optional<double> device_seconds;  // left out of the file where nobody measured it
};

nlohmann::ordered_json to_json(const Report& report);

// Whoever reads the file sees a whole report, the old one or this one.
void write_report(const std::string& path, const Report& report);

}  // namespace tutti::store
