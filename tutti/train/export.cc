#include "tutti/train/export.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/live_line.h"
#include "tutti/embedding/row_state.h"
#include "tutti/embedding/tables.h"
#include "tutti/params/random_scope.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/manifest.h"
#include "tutti/train/export/exporter.h"
#include "tutti/train/export/versions.h"
#include "tutti/train/load.h"
#include "tutti/train/replica.h"
#include "tutti/train/strategies/connected.h"
#include "tutti/train/trainer.h"

// Exports models; the part of TrainingRun that does so.
namespace tutti {
namespace {

constexpr const char* kExportName = "the export";

// An evaluator leaves it to the training, and a training that --stop-after has stopped to the run that
// completes it.
bool exports_nothing(const Context& context) {
  if (context.stopped_early() && context.is_chief())
    context.log().info("nothing is exported, since --stop-after has stopped the training");
  return context.identity().is_evaluator || context.stopped_early();
}

std::chrono::milliseconds check_timeout(const Context& context) {
  constexpr int kTimeouts = 10;  // as long as the other workers wait
  return milliseconds_of(context.config().network.timeout * kTimeouts);
}

// Returns the rows of the tables of a module, which this process can read.
std::map<std::string, torch::Tensor> readable_rows(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> rows;
  for (const auto& [name, table, weight] : embedding::tables_in(module)) {
    if (!weight.defined() && !table->options().dynamic)
      rows[name + ".weight"] = table->look_up(torch::arange(table->rows(), torch::kLong));
  }
  return rows;
}

// Loads a checkpoint into the model, with the moving average of the weights if it has one, and notes this
// among the facts.
void take_checkpoint(TrainedModel& model, const std::string& path, bool last_weights) {
  const std::string folder = checkpoint_at(path);
  const store::Checkpoint checkpoint = store::load_checkpoint(folder);
  const bool takes_average = has_average(checkpoint) && !last_weights;
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& [name, tensor] :
       tensors_in(checkpoint, takes_average ? embedding::RowValues::Average : embedding::RowValues::Last))
    tensors.emplace(name, tensor);
  load_checkpoint_weights(model.module, tensors, folder);
  model.facts["step"] = checkpoint.step;
  model.facts["weights"] = takes_average ? "average" : "last";
}

std::string written(const Context& context, const Exporter& exporter, const std::string& dir,
                    LiveLine& line) {
  const Exporter::Result result = [&] {
    Meter meter(line, "export", Meter::Unit::Bytes);
    return exporter.write(dir, meter.teller());
  }();
  for (const std::string& doubt : result.doubts) context.log().warning("{}", doubt);
  double greatest = 0;
  bool same_bits = true;
  for (const CheckResult& check : result.checks) {
    greatest = std::max(greatest, check.greatest_difference);
    same_bits = same_bits && check.same_bits;
  }
  const std::string difference = greatest == 0 ? "" : fmt::format(" up to {:.2g}", greatest);
  context.log().info("exported {}: another process computes the same{} for {} examples{}", result.path,
                     difference, result.signature.at("check").at("examples").get<int64_t>(),
                     same_bits && !difference.empty()
                         ? ", and the same bits with the training's kernels without optimisations"
                         : "");
  context.log().info("it is {}, where * is any number{}",
                     fmt::join(lines_of_signatures(result.signature), ", "),
                     has_fixed_sizes(result.signature)
                         ? "; all other sizes are fixed (ExportOptions::free_sizes makes them free)"
                         : "");
  return result.path;
}

// Exports a model of which this process has all rows.
std::string export_alone(const Context& context, TrainedModel& model, const std::string& dir,
                         const std::string& checkpoint, const data::Feed& examples,
                         const ExportOptions& options) {
  if (!checkpoint.empty()) take_checkpoint(model, checkpoint, options.last_weights);
  model.rows = [&model] { return readable_rows(model.module); };
  const RandomScope random(model.device);
  Exporter exporter(model, examples, options);
  for (size_t i = 0; i < exporter.batches().size(); ++i) exporter.predict(i);
  exporter.gather();
  LiveLine line(context.config().output.log);
  return written(context, exporter, dir, line);
}

// Returns the model of a program, which computes in this precision.
TrainedModel trained_model(const Context& context, const Trainable& model, Precision precision) {
  if (!model.module) fail(ErrorKind::InvalidArgument, "a model needs a module");
  const std::vector<torch::Tensor> parameters = model.module->parameters();
  const torch::Device device = parameters.empty() ? torch::kCPU : parameters.front().device();
  return {.module = *model.module,
          .outputs = [&model, device, precision](const Batch& batch,
                                                 const Signature& signature) -> std::vector<torch::Tensor> {
            const torch::NoGradGuard no_grad;
            const EvaluationScope evaluation(*model.module);
            const PrecisionScope scope(device, precision);
            if (!signature.function && !model.predict) fail_no_predictions();
            std::vector<torch::Tensor> results = {};
            if (signature.function)
              results = signature.function(batch);
            else
              results.push_back(model.predict(batch));
            for (torch::Tensor& result : results) {
              if (precision != Precision::Float32 && result.is_floating_point())
                result = result.to(torch::kFloat32);
            }
            return results;
          },
          .rows = {},
          .device = device,
          .threads = context.threads(),
          .lower_precision = precision != Precision::Float32,
          .checker = context.config().exports.checker,
          .timeout = check_timeout(context)};
}

// Returns the model of a trainer.
TrainedModel trained_model(const Context& context, Replica& replica) {
  return {.module = replica.module(),
          .outputs =
              [&replica](const Batch& batch, const Signature& signature) {
                return replica.evaluate(replica.prepare(batch), signature.function);
              },
          .rows = {},
          .device = replica.options().device,
          .threads = context.threads(),
          .lower_precision = replica.options().precision != Precision::Float32,
          .facts = {{"precision", context.config().compute.precision}},
          .checker = context.config().exports.checker,
          .timeout = check_timeout(context)};
}

}  // namespace

std::string export_model(const Context& context, const std::string& dir, const std::string& checkpoint,
                         const Trainable& model, const data::Feed& examples, const ExportOptions& options,
                         const Group& group) {
  if (exports_nothing(context)) return "";
  if (group.world == 1 && context.world() > 1 && !context.is_chief()) return "";
  const auto make = [&]() -> Json {
    TrainedModel trained = trained_model(context, model, Precision::Float32);
    return export_alone(context, trained, dir, checkpoint, examples, options);
  };
  const Json path =
      group.world == 1 ? result_of(outcome_of(make)) : share(context, *group.connected(), kExportName, make);
  return path.get<std::string>();
}

void require_no_export(const Context& context, const char* what) {
  if (!context.config().exports.dir.empty())
    fail(ErrorKind::InvalidArgument,
         "--export works with a Trainer, but this program trains by {}: let it call its export_model()",
         what);
}

std::string TrainingRun::export_model(const std::string& dir, const data::Feed& examples,
                                      const ExportOptions& options, const Trainable* other) {
  if (exports_nothing(context_)) return "";
  const SpanScope span(context_.timeline(), Activity::Save, "export");
  const auto make = [&]() -> Json { return export_once(dir, examples, options, other); };
  return with_all(make).get<std::string>();
}

std::string TrainingRun::export_once(const std::string& dir, const data::Feed& examples,
                                     const ExportOptions& options, const Trainable* other) {
  strategy_.settle();
  const Precision precision = parse_precision(context_.config().compute.precision);
  TrainedModel model =
      other == nullptr ? trained_model(context_, *replica_) : trained_model(context_, *other, precision);
  model.rows = [this] {
    const Snapshot saved = strategy_.rows();
    if (saved.tensors.empty()) return store::TensorsByName();  // only the chief has them
    return store::by_name(embedding::joined_rows(embedding::SavedRows(saved), nullptr));
  };
  model.facts["precision"] = context_.config().compute.precision;
  model.facts["step"] = progress_.step;
  model.facts["weights"] = training_.average != nullptr && !options.last_weights ? "average" : "last";
  const RandomScope random(model.device);
  std::string path;
  with_weights({.last_weights = options.last_weights},
               [&] { path = export_now(model, dir, examples, options); });
  return path;
}

// If the workers own the rows of sharded tables, all of them gather these and, if they cannot read them by
// themselves, predict; else the chief does everything.
std::string TrainingRun::export_now(const TrainedModel& model, const std::string& dir,
                                    const data::Feed& examples, const ExportOptions& options) {
  std::optional<Exporter> exporter;
  const auto predict_all = [&](const auto& around) {
    for (size_t i = 0; i < exporter->batches().size(); ++i)
      around(exporter->batches()[i], [&] { exporter->predict(i); });
  };
  const auto begin = [&]() -> Json {
    exporter.emplace(model, examples, options);
    return {};
  };
  if (!tables_.empty() && !strategy_.facts().keeps_parameters_elsewhere) {
    // If the options or examples are wrong, all workers learn it from the chief, and may continue.
    strategy_.share(kExportName, begin);
    or_abandon("export", [&] {
      if (!exporter) begin();
      exporter->gather();
      if (tables_.can_read_alone()) return;
      predict_all([&](const Batch& batch, const auto& predict) {
        tables_.fetch(std::span(&batch, 1));
        tables_.begin_lane(0);
        predict();
        tables_.end_lane();
      });
    });
  }
  return strategy_
      .share(kExportName,
             [&]() -> Json {
               if (!exporter) {
                 begin();
                 exporter->gather();
               }
               if (tables_.can_read_alone())
                 predict_all([](const Batch&, const auto& predict) { predict(); });
               return written(context_, *exporter, dir, session_.line());
             })
      .get<std::string>();
}

std::string Trainer::export_model(const std::string& dir, const data::Feed& examples,
                                  const ExportOptions& options) {
  if (!context_.identity().is_evaluator && !context_.stopped_early()) start_once();
  return run_.export_model(dir, examples, options);
}

void Trainer::export_instead_of(const data::Feed& feed, const FitOptions& options) {
  const RunConfig::Exports& exports = context_.config().exports;
  TrainedModel model = trained_model(context_, replica());
  throw ExportDone(export_alone(context_, model, exports.dir, exports.from,
                                options.validate.feed ? *options.validate.feed : feed, options_.exports));
}

}  // namespace tutti
