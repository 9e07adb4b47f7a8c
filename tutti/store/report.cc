#include "tutti/store/report.h"

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti::store {
namespace {

using nlohmann::ordered_json;

ordered_json number_or_null(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  return *value;
}

}  // namespace

ordered_json to_json(const Report& report) {
  ordered_json metrics = ordered_json::object();
  for (const auto& [name, value] : report.metrics) metrics[name] = number_or_null(value);
  ordered_json json = {{"strategy", report.strategy},
                       {"reduce", report.reduce},
                       {"world", report.world},
                       {"lanes", report.lanes},
                       {"steps", report.steps},
                       {"complete", report.complete},
                       {"examples", report.examples},
                       {"seconds", number_or_null(report.seconds)},
                       {"examples_per_second", number_or_null(report.examples_per_second)},
                       {"loss", number_or_null(report.loss)},
                       {"metrics", metrics},
                       {"weights_sha256", report.weights_sha256},
                       {"restarts", report.restarts},
                       {"lost_steps", report.lost_steps},
                       {"tutti_version", report.tutti_version},
                       {"libtorch_version", report.libtorch_version},
                       {"precision", report.precision},
                       {"kernels", report.kernels},
                       {"device", report.device}};
  for (const auto& [steps, updates] : report.staleness) json["staleness"][std::to_string(steps)] = updates;
  if (!report.not_covered.empty()) json["not_covered"] = report.not_covered;
  if (!report.differences.empty()) json["differences"] = report.differences;
  if (!report.changes.empty()) json["changes"] = report.changes;
  if (!report.audits.empty()) json["audits"] = report.audits;
  if (!report.checkpoints.empty()) json["checkpoints"] = report.checkpoints;
  if (!report.tables.empty()) json["tables"] = report.tables;
  if (report.skipped_examples > 0) json["skipped_examples"] = report.skipped_examples;
  if (report.dropped_gradients > 0) json["dropped_gradients"] = report.dropped_gradients;
  if (!report.history.empty()) json["history"] = report.history;
  if (report.device_seconds) json["device_seconds"] = number_or_null(report.device_seconds);
  return json;
}

void write_report(const std::string& path, const Report& report) {
  // A string that is not UTF-8, such as the name of a device, must not make the report fail.
  replace_file(path, to_json(report).dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace tutti::store
