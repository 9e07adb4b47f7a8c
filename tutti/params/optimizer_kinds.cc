#include "tutti/params/optimizer_kinds.h"

#include <cstring>

#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/torch_compat.h"

namespace tutti::optimizer_kinds {
namespace {

// The options of an ElementwiseOptimizer for one group. They are not an OptimizerCloneableOptions, because
// newer versions of LibTorch look into the fields of those.
struct ElementwiseGroup final : torch::optim::OptimizerOptions {
  ElementwiseGroup(double with_rate, double with_weight_decay)
      : rate(with_rate), weight_decay(with_weight_decay) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<ElementwiseGroup>(*this);
  }
  double get_lr() const override { return rate; }
  void set_lr(const double lr) override { rate = lr; }

  double rate;
  double weight_decay;
};

// Runs an ElementwiseOptimizer in the form of an optimiser of torch::optim.
class ElementwiseSteps final : public torch::optim::Optimizer {
 public:
  // `initial` are the values with which the slots begin.
  ElementwiseSteps(const ParamGroups& groups, const ElementwiseOptimizer& own, std::vector<double> initial)
      : Optimizer(groups, std::make_unique<ElementwiseGroup>(own.rate, own.weight_decay)),
        own_(own),
        initial_(std::move(initial)) {}
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  const ElementwiseOptimizer own_;
  const std::vector<double> initial_;
};

torch::Tensor ElementwiseSteps::step(LossClosure /*closure*/) {
  const torch::NoGradGuard no_grad;
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const ElementwiseGroup&>(group.options());
    for (const torch::Tensor& values : group.params()) {
      auto& kept = state_[compat::optimizer_state_key(*this, values)];
      if (!kept) {
        auto fresh = std::make_unique<ElementwiseState>();
        for (const double initial : initial_)
          fresh->slots.push_back(torch::full_like(values.detach(), initial));
        kept = std::move(fresh);
      }
      auto& state = static_cast<ElementwiseState&>(*kept);
      ++state.step;
      own_.update(
          {values.detach(), values.grad(), state.slots, options.rate, options.weight_decay, state.step});
    }
  }
  return {};
}

SlotViews views_of(ElementwiseState& state, const std::vector<std::string>& names) {
  state.slots.resize(names.size());
  SlotViews views;
  for (size_t i = 0; i < names.size(); ++i) views.push_back({names[i], &state.slots[i]});
  return views;
}

const std::vector<std::string>& ftrl_slots() {
  static const std::vector<std::string> kSlots = {"accumulator", "linear"};
  return kSlots;
}

// Compares bits, so that NaN equals itself.
bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.numel() == b.numel() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0;
}

// A vector of numbers with slots, which update() changes as a whole or in two parts.
struct Trial {
  explicit Trial(size_t slot_count) {
    for (size_t i = 0; i < slot_count; ++i) slots.push_back(torch::zeros_like(values));
  }

  void update(const ElementwiseOptimizer& own, int64_t step, int64_t begin, int64_t end) const {
    std::vector<torch::Tensor> parts;
    for (const torch::Tensor& slot : slots) parts.push_back(slot.narrow(0, begin, end - begin));
    own.update({values.narrow(0, begin, end - begin), grads.narrow(0, begin, end - begin), parts, own.rate,
                own.weight_decay, step});
  }

  static constexpr int64_t kElements = 203;
  torch::Tensor values = torch::sin(torch::arange(kElements, torch::kFloat32));
  // Small and large ones.
  torch::Tensor grads = torch::cos(torch::arange(kElements, torch::kFloat32) * 3) *
                        torch::pow(10, torch::arange(kElements, torch::kFloat32).remainder(7) - 3);
  std::vector<torch::Tensor> slots;
};

}  // namespace

SlotViews Kind<ElementwiseOptimizer>::slots(State& state, const ElementwiseOptimizer& options) {
  return views_of(state, options.slots);
}

Json Kind<ElementwiseOptimizer>::json(const ElementwiseOptimizer& options) {
  Json json = {{"lr", options.rate}, {"weight_decay", options.weight_decay}, {"slots", options.slots}};
  for (const auto& [name, number] : options.numbers) json[name] = number;
  return json;
}

std::unique_ptr<torch::optim::Optimizer> Kind<ElementwiseOptimizer>::make(
    const ParamGroups& groups, const ElementwiseOptimizer& options) {
  return std::make_unique<ElementwiseSteps>(groups, options, std::vector<double>(options.slots.size(), 0));
}

void Kind<ElementwiseOptimizer>::set_weight_decay(torch::optim::OptimizerOptions& options,
                                                  double weight_decay) {
  static_cast<ElementwiseGroup&>(options).weight_decay = weight_decay;
}

SlotViews Kind<FtrlOptions>::slots(State& state, const FtrlOptions&) { return views_of(state, ftrl_slots()); }

Json Kind<FtrlOptions>::json(const FtrlOptions& options) {
  return {{"lr", options.rate},
          {"lr_power", options.rate_power},
          {"initial_accumulator_value", options.initial_accumulator_value},
          {"l1", options.l1},
          {"l2", options.l2},
          {"l2_shrinkage", options.l2_shrinkage},
          {"beta", options.beta}};
}

FtrlOptions Kind<FtrlOptions>::options(const Json& json) {
  return {.rate = json.at("lr").get<double>(),
          .rate_power = json.at("lr_power").get<double>(),
          .initial_accumulator_value = json.at("initial_accumulator_value").get<double>(),
          .l1 = json.at("l1").get<double>(),
          .l2 = json.at("l2").get<double>(),
          .l2_shrinkage = json.at("l2_shrinkage").get<double>(),
          .beta = json.at("beta").get<double>()};
}

std::unique_ptr<torch::optim::Optimizer> Kind<FtrlOptions>::make(const ParamGroups& groups,
                                                                 const FtrlOptions& options) {
  const ElementwiseOptimizer steps{
      .name = kName,
      .rate = options.rate,
      .weight_decay = 2 * options.l2_shrinkage,
      .slots = ftrl_slots(),
      .update = [options](const ElementwiseUpdate& update) { make_ftrl_step(options, update); }};
  return std::make_unique<ElementwiseSteps>(groups, steps,
                                            std::vector<double>{options.initial_accumulator_value, 0});
}

void Kind<FtrlOptions>::set_weight_decay(torch::optim::OptimizerOptions& options, double weight_decay) {
  static_cast<ElementwiseGroup&>(options).weight_decay = weight_decay;
}

void require_elementwise(const ElementwiseOptimizer& own) {
  constexpr int64_t kCut = 77;
  const torch::NoGradGuard no_grad;
  const Trial whole(own.slots.size());
  const Trial cut(own.slots.size());
  for (const int64_t step : {1, 2}) {
    whole.update(own, step, 0, Trial::kElements);
    cut.update(own, step, 0, kCut);
    cut.update(own, step, kCut, Trial::kElements);
  }
  if (!same_bits(whole.grads, Trial(0).grads))
    fail(ErrorKind::InvalidArgument,
         "the optimiser {} changes the gradients, which other workers may still need: compute with a copy",
         own.name);
  bool same = same_bits(whole.values, cut.values);
  for (size_t i = 0; i < own.slots.size(); ++i) same = same && same_bits(whole.slots[i], cut.slots[i]);
  if (!same)
    fail(
        ErrorKind::InvalidArgument,
        "the optimiser {} does not work element by element: a part of a vector gets other values than in the "
        "whole vector, so the result would depend on the number of workers. If it needs whole parameters, "
        "such as their norms, write it as a torch::optim::Optimizer and use a ReplicatedOptimizer",
        own.name);
}

}  // namespace tutti::optimizer_kinds
