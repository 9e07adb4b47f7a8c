#include "tutti/train/session.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include "tutti/base/deadline.h"
#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/text.h"
#include "tutti/base/version.h"
#include "tutti/store/manifest.h"
#include "tutti/store/shared_files.h"
#include "tutti/train/coverage.h"
#include "tutti/train/snapshot.h"

namespace tutti {

Json to_json(const Progress& progress) {
  Json json = {{"step", progress.step},           {"fit", progress.fit},
               {"fit_begin", progress.fit_begin}, {"examples", progress.examples},
               {"restarts", progress.restarts},   {"stopped", progress.stopped},
               {"feeds", progress.feeds},         {"end_step", progress.end_step}};
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
          .end_step = json.value("end_step", int64_t{0}),
          .loss = json.contains("loss") ? std::optional(json.value("loss", 0.0)) : std::nullopt,
          .stopped = json.value("stopped", false),
          .stop_reason =
              json.contains("stop_reason") ? std::optional(json.value("stop_reason", "")) : std::nullopt,
          .feeds = json.value("feeds", std::vector<int64_t>{})};
}

namespace {

// Returns what tasks outside of the job are told.
RunState state_of(const Progress& progress, RunState::Phase phase, const Group& group,
                  const std::string& change = "") {
  RunState state;
  state.phase = phase;
  state.fit = progress.fit;
  state.step = progress.step;
  state.end_step = progress.end_step;
  state.workers = group.world;
  state.change = change;
  return state;
}

// Copies the tensors, which the running training goes on to change.
store::Checkpoint copy_of(store::Checkpoint checkpoint) {
  const torch::NoGradGuard no_grad;
  const auto copy = [](std::vector<store::NamedTensor>& tensors) {
    for (store::NamedTensor& named : tensors)
      named.tensor = named.tensor.detach().to(torch::kCPU, false, true);
  };
  copy(checkpoint.weights);
  copy(checkpoint.optimizer);
  for (auto& [name, tensors] : checkpoint.more) copy(tensors);
  return checkpoint;
}

// Returns the name of a checkpoint in the live line, while it is being written.
std::string meter_name(int64_t step) { return fmt::format("checkpoint {}", step); }

// Sorts the tensors, which are grouped by type in a file, as they were given.
void put_in_order(std::vector<store::NamedTensor>& tensors, const Json& names) {
  std::map<std::string, size_t> places;
  for (const Json& name : names) {
    if (name.is_string()) places.emplace(name.get<std::string>(), places.size());
  }
  const auto place = [&](const store::NamedTensor& named) {
    const auto found = places.find(named.name);
    return found == places.end() ? places.size() : found->second;
  };
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
}

}  // namespace

Snapshots parts_in(const store::Checkpoint& checkpoint) {
  Snapshots parts;
  for (const auto& [name, tensors] : checkpoint.more) parts[name].tensors = tensors;
  const auto order = checkpoint.state.find("order");
  if (order != checkpoint.state.end() && order->is_object()) {
    for (const auto& [name, names] : order->items()) {
      if (parts.contains(name)) put_in_order(parts[name].tensors, names);
    }
  }
  const Json values = checkpoint.state.value("state", Json::object());
  for (const auto& [name, value] : values.items()) parts[name].values = value;
  return parts;
}

Session::Session(const Context& context, const Group& group, std::vector<SessionPart> parts,
                 const SessionOptions& options)
    : context_(context),
      group_(group),
      parts_(std::move(parts)),
      folder_(context, options.name),
      lanes_are_given_(options.lanes > 0 || context.config().training.lanes > 0),
      lanes_(options.lanes > 0 ? options.lanes : lanes_for(context, group)),
      line_(context.config().output.log) {}

Session::~Session() = default;

void Session::pass_over_lost_checkpoint() {
  try {
    finish_saving();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::PeerLost) throw;
    context_.log().warning("{}", error.what());
  }
}

std::optional<RunFolder::Found> Session::newest() {
  Meter meter(line(), "reading the checkpoint", Meter::Unit::Bytes);
  return folder_.newest(meter.teller());
}

Session::Start Session::start() {
  pass_over_lost_checkpoint();
  const std::optional<RunFolder::Found> found = newest();
  went_on_ = false;
  const bool resumes = found && !folder_.only_weights();
  folder_.begin_run(resumes ? RunFolder::Begins::FromItsCheckpoint : RunFolder::Begins::Anew);
  if (resumes) {
    Start start = resume(*found);
    open_events(start.progress.step);
    return start;
  }
  open_events({});
  Start start;
  start.optimizers.resize(parts_.size());
  if (found) {
    take_weights(*found);
    Snapshots parts = parts_in(found->checkpoint);
    take_rows(start, parts, found->checkpoint);
    start.has_optimizer = false;
  }
  return start;
}

Session::Parts Session::newest_parts(int64_t step) {
  pass_over_lost_checkpoint();
  const std::optional<RunFolder::Found> found = newest();
  Parts parts;
  if (found && !folder_.only_weights()) {
    parts.snapshots = parts_in(found->checkpoint);
    parts.step = found->checkpoint.step;
  }
  if (parts.step == step) return parts;
  for (const auto& [name, snapshot] : state()) {
    if (name != kGenerators && name != kHistory) parts.outdated.push_back(name);
  }
  return parts;
}

void Session::go_on(int64_t step) {
  folder_.begin_run(RunFolder::Begins::WithOthers);
  open_events(step);
  went_on_ = true;
}

void Session::take_over(int64_t step) {
  context_.serve_page();
  folder_.lock();
  folder_.begin_run(RunFolder::Begins::WithOthers);
  open_events(step);
}

void Session::restore_all_weights(const RunFolder::Found& found) {
  for (const SessionPart& part : parts_)
    restore_weights(part.parameters, part_of(found.checkpoint, part.name, found.where), found.where);
}

void Session::take_weights(const RunFolder::Found& found) {
  restore_all_weights(found);
  context_.log().info("starting at step 0 with the weights of {}", found.where);
}

Session::Start Session::resume(const RunFolder::Found& found) {
  const nlohmann::json& state = found.checkpoint.state;
  if (!lanes_are_given_) lanes_ = state.value("lanes", lanes_);
  folder_.require_same_run(found, lanes_, facts_);
  Start start{.progress = progress_of(state), .optimizers = {}};
  start.progress.step = found.checkpoint.step;
  ++start.progress.restarts;
  for (const SessionPart& part : parts_) {
    const store::Checkpoint own = part_of(found.checkpoint, part.name, found.where);
    warn_of_other_options(part, own, found.where);
    start.optimizers.push_back(restore(part.parameters, part.optimizer, own, found.where));
  }
  start.more = parts_in(found.checkpoint);
  take_rows(start, start.more, found.checkpoint);
  if (!start.rows.empty())
    rows_base_ = found.checkpoint.base ? found.checkpoint.base->step : found.checkpoint.step;
  data_ = resumed_data_ = state.value("data", nlohmann::json::object());
  resumed_fit_ = start.progress.fit;
  context_.log().info("resumed from {}", found.where);
  return start;
}

// Moves the rows of sharded tables to the start.
void Session::take_rows(Start& start, Snapshots& parts, const store::Checkpoint& checkpoint) {
  auto found = parts.extract(store::kRowsPart);
  if (!found) return;
  start.rows = std::move(found.mapped());
  if (!checkpoint.base) return;
  start.changed_rows = std::move(start.rows);
  const Json facts = checkpoint.base->state.value("state", Json::object());
  start.rows = {checkpoint.base->parts.at(store::kRowsPart), facts.value(store::kRowsPart, Json::object())};
}

std::optional<int64_t> Session::rows_base(int64_t step) const {
  const bool may_change =
      context_.config().checkpoints.rows == "changed" && rows_base_ && *rows_base_ != step;
  return may_change && path_exists(folder_.path_of(*rows_base_)) ? rows_base_ : std::nullopt;
}

// Warns about changed options, such as a learning rate: the run continues with the values of the program.
void Session::warn_of_other_options(const SessionPart& part, const store::Checkpoint& saved,
                                    const std::string& where) const {
  const auto changed =
      differing(saved.state.value("optimizer", nlohmann::json::object()), to_json(part.optimizer.options()));
  if (!changed.empty())
    context_.log().warning("{}: the optimiser {} had {}; the run continues with the new values", where,
                           part.optimizer.name(), fmt::join(changed, "; "));
}

void Session::describe_data(const Json& data, const Progress& progress) {
  const Json resumed = std::exchange(resumed_data_, Json::object());
  data_ = data;
  if (resumed_fit_ != progress.fit) return;
  for (const std::string& line : differing(resumed, data)) folder_.refuse_other_run("other data: " + line);
}

void Session::open_events(const std::optional<int64_t>& resumed_after) {
  if (!folder_.exists() || !group_.is_chief()) return;
  store::EventWriterOptions options;
  options.resumed_after = resumed_after;
  events_ = context_.event_stream(folder_.path())->open(folder_.path(), options);
}

void Session::follow(int64_t lanes) {
  lanes_ = lanes;
  const bool writes = group_.is_chief() || context_.identity().is_evaluator;
  if (folder_.exists() && !writes) context_.event_stream(folder_.path())->drop();
}

void Session::note(const Progress& progress, RunState::Phase phase, const std::string& change) {
  if (group_.is_chief()) folder_.note(state_of(progress, phase, group_, change));
}

void Session::show_life(const Progress& progress) {
  if (group_.is_chief()) folder_.show_life(state_of(progress, RunState::Phase::Training, group_));
}

void Session::note_error(const std::exception& error) noexcept {
  try {
    if (group_.is_chief()) folder_.note_error(first_line(error.what()));
  } catch (const std::exception&) {
    // Without memory for the text, the log has to do.
  }
}

Session::Start Session::load(const RunFolder::Found& found) {
  restore_all_weights(found);
  lanes_ = found.checkpoint.state.value("lanes", lanes_);
  Start start{.progress = progress_of(found.checkpoint.state), .optimizers = {}, .has_optimizer = false};
  start.progress.step = found.checkpoint.step;
  Snapshots parts = parts_in(found.checkpoint);
  take_rows(start, parts, found.checkpoint);
  return start;
}

std::string Session::open_folder() {
  pass_over_lost_checkpoint();
  return folder_.open();
}

void Session::write_parts(const std::string& folder, const Tensors& parts, int64_t step) {
  finish_saving();
  store::Checkpoint own;
  own.more = parts;
  saving_ = writer_.run([this, folder, step, copy = copy_of(std::move(own)), &line = line()] {
    Meter meter(line, meter_name(step), Meter::Unit::Bytes);
    const OnBytes on_bytes = counted(meter.teller(), store::bytes_to_write(copy));
    for (const auto& [part, tensors] : copy.more)
      store::write_shared_file(folder, store::shared_file_name(part, group_.rank, group_.world), tensors,
                               step, on_bytes);
  });
}

void Session::save(const Progress& progress, const std::vector<Optimizer::State>& optimizers,
                   const Snapshots& more, const std::vector<store::SharedFile>& shared,
                   std::optional<int64_t> rows_base) {
  if (!folder_.exists() || !group_.is_chief()) return;
  if (shared.empty()) finish_saving();
  if (events_) events_->flush();
  store::Checkpoint checkpoint;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto& [name, parameters, optimizer] = parts_[i];
    folder_.require_finite(parameters, progress.step);
    add_part(checkpoint, name, snapshot(parameters, optimizer.options(), optimizers.at(i)));
  }
  checkpoint.step = progress.step;
  const Json told = to_json(progress);
  for (const auto& [name, value] : told.items()) {
    if (name != "step") checkpoint.state[name] = value;
  }
  for (const auto& [name, snapshot] : more) {
    if (!snapshot.tensors.empty()) checkpoint.more[name] = snapshot.tensors;
    for (const store::NamedTensor& named : snapshot.tensors)
      checkpoint.state["order"][name].push_back(named.name);
    if (!snapshot.values.empty()) checkpoint.state["state"][name] = snapshot.values;
  }
  if (!data_.empty()) checkpoint.state["data"] = data_;
  if (rows_base)
    checkpoint.base = store::Base{.step = *rows_base, .parts = {{store::kRowsPart, {}}}};
  else if (more.contains(store::kRowsPart))
    rows_base_ = progress.step;
  being_saved_ = {folder_.path_of(checkpoint.step), checkpoint.step};
  const store::SharedFiles files{shared, milliseconds_of(context_.config().network.timeout)};
  saving_ = writer_.run([this, copy = copy_of(std::move(checkpoint)), lanes = lanes_, facts = facts_, files,
                         own = saving_, &line = line()] {
    own.wait();  // this worker's part of the optimiser's state, if it writes one
    Meter meter(line, meter_name(copy.step), Meter::Unit::Bytes);
    folder_.save(copy, lanes, facts, files, meter.teller());
  });
}

// Tells an error once: what is saved next is another checkpoint.
void Session::finish_saving() {
  const comm::Work saving = std::exchange(saving_, {});
  try {
    saving.wait();
  } catch (const std::exception&) {
    being_saved_.reset();
    throw;
  }
  if (being_saved_) saved_.push_back(*std::exchange(being_saved_, std::nullopt));
}

std::vector<Session::Saved> Session::take_saved() {
  if (being_saved_ && saving_.done()) finish_saving();
  return std::exchange(saved_, {});
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
  report.differences = folder_.differences();
  report.loss = progress.loss;
  report.weights_sha256 = weights_sha256();
  report.tutti_version = version();
  report.libtorch_version = TORCH_VERSION;
  report.precision = context_.config().compute.precision;
  report.kernels = context_.chosen_kernels();
  report.not_covered = lines_of_not_covered();
  report.device = parts_[0].parameters.device().str();
}

void Session::write(const store::Report& report) const {
  if (!context_.config().output.report.empty() && group_.is_chief())
    store::write_report(context_.config().output.report, report);
}

}  // namespace tutti
