#include "tutti/train/session.h"

#include <utility>

#include <nlohmann/json.hpp>
#include <torch/version.h>

#include "tutti/base/version.h"
#include "tutti/train/snapshot.h"

namespace tutti {

Json to_json(const Progress& progress) {
  return {{"step", progress.step},
          {"fit", progress.fit},
          {"fit_begin", progress.fit_begin},
          {"examples", progress.examples},
          {"restarts", progress.restarts}};
}

Progress progress_of(const Json& json) {
  return {.step = json.value("step", int64_t{0}),
          .fit = json.value("fit", int64_t{0}),
          .fit_begin = json.value("fit_begin", int64_t{0}),
          .examples = json.value("examples", int64_t{0}),
          .restarts = json.value("restarts", int64_t{0})};
}

Session::Session(const Context& context, Parameters& parameters, Optimizer& optimizer, int64_t lanes)
    : context_(context),
      parameters_(parameters),
      optimizer_(optimizer),
      folder_(context),
      lanes_are_given_(lanes > 0 || context.flags().lanes > 0),
      lanes_(lanes > 0 ? lanes : context.lanes()) {}

Session::~Session() = default;

Session::Start Session::start() {
  const std::optional<RunFolder::Found> found = folder_.newest();
  Start start = found ? resume(*found) : Start{};
  went_on_ = false;
  open_events(found ? std::optional(start.progress.step) : std::nullopt);
  return start;
}

Session::Start Session::resume(const RunFolder::Found& found) {
  const nlohmann::json& state = found.checkpoint.state;
  if (!lanes_are_given_) lanes_ = state.value("lanes", lanes_);
  folder_.require_same_run(found, lanes_);
  Optimizer::State optimizer = restore(parameters_, optimizer_, found.checkpoint, found.where);
  context_.log().info("going on from {}", found.where);
  return {.progress = {.step = found.checkpoint.step,
                       .fit = state.value("fit", int64_t{0}),
                       .fit_begin = state.value("fit_begin", int64_t{0}),
                       .examples = state.value("examples", int64_t{0}),
                       .restarts = state.value("restarts", int64_t{0}) + 1},
          .optimizer = std::move(optimizer)};
}

void Session::open_events(const std::optional<int64_t>& resumed_after) {
  if (!folder_.exists() || !context_.is_chief()) return;
  store::EventWriterOptions options;
  options.resumed_after = resumed_after;
  events_ = std::make_unique<store::EventWriter>(folder_.logdir(), options);
}

void Session::save(const Progress& progress, const Optimizer::State& optimizer) {
  if (!folder_.exists() || !context_.is_chief()) return;
  if (events_) events_->flush();
  folder_.require_finite(parameters_, progress.step);
  store::Checkpoint checkpoint = snapshot(parameters_, optimizer_.options(), optimizer);
  checkpoint.step = progress.step;
  checkpoint.state["fit"] = progress.fit;
  checkpoint.state["fit_begin"] = progress.fit_begin;
  checkpoint.state["examples"] = progress.examples;
  checkpoint.state["restarts"] = progress.restarts;
  folder_.save(std::move(checkpoint), lanes_);
}

void Session::fill(store::Report& report, const Progress& progress) const {
  report.lanes = lanes_;
  report.steps = progress.step;
  report.examples = progress.examples;
  report.restarts = progress.restarts;
  report.weights_sha256 = parameters_.sha256();
  report.tutti_version = version();
  report.libtorch_version = TORCH_VERSION;
  report.precision = context_.flags().precision;
  report.device = parameters_.device().str();
}

void Session::write(const store::Report& report) const {
  if (!context_.flags().report.empty() && context_.is_chief())
    store::write_report(context_.flags().report, report);
}

}  // namespace tutti
