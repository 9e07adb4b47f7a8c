#include "tutti/embedding/row_optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/kernels/same_functions.h"

namespace tutti::embedding {
namespace {

constexpr const char* kRowwiseAdagrad = "rowwise_adagrad";

float* data_of(const torch::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

[[noreturn]] void refuse(const std::string& table, const std::string& what) {
  fail(ErrorKind::InvalidArgument,
       "the rows of '{}' cannot be trained with {}; choose another optimiser for the table: "
       "EmbeddingOptions::optimizer",
       table, what);
}

void fetch_for_writing(const float* numbers, int64_t count) {
  constexpr int64_t kInLine = 16;  // floats in a line of the cache
  for (int64_t i = 0; i < count; i += kInLine) __builtin_prefetch(numbers + i, 1);
}

// Calls `update(values, slots, gradient)` for each row, with pointers to its numbers.
template <size_t Slots, class Update>
void for_each_row(const torch::Tensor& values, const std::vector<RowOptimizer::Slot>& slots,
                  std::span<const int64_t> rows, std::span<const float> gradients, int64_t dim,
                  const Update& update) {
  std::array<float*, Slots> begin;
  std::array<int64_t, Slots> width;
  for (size_t i = 0; i < Slots; ++i) {
    begin[i] = data_of(slots[i].tensor);
    width[i] = slots[i].tensor.dim() == 1 ? 1 : dim;
  }
  float* const all = data_of(values);
  constexpr size_t kAhead = 8;  // rows are far apart, so each is fetched before it is needed
  for (size_t i = 0; i < rows.size(); ++i) {
    if (const size_t next = i + kAhead; next < rows.size() && rows[next] >= 0) {
      fetch_for_writing(all + rows[next] * dim, dim);
      for (size_t slot = 0; slot < Slots; ++slot)
        fetch_for_writing(begin[slot] + rows[next] * width[slot], width[slot]);
    }
    if (rows[i] < 0) continue;
    std::array<float*, Slots> of_row;
    for (size_t slot = 0; slot < Slots; ++slot) of_row[slot] = begin[slot] + rows[i] * width[slot];
    update(all + rows[i] * dim, of_row, gradients.data() + static_cast<int64_t>(i) * dim);
  }
}

struct Numbers {
  const torch::Tensor& values;
  const std::vector<RowOptimizer::Slot>& slots;
  std::span<const int64_t> rows;
  std::span<const float> gradients;
  int64_t dim;
  double rate;
  int64_t step;

  template <size_t Slots, class Update>
  void each(const Update& update) const {
    for_each_row<Slots>(values, slots, rows, gradients, dim, update);
  }
};

void update(const torch::optim::SGDOptions& options, const Numbers& on) {
  const auto rate = static_cast<float>(on.rate);
  const auto decay = static_cast<float>(options.weight_decay());
  const auto momentum = static_cast<float>(options.momentum());
  const bool nesterov = options.nesterov();
  const int64_t dim = on.dim;
  if (momentum == 0) {
    on.each<0>([&](float* __restrict v, const auto&, const float* __restrict g) {
      for (int64_t i = 0; i < dim; ++i) v[i] -= rate * (g[i] + decay * v[i]);
    });
    return;
  }
  on.each<1>([&](float* __restrict v, const auto& slots, const float* __restrict g) {
    float* __restrict buffer = slots[0];
    for (int64_t i = 0; i < dim; ++i) {
      const float gradient = g[i] + decay * v[i];
      buffer[i] = momentum * buffer[i] + gradient;
      v[i] -= rate * (nesterov ? gradient + momentum * buffer[i] : buffer[i]);
    }
  });
}

void update(const torch::optim::AdagradOptions& options, const Numbers& on) {
  const auto rate = static_cast<float>(on.rate / (1 + static_cast<double>(on.step - 1) * options.lr_decay()));
  const auto decay = static_cast<float>(options.weight_decay());
  const auto eps = static_cast<float>(options.eps());
  const int64_t dim = on.dim;
  on.each<1>([&](float* __restrict v, const auto& slots, const float* __restrict g) {
    float* __restrict sum = slots[0];
    for (int64_t i = 0; i < dim; ++i) {
      const float gradient = g[i] + decay * v[i];
      sum[i] += gradient * gradient;
      v[i] -= rate * gradient / (std::sqrt(sum[i]) + eps);
    }
  });
}

void update(const RowwiseAdagrad& options, const Numbers& on) {
  const auto rate = static_cast<float>(on.rate);
  const auto eps = static_cast<float>(options.eps);
  const int64_t dim = on.dim;
  on.each<1>([&](float* __restrict v, const auto& slots, const float* __restrict g) {
    float squares = 0;
    for (int64_t i = 0; i < dim; ++i) squares += g[i] * g[i];
    *slots[0] += squares / static_cast<float>(dim);
    const float factor = rate / (std::sqrt(*slots[0]) + eps);
    for (int64_t i = 0; i < dim; ++i) v[i] -= factor * g[i];
  });
}

// Adam and AdamW, which takes the decay off the weights instead of adding it to the gradient.
template <class Options>
void update_adam(const Options& options, const Numbers& on, bool decays_weights) {
  const auto [beta1, beta2] = options.betas();
  const auto step = static_cast<double>(on.step);
  const auto rate = static_cast<float>(on.rate / (1 - same::pow(beta1, step)));
  const auto root = static_cast<float>(std::sqrt(1 - same::pow(beta2, step)));
  const auto decay = static_cast<float>(decays_weights ? 0 : options.weight_decay());
  const auto kept = static_cast<float>(decays_weights ? 1 - on.rate * options.weight_decay() : 1);
  const auto eps = static_cast<float>(options.eps());
  const auto b1 = static_cast<float>(beta1);
  const auto b2 = static_cast<float>(beta2);
  const auto new1 = static_cast<float>(1 - beta1);
  const auto new2 = static_cast<float>(1 - beta2);
  const int64_t dim = on.dim;
  on.each<2>([&](float* __restrict v, const auto& slots, const float* __restrict g) {
    float* __restrict average = slots[0];
    float* __restrict squares = slots[1];
    for (int64_t i = 0; i < dim; ++i) {
      const float gradient = g[i] + decay * v[i];
      average[i] = b1 * average[i] + new1 * gradient;
      squares[i] = b2 * squares[i] + new2 * gradient * gradient;
      v[i] = kept * v[i] - rate * average[i] / (std::sqrt(squares[i]) / root + eps);
    }
  });
}
void update(const torch::optim::AdamOptions& options, const Numbers& on) { update_adam(options, on, false); }
void update(const torch::optim::AdamWOptions& options, const Numbers& on) { update_adam(options, on, true); }

void update(const torch::optim::RMSpropOptions& options, const Numbers& on) {
  const auto rate = static_cast<float>(on.rate);
  const auto decay = static_cast<float>(options.weight_decay());
  const auto alpha = static_cast<float>(options.alpha());
  const auto fresh = static_cast<float>(1 - options.alpha());
  const auto eps = static_cast<float>(options.eps());
  const int64_t dim = on.dim;
  on.each<1>([&](float* __restrict v, const auto& slots, const float* __restrict g) {
    float* __restrict squares = slots[0];
    for (int64_t i = 0; i < dim; ++i) {
      const float gradient = g[i] + decay * v[i];
      squares[i] = alpha * squares[i] + fresh * gradient * gradient;
      v[i] -= rate * gradient / (std::sqrt(squares[i]) + eps);
    }
  });
}

// `powered(n, to, dim)` writes n^-p, which for the usual power is a square root.
template <class Powered>
void update_ftrl(const FtrlOptions& options, const Numbers& on, const Powered& powered) {
  const auto rate = static_cast<float>(on.rate);
  const auto l1 = static_cast<float>(options.l1);
  const auto l2 = static_cast<float>(2 * options.l2);
  const auto shrinkage = static_cast<float>(2 * options.l2_shrinkage);
  const auto beta = static_cast<float>(options.beta);
  const int64_t dim = on.dim;
  std::vector<float> before(static_cast<size_t>(dim));
  std::vector<float> now(static_cast<size_t>(dim));
  on.each<2>([&](float* __restrict v, const auto& slots, const float* __restrict g) {
    float* __restrict accumulator = slots[0];
    float* __restrict linear = slots[1];
    powered(accumulator, before.data(), dim);
    for (int64_t i = 0; i < dim; ++i) accumulator[i] += g[i] * g[i];
    powered(accumulator, now.data(), dim);
    for (int64_t i = 0; i < dim; ++i) {
      const auto at = static_cast<size_t>(i);
      linear[i] += g[i] + v[i] * (shrinkage - (now[at] - before[at]) / rate);
      const float beyond = std::abs(linear[i]) - l1;
      const float quadratic = (now[at] + beta) / rate + l2;
      // A NaN stays one.
      if (beyond <= 0)
        v[i] = 0;
      else if (quadratic != 0)
        v[i] = -std::copysign(beyond, linear[i]) / quadratic;
    }
  });
}

void update(const FtrlOptions& options, const Numbers& on) {
  if (on.rate == 0) return;
  if (options.rate_power == -0.5) {
    return update_ftrl(options, on, [](const float* __restrict n, float* __restrict to, int64_t dim) {
      for (int64_t i = 0; i < dim; ++i) to[i] = std::sqrt(n[i]);
    });
  }
  const double power = -options.rate_power;
  update_ftrl(options, on, [&](const float* n, float* to, int64_t dim) {
    kernels::apply<float>(kernels::Function::PowScalar,
                          {.in = {n, nullptr, nullptr}, .out = to, .count = dim}, &power);
  });
}

// The slots of an optimiser by name, with the value that they begin with; one value per row if it is rowwise.
struct SlotPlan {
  std::string name;
  double initial = 0;
  bool is_rowwise = false;
};

struct PlanOf {
  const std::string& table;

  std::vector<SlotPlan> operator()(const torch::optim::SGDOptions& options) const {
    if (options.dampening() != 0) refuse(table, "the dampening of SGD");
    return options.momentum() == 0 ? std::vector<SlotPlan>{} : std::vector<SlotPlan>{{"momentum_buffer"}};
  }
  std::vector<SlotPlan> operator()(const torch::optim::AdagradOptions& options) const {
    return {{"sum", options.initial_accumulator_value()}};
  }
  template <class Adam>
  std::vector<SlotPlan> adam(const Adam& options) const {
    if (options.amsgrad()) refuse(table, "AMSGrad");
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  std::vector<SlotPlan> operator()(const torch::optim::AdamOptions& options) const { return adam(options); }
  std::vector<SlotPlan> operator()(const torch::optim::AdamWOptions& options) const { return adam(options); }
  std::vector<SlotPlan> operator()(const torch::optim::RMSpropOptions& options) const {
    if (options.momentum() != 0 || options.centered()) refuse(table, "momentum or centred RMSprop");
    return {{"square_avg"}};
  }
  std::vector<SlotPlan> operator()(const FtrlOptions& options) const {
    return {{"accumulator", options.initial_accumulator_value}, {"linear"}};
  }
  std::vector<SlotPlan> operator()(const ElementwiseOptimizer& options) const {
    std::vector<SlotPlan> plan;
    for (const std::string& name : options.slots) plan.push_back({name});
    return plan;
  }
  std::vector<SlotPlan> operator()(const ReplicatedOptimizer& options) const {
    refuse(table, fmt::format("the optimiser '{}', which updates a model as a whole", options.name));
  }
  std::vector<SlotPlan> operator()(const RowwiseAdagrad&) const { return {{"row_sum", 0, true}}; }
  std::vector<SlotPlan> operator()(const OptimizerOptions& options) const {
    return std::visit(*this, options.kind);
  }
};

double rate_of(const ElementwiseOptimizer& options) { return options.rate; }
double rate_of(const FtrlOptions& options) { return options.rate; }
double rate_of(const ReplicatedOptimizer&) { return 0; }
template <class Options>
double rate_of(const Options& options) {
  return options.lr();
}

}  // namespace

double learning_rate_of(const RowOptimizerOptions& options) {
  if (const auto* rowwise = std::get_if<RowwiseAdagrad>(&options.kind)) return rowwise->rate;
  return std::visit([](const auto& kind) { return rate_of(kind); },
                    std::get<OptimizerOptions>(options.kind).kind);
}

Json to_json(const RowOptimizerOptions& options) {
  if (const auto* rowwise = std::get_if<RowwiseAdagrad>(&options.kind))
    return {{"name", kRowwiseAdagrad}, {"lr", rowwise->rate}, {"eps", rowwise->eps}};
  return tutti::to_json(std::get<OptimizerOptions>(options.kind));
}

RowOptimizerOptions row_optimizer_of_json(const Json& json, std::span<const ElementwiseOptimizer> own) {
  const std::string what = "the optimiser of a table";
  if (value_in<std::string>(json, "name", what) != kRowwiseAdagrad) return optimizer_from_json(json, own);
  return RowwiseAdagrad{.rate = value_in<double>(json, "lr", what),
                        .eps = value_in<double>(json, "eps", what)};
}

RowOptimizer::RowOptimizer(const std::string& table, RowOptimizerOptions options, int64_t rows, int64_t dim,
                           const MakeRows& make)
    : options_(std::move(options)), dim_(dim) {
  for (const SlotPlan& plan : std::visit(PlanOf{table}, options_.kind)) {
    const std::vector<int64_t> shape =
        plan.is_rowwise ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, dim};
    slots_.push_back({plan.name,
                      make ? make(shape, torch::kFloat32, plan.initial)
                           : torch::full(shape, plan.initial, torch::kFloat32),
                      plan.initial});
  }
}

void RowOptimizer::resize(int64_t rows, const RowPlace& place) {
  for (Slot& slot : slots_) slot.tensor = enlarged(place, slot.tensor, rows);
}

void RowOptimizer::begin_row(int64_t row) {
  for (const Slot& slot : slots_) {
    const int64_t width = slot.tensor.dim() == 1 ? 1 : dim_;
    std::fill_n(data_of(slot.tensor) + row * width, width, static_cast<float>(slot.initial));
  }
}

void RowOptimizer::step(const torch::Tensor& values, std::span<const int64_t> rows,
                        std::span<const float> gradients, double rate, int64_t step) {
  const Numbers on{values, slots_, rows, gradients, dim_, rate, step};
  if (const auto* rowwise = std::get_if<RowwiseAdagrad>(&options_.kind)) return update(*rowwise, on);
  std::visit(
      [&]<class Kind>(const Kind& kind) {
        if constexpr (std::is_same_v<Kind, ElementwiseOptimizer>)
          update_by_program(kind, values, rows, gradients, rate, step);
        else if constexpr (!std::is_same_v<Kind, ReplicatedOptimizer>)
          update(kind, on);
      },
      std::get<OptimizerOptions>(options_.kind).kind);
}

// Copies the rows out, updates them as one piece, and copies them back.
void RowOptimizer::update_by_program(const ElementwiseOptimizer& optimizer, const torch::Tensor& values,
                                     std::span<const int64_t> rows, std::span<const float> gradients,
                                     double rate, int64_t step) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> of_rows;
  std::vector<int64_t> of_gradients;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0) continue;
    of_rows.push_back(rows[i]);
    of_gradients.push_back(static_cast<int64_t>(i));
  }
  if (of_rows.empty()) return;
  const torch::Tensor index = torch::tensor(of_rows, torch::kLong);
  const torch::Tensor own = values.index_select(0, index).flatten();
  const torch::Tensor all = torch::from_blob(const_cast<float*>(gradients.data()),
                                             {static_cast<int64_t>(rows.size()), dim_}, torch::kFloat32);
  const torch::Tensor grads = all.index_select(0, torch::tensor(of_gradients, torch::kLong)).flatten();
  std::vector<torch::Tensor> kept;
  for (const Slot& slot : slots_) kept.push_back(slot.tensor.index_select(0, index).flatten());
  optimizer.update({.values = own,
                    .grads = grads,
                    .slots = kept,
                    .rate = rate,
                    .weight_decay = optimizer.weight_decay,
                    .step = step});
  const auto put_back = [&](const torch::Tensor& to, const torch::Tensor& piece) {
    to.index_copy_(0, index, piece.view({-1, dim_}));
  };
  put_back(values, own);
  for (size_t i = 0; i < slots_.size(); ++i) put_back(slots_[i].tensor, kept[i]);
}

}  // namespace tutti::embedding
