#include "tutti/train/fit_state.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/params/average_weights.h"

namespace tutti {

Json to_json(const History& history) {
  const auto finite = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  Json rows = Json::array();
  for (const History::Row& row : history.rows) {
    Json json = {{"step", row.step}, {"epoch", row.epoch}, {"loss", row.loss ? finite(*row.loss) : nullptr}};
    for (const auto& [name, value] : row.validation) json["validation"][name] = finite(value);
    rows.push_back(std::move(json));
  }
  return rows;
}

void HistoryHook::begin(Training&) {
  if (std::exchange(restored_, false)) return;
  history_.rows.clear();
  loss_sum_ = torch::Tensor();
  examples_ = 0;
}

void HistoryHook::after_step(Training&, const StepResult& result) {
  restored_ = false;
  if (!result.has_loss()) return;
  const torch::NoGradGuard no_grad;
  loss_sum_ = loss_sum_.defined() ? loss_sum_ + result.loss_sum : result.loss_sum.clone();
  examples_ += result.examples;
}

// Returns the row of the current step, which may be the end of an epoch as well as a validation.
History::Row& HistoryHook::row_of(const Training& training) {
  if (history_.rows.empty() || history_.rows.back().step != training.step) {
    History::Row row{.step = training.step, .epoch = training.epoch};
    if (loss_sum_.defined()) row.loss = loss_sum_.item<double>() / static_cast<double>(examples_);
    history_.rows.push_back(std::move(row));
    loss_sum_ = torch::Tensor();
    examples_ = 0;
  }
  return history_.rows.back();
}

void HistoryHook::end_epoch(Training& training) { row_of(training); }

void HistoryHook::after_validation(Training& training, const std::map<std::string, double>& values) {
  for (const auto& [name, value] : values) row_of(training).validation[name] = value;
}

Snapshot HistoryHook::state() const {
  Json rows = Json::array();
  for (const History::Row& row : history_.rows) {
    Json validation = Json::object();
    for (const auto& [name, value] : row.validation) validation[name] = json_of_number(value);
    Json json = {{"step", row.step}, {"epoch", row.epoch}, {"validation", std::move(validation)}};
    if (row.loss) json["loss"] = json_of_number(*row.loss);
    rows.push_back(std::move(json));
  }
  Snapshot state;
  state.values = {{"rows", std::move(rows)}, {"examples", examples_}};
  if (loss_sum_.defined()) state.values["loss_sum"] = json_of_number(loss_sum_.item<double>());
  return state;
}

void HistoryHook::restore(const Snapshot& saved) {
  const auto number = [](const Json& value) { return number_of_json(value, "a value of the history"); };
  const Json& state = saved.values;
  history_.rows.clear();
  for (const Json& json : state.at("rows")) {
    History::Row row{.step = json.at("step").get<int64_t>(), .epoch = json.at("epoch").get<int64_t>()};
    for (const auto& [name, value] : json.at("validation").items()) row.validation[name] = number(value);
    if (const auto loss = json.find("loss"); loss != json.end()) row.loss = number(*loss);
    history_.rows.push_back(std::move(row));
  }
  examples_ = state.at("examples").get<int64_t>();
  const auto sum = state.find("loss_sum");
  loss_sum_ = sum != state.end() ? torch::full({}, number(*sum), torch::kDouble) : torch::Tensor();
  restored_ = true;
}

namespace {

using Handle = std::weak_ptr<const data::Source>;

bool is_same(const Handle& a, const Handle& b) { return !a.owner_before(b) && !b.owner_before(a); }

constexpr const char* kSteps = "steps";
// So many that the correction of the average for its beginning is none, whatever the decay.
constexpr int64_t kManySteps = int64_t{1} << 40;

// Copies of the vectors of all trained parameters.
std::vector<torch::Tensor> copies_of(const Parameters& parameters) {
  std::vector<torch::Tensor> copies;
  for (const Section& block : parameters.blocks()) copies.push_back(block.values.detach().clone());
  return copies;
}

std::string full_name(const MovingAverage::Net& net, const Parameters::View& view) {
  return net.name.empty() ? view.name : net.name + "." + view.name;
}

}  // namespace

size_t FeedsSeen::number_of(const data::Feed& feed, const std::vector<data::ExampleRange>& ranges) {
  const std::vector<Handle> sources = feed.weak_sources();
  const std::string recipe = feed.recipe();
  const auto find = [&](const auto& matches) {
    return std::find_if(seen_.begin(), seen_.end(), [&](const Seen& seen) {
      return seen.size == feed.size() && seen.order == feed.order() && seen.ranges == ranges &&
             seen.recipe == recipe &&
             std::equal(seen.sources.begin(), seen.sources.end(), sources.begin(), sources.end(), matches);
    });
  };
  auto found = find(is_same);
  if (found == seen_.end())
    found = find([](const Handle& seen, const Handle& now) { return seen.expired() || is_same(seen, now); });
  if (found == seen_.end()) found = seen_.insert(found, {{}, recipe, feed.size(), feed.order(), ranges});
  found->sources = sources;
  return static_cast<size_t>(found - seen_.begin());
}

MovingAverage::MovingAverage(std::vector<Net> nets) : nets_(std::move(nets)) {
  for (const Net& net : nets_) {
    if (!(net.decay > 0 && net.decay < 1))
      fail(ErrorKind::InvalidArgument,
           "the decay of a moving average is {}, expected a number between 0 and 1", net.decay);
  }
}

void MovingAverage::after_start(Training&) {
  if (!has_begun_) restart();
}

void MovingAverage::restart() {
  for (Net& net : nets_) net.average = copies_of(net.parameters);
  has_begun_ = true;
  steps_ = 0;
}

void MovingAverage::after_step(Training&, const StepResult&) {
  const torch::NoGradGuard no_grad;
  ++steps_;
  for (Net& net : nets_) {
    const double weight = AverageWeights{net.decay}.newest(steps_);
    for (size_t i = 0; i < net.average.size(); ++i)
      net.average[i].lerp_(net.parameters.blocks()[i].values, weight);
  }
}

void Training::with_average(const std::function<void()>& body) const {
  if (average != nullptr)
    average->with_average(body);
  else
    body();
}

void MovingAverage::with_average(const std::function<void()>& body) {
  has_begun_ && !swapped_ ? while_swapped(body) : body();
}

void MovingAverage::without_average(const std::function<void()>& body) {
  swapped_ ? while_swapped(body) : body();
}

void MovingAverage::while_swapped(const std::function<void()>& body) {
  swap();
  try {
    body();
  } catch (...) {
    swap();
    throw;
  }
  swap();
}

void MovingAverage::swap() {
  const torch::NoGradGuard no_grad;
  for (Net& net : nets_) {
    for (size_t i = 0; i < net.average.size(); ++i) {
      const torch::Tensor values = net.parameters.blocks()[i].values.detach();
      const torch::Tensor before = values.clone();
      values.copy_(net.average[i]);
      net.average[i].copy_(before);
    }
    if (net.tables != nullptr)
      net.tables->look_up_values(swapped_ ? embedding::RowValues::Last : embedding::RowValues::Average);
  }
  swapped_ = !swapped_;
}

store::NamedTensors MovingAverage::tensors() const {
  store::NamedTensors all;
  if (!has_begun_) return all;
  for (const Net& net : nets_) {
    for (const auto& view : net.parameters.trained())
      all.push_back({full_name(net, view), net.parameters.view_of(view, net.average[view.block])});
  }
  return all;
}

StatePart MovingAverage::part() {
  return {[this] {
            if (!has_begun_) restart();
            return Snapshot{.tensors = tensors(), .values = {{kSteps, steps_}}};
          },
          [this](const Snapshot& saved) { restore_average(saved); }};
}

// Versions that did not save the number of steps began the average with the initial values. Such an average
// goes on as it did there.
void MovingAverage::restore_average(const Snapshot& saved) {
  const store::TensorsByName by_name = store::by_name(saved.tensors);
  std::vector<std::vector<torch::Tensor>> averages;
  for (const Net& net : nets_) {
    averages.push_back(copies_of(net.parameters));
    for (const auto& view : net.parameters.trained()) {
      const std::string name = full_name(net, view);
      const auto found = by_name.find(name);
      torch::Tensor own = net.parameters.view_of(view, averages.back()[view.block]);
      if (found == by_name.end() || found->second.sizes() != own.sizes())
        fail(ErrorKind::InvalidArgument,
             "the moving average in the checkpoint does not fit the model: '{}' {}", name,
             found == by_name.end() ? "is missing" : "has another shape");
      own.copy_(found->second);
    }
  }
  for (size_t i = 0; i < nets_.size(); ++i) nets_[i].average = std::move(averages[i]);
  has_begun_ = true;
  steps_ = saved.values.contains(kSteps) ? value_in<int64_t>(saved.values, kSteps, "the moving average")
                                         : kManySteps;
}

void DeviceClock::begin_step() {
  if (device_.is_cuda()) begin_.emplace(device_);
}

void DeviceClock::end_step() {
  if (!begin_) return;
  under_way_.emplace_back(*std::exchange(begin_, std::nullopt), compat::TimedEvent(device_));
  add_passed();
}

void DeviceClock::add_passed() {
  while (!under_way_.empty() && under_way_.front().second.passed()) {
    const auto& [begin, end] = under_way_.front();
    if (const auto passed = begin.milliseconds_until(end))
      milliseconds_ = milliseconds_.value_or(0) + *passed;
    under_way_.pop_front();
  }
}

std::optional<double> DeviceClock::seconds() {
  if (!under_way_.empty()) under_way_.back().second.wait();
  add_passed();
  if (!milliseconds_) return std::nullopt;
  return *milliseconds_ / 1000;
}

}  // namespace tutti
