#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace tutti::store {

// The contents of --report. Numbers that are unknown or not finite are null in the file, because JSON has no
// NaN.
struct Report {
  std::string strategy;
  std::string reduce = "tree";  // or "fast", with which the bits depend on the number of workers
  int64_t world = 1;
  int64_t lanes = 1;
  int64_t steps = 0;
  // False if a signal or --stop-after has ended the training, so that a later process can continue it.
  bool complete = true;
  int64_t examples = 0;
  double seconds = 0;
  double examples_per_second = 0;
  std::optional<double> loss;
  std::map<std::string, std::optional<double>> metrics;
  // The rows of the last fit's history, as a list of objects. Omitted from the file if there are none.
  nlohmann::ordered_json history = nlohmann::ordered_json::array();
  std::string weights_sha256;  // of the trained parameters only
  int64_t restarts = 0;
  int64_t lost_steps = 0;
  // When the workers have changed during the training: the step, how many there were from then on, and why.
  // Omitted from the file if they have not.
  nlohmann::ordered_json changes = nlohmann::ordered_json::array();
  // With --audit: the number of audits that this process has taken part in, and the differences that they
  // have found. Omitted from the file if there are none.
  nlohmann::ordered_json audits = {};
  // With --checkpoint-every auto: the interval that was chosen last, and why. Omitted from the file
  // otherwise.
  nlohmann::ordered_json checkpoints = nlohmann::ordered_json::object();
  // For asynchronous steps: the number of updates by staleness, that is, by the number of steps that were
  // made since their parameters were read. With --backup: the number of gradients that were too late. Both
  // are omitted from the file if there are none.
  std::map<int64_t, int64_t> staleness = {};
  int64_t dropped_gradients = 0;
  // The changed settings and data that --resume anyway has accepted, each with its previous and its present
  // value. Omitted from the file if there are none.
  std::vector<std::string> differences = {};
  // The counts of the ids of growing embedding tables, by table. Omitted if there are none.
  std::map<std::string, nlohmann::ordered_json> tables = {};
  int64_t skipped_examples = 0;  // with --bad-rows skip; omitted too if 0
  std::string tutti_version;
  std::string libtorch_version;
  std::string precision;
  std::string kernels;                        // the value of --kernels
  std::vector<std::string> not_covered = {};  // operators; omitted from the file if there are none
  std::string device;
  std::optional<double> device_seconds;  // omitted from the file if not measured
};

nlohmann::ordered_json to_json(const Report& report);

// Replaces the file atomically: readers see either the old report or this one.
void write_report(const std::string& path, const Report& report);

}  // namespace tutti::store
