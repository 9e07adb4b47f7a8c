#include "tutti/train/session.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <torch/version.h>

#include "tutti/base/file.h"
#include "tutti/base/sha256.h"
#include "tutti/base/version.h"
#include "tutti/train/snapshot.h"

namespace tutti {

Json to_json(const Progress& progress) {
  Json json = {{"step", progress.step},           {"fit", progress.fit},
               {"fit_begin", progress.fit_begin}, {"examples", progress.examples},
               {"restarts", progress.restarts},   {"stopped", progress.stopped},
               {"feeds", progress.feeds}};
  if (progress.stop_reason) json["stop_reason"] = *progress.stop_reason;
  if (progress.loss && std::isfinite(*progress.loss)) json["loss"] = *progress.loss;
  return json;
}

Progress progress_of(const Json& json) {
  return {.step = json.value("step", int64_t{0}),
          .fit = json.value("fit", int64_t{0}),
          .fit_begin = json.value("fit_begin", int64_t{0}),
          .examples = json.value("examples", int64_t{0}),
          .restarts = json.value("restarts", int64_t{0}),
          .loss = json.contains("loss") ? std::optional(json.value("loss", 0.0)) : std::nullopt,
          .stopped = json.value("stopped", false),
          .stop_reason =
              json.contains("stop_reason") ? std::optional(json.value("stop_reason", "")) : std::nullopt,
          .feeds = json.value("feeds", std::vector<int64_t>{})};
}

Session::Session(const Context& context, std::vector<SessionPart> parts, const SessionOptions& options)
    : context_(context),
      parts_(std::move(parts)),
      folder_(context, options.name),
      lanes_are_given_(options.lanes > 0 || context.flags().lanes > 0),
      lanes_(options.lanes > 0 ? options.lanes : context.lanes()) {}

Session::~Session() = default;

Session::Start Session::start() {
  const std::optional<RunFolder::Found> found = folder_.newest();
  went_on_ = false;
  if (found && !folder_.only_weights()) {
    Start start = resume(*found);
    open_events(start.progress.step);
    return start;
  }
  if (found) take_weights(*found);
  open_events({});
  Start start;
  start.optimizers.resize(parts_.size());
  return start;
}

void Session::take_weights(const RunFolder::Found& found) {
  for (const SessionPart& part : parts_)
    restore_weights(part.parameters, checkpoint_of(part, found), found.where);
  context_.log().info("starting at step 0 with the weights of {}", found.where);
}

store::Checkpoint Session::checkpoint_of(const SessionPart& part, const RunFolder::Found& found) {
  return part.name.empty() ? found.checkpoint : part_of(found.checkpoint, part.name, found.where);
}

Session::Start Session::resume(const RunFolder::Found& found) {
  const nlohmann::json& state = found.checkpoint.state;
  if (!lanes_are_given_) lanes_ = state.value("lanes", lanes_);
  folder_.require_same_run(found, lanes_, facts_);
  Start start{.progress = progress_of(state), .optimizers = {}};
  start.progress.step = found.checkpoint.step;
  ++start.progress.restarts;
  for (const SessionPart& part : parts_) {
    const store::Checkpoint own = checkpoint_of(part, found);
    warn_of_other_options(part, own, found.where);
    start.optimizers.push_back(restore(part.parameters, part.optimizer, own, found.where));
  }
  data_ = resumed_data_ = state.value("data", nlohmann::json::object());
  resumed_fit_ = start.progress.fit;
  context_.log().info("resumed from {}", found.where);
  return start;
}

// Warns about changed options, such as a learning rate: the run continues with the values of the program.
void Session::warn_of_other_options(const SessionPart& part, const store::Checkpoint& saved,
                                    const std::string& where) const {
  const nlohmann::json before = saved.state.value("optimizer", nlohmann::json::object());
  const nlohmann::json now = to_json(part.optimizer.options());
  std::string text;
  for (const auto& [name, value] : now.items()) {
    if (name == "name" || !before.contains(name) || before.at(name) == value) continue;
    text +=
        fmt::format("{}{} {}, not {}", text.empty() ? "" : "; ", name, before.at(name).dump(), value.dump());
  }
  if (!text.empty())
    context_.log().warning("{}: the optimiser {} had {}; the run continues with the new values", where,
                           part.optimizer.name(), text);
}

void Session::describe_data(const Json& data, const Progress& progress) {
  const Json resumed = std::exchange(resumed_data_, Json::object());
  data_ = data;
  if (resumed_fit_ != progress.fit) return;
  for (const auto& [name, value] : data.items()) {
    if (!resumed.contains(name) || resumed.at(name) == value) continue;
    folder_.fail_other_run(fmt::format("other data: {} {}, not {}", name, resumed.at(name).get<std::string>(),
                                       value.get<std::string>()));
  }
}

void Session::open_events(const std::optional<int64_t>& resumed_after) {
  if (!folder_.exists() || !context_.is_chief()) return;
  store::EventWriterOptions options;
  options.resumed_after = resumed_after;
  events_ = std::make_unique<store::EventWriter>(folder_.path(), options);
}

void Session::save(const Progress& progress, const std::vector<Optimizer::State>& optimizers) {
  if (!folder_.exists() || !context_.is_chief()) return;
  if (events_) events_->flush();
  store::Checkpoint checkpoint;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto& [name, parameters, optimizer] = parts_[i];
    folder_.require_finite(parameters, progress.step);
    store::Checkpoint own = snapshot(parameters, optimizer.options(), optimizers.at(i));
    if (name.empty())
      checkpoint = std::move(own);
    else
      add_part(checkpoint, name, std::move(own));
  }
  checkpoint.step = progress.step;
  const Json told = to_json(progress);
  for (const auto& [name, value] : told.items()) {
    if (name != "step") checkpoint.state[name] = value;
  }
  if (!data_.empty()) checkpoint.state["data"] = data_;
  folder_.save(std::move(checkpoint), lanes_, facts_);
}

// Returns the hash of the weights; with several nets, a hash over their names and hashes.
std::string Session::weights_sha256() const {
  if (parts_.size() == 1) return parts_[0].parameters.sha256();
  Sha256 hash;
  for (const SessionPart& part : parts_)
    hash.update(as_bytes(fmt::format("{} {}\n", part.name, part.parameters.sha256())));
  return hash.hex();
}

void Session::fill(store::Report& report, const Progress& progress) const {
  report.lanes = lanes_;
  report.steps = progress.step;
  report.examples = progress.examples;
  report.restarts = progress.restarts;
  report.loss = progress.loss;
  report.weights_sha256 = weights_sha256();
  report.tutti_version = version();
  report.libtorch_version = TORCH_VERSION;
  report.precision = context_.flags().precision;
  report.device = parts_[0].parameters.device().str();
}

void Session::write(const store::Report& report) const {
  if (!context_.flags().report.empty() && context_.is_chief())
    store::write_report(context_.flags().report, report);
}

}  // namespace tutti
