// The negative log likelihood, which LibTorch makes cross_entropy of. Its gradient is LibTorch's.
#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/nll_loss2d_forward_cpu_dispatch.h>
#include <ATen/ops/nll_loss_forward_cpu_dispatch.h>

#include "tutti/kernels/operators.h"
#include "tutti/kernels/results.h"
#include "tutti/kernels/tensor_sums.h"

namespace tutti::kernels {
namespace {

// The terms are products -weight * x, exact in doubles, whose sum is made in the
// order of sums.h, as is the sum of the weights.

constexpr int64_t kNone = 0;  // the reductions of LibTorch
constexpr int64_t kMean = 1;

// Class c of example i is at data[example(i) + c * step].
template <class T>
struct Likelihoods {
  const T* data;
  int64_t step;
  int64_t classes;
};

// Writes the terms and their weights. Returns false if a target is no class.
template <class T, class Place>
bool terms_of(const Likelihoods<T>& x, const at::Tensor& targets, const at::Tensor& weights, int64_t ignored,
              const Place& example, double* terms, double* of_weights) {
  const auto* const target = targets.data_ptr<int64_t>();
  const T* const weight = weights.defined() ? weights.data_ptr<T>() : nullptr;
  const int64_t count = targets.numel();
  for (int64_t i = 0; i < count; ++i) {
    terms[i] = 0;
    of_weights[i] = 0;
    if (target[i] == ignored) continue;
    if (target[i] < 0 || target[i] >= x.classes) return false;
    of_weights[i] = weight == nullptr ? 1 : weight[target[i]];
    terms[i] = -of_weights[i] * static_cast<double>(x.data[example(i) + target[i] * x.step]);
  }
  return true;
}

template <class T>
bool make_terms(const at::Tensor& x, const at::Tensor& target, const at::Tensor& weight, int64_t ignored,
                double* terms) {
  double* const weights = terms + target.numel();
  const Likelihoods<T> all{x.data_ptr<T>(), x.dim() == 1 ? x.stride(0) : x.stride(1),
                           x.dim() == 1 ? x.size(0) : x.size(1)};
  if (x.dim() < 3) {
    const int64_t row = x.dim() == 2 ? x.stride(0) : 0;
    const auto example = [row](int64_t i) { return i * row; };
    return terms_of(all, target, weight, ignored, example, terms, weights);
  }
  const int64_t width = x.size(3);
  const int64_t pixels = x.size(2) * width;
  const auto pixel = [pixels, width, image = x.stride(0), row = x.stride(2),
                      column = x.stride(3)](int64_t i) {
    return i / pixels * image + i % pixels / width * row + i % width * column;
  };
  return terms_of(all, target, weight, ignored, pixel, terms, weights);
}

// Returns the sums of the terms and of their weights, which lie behind them.
std::array<double, 2> sums_of(const std::vector<double>& terms) {
  const auto count = static_cast<int64_t>(terms.size() / 2);
  const int64_t blocks = std::max<int64_t>(1, (count + kBlockTerms - 1) / kBlockTerms);
  std::vector<double> sums(static_cast<size_t>(2 * blocks));
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = block * kBlockTerms;
    sum_block(Terms::Elements,
              SumBlock<double>{terms.data() + first, nullptr, std::min(kBlockTerms, count - first), 1, 2,
                               count, 1, nullptr},
              sums.data() + 2 * block, 2);
  }
  join_blocks(Terms::Elements, sums.data(), blocks, 2);
  return {sums[0], sums[1]};
}

at::Tensor number(double value, const at::TensorOptions& options) {
  at::Tensor result = at::empty({}, options);
  if (result.scalar_type() != at::kFloat) return result.fill_(value);
  *result.data_ptr<float>() = static_cast<float>(value);  // fill_() takes longer than a small loss
  return result;
}

// Returns the loss and the sum of the weights, or nothing if LibTorch's kernel is to compute it: if nothing
// is summed, which is exact, or to refuse wrong operands.
std::optional<std::tuple<at::Tensor, at::Tensor>> likelihood(std::string_view name, const at::Tensor& self,
                                                             const at::Tensor& target,
                                                             const c10::optional<at::Tensor>& class_weight,
                                                             int64_t reduction, int64_t ignored) {
  const at::Tensor weight = class_weight.value_or(at::Tensor());
  if (reduction == kNone || target.scalar_type() != at::kLong) return std::nullopt;
  std::vector<int64_t> examples = self.sizes().vec();
  const int64_t class_dim = self.dim() == 1 ? 0 : 1;
  if (self.dim() != 1 && self.dim() != 2 && self.dim() != 4) return std::nullopt;
  examples.erase(examples.begin() + class_dim);
  const bool one_target = self.dim() == 1 && target.dim() == 1 && target.numel() == 1;
  if ((target.sizes() != at::IntArrayRef(examples) && !one_target) ||
      (weight.defined() && (weight.dim() != 1 || weight.numel() != self.size(class_dim) ||
                            weight.scalar_type() != self.scalar_type())))
    return std::nullopt;
  if (!are_reduced(name, self, weight)) return std::nullopt;

  const at::Tensor x = widened(self);
  const at::Tensor weights = weight.defined() ? widened(weight).contiguous() : weight;
  std::vector<double> terms(static_cast<size_t>(2 * target.numel()));
  const at::Tensor targets = target.contiguous();
  if (!(x.scalar_type() == at::kFloat ? make_terms<float>(x, targets, weights, ignored, terms.data())
                                      : make_terms<double>(x, targets, weights, ignored, terms.data())))
    return std::nullopt;
  const auto [loss, of_weights] = sums_of(terms);
  return std::tuple(number(reduction == kMean ? loss / of_weights : loss, self.options()),
                    number(of_weights, self.options()));
}

std::tuple<at::Tensor, at::Tensor> nll_loss(const at::Tensor& self, const at::Tensor& target,
                                            const c10::optional<at::Tensor>& weight, int64_t reduction,
                                            int64_t ignored) {
  if (self.dim() < 3)
    if (auto ours = likelihood("aten::nll_loss_forward", self, target, weight, reduction, ignored))
      return *ours;
  return at::cpu::nll_loss_forward(self, target, weight, reduction, ignored);
}

std::tuple<at::Tensor&, at::Tensor&> nll_loss_out(const at::Tensor& self, const at::Tensor& target,
                                                  const c10::optional<at::Tensor>& weight, int64_t reduction,
                                                  int64_t ignored, at::Tensor& out, at::Tensor& total) {
  if (self.dim() < 3) {
    if (auto ours = likelihood("aten::nll_loss_forward.output", self, target, weight, reduction, ignored)) {
      write_result(std::get<0>(*ours), out);
      write_result(std::get<1>(*ours), total);
      return {out, total};
    }
  }
  return at::cpu::nll_loss_forward_out(out, total, self, target, weight, reduction, ignored);
}

std::tuple<at::Tensor, at::Tensor> nll_loss2d(const at::Tensor& self, const at::Tensor& target,
                                              const c10::optional<at::Tensor>& weight, int64_t reduction,
                                              int64_t ignored) {
  if (self.dim() == 4)
    if (auto ours = likelihood("aten::nll_loss2d_forward", self, target, weight, reduction, ignored))
      return *ours;
  return at::cpu::nll_loss2d_forward(self, target, weight, reduction, ignored);
}

std::tuple<at::Tensor&, at::Tensor&> nll_loss2d_out(const at::Tensor& self, const at::Tensor& target,
                                                    const c10::optional<at::Tensor>& weight,
                                                    int64_t reduction, int64_t ignored, at::Tensor& out,
                                                    at::Tensor& total) {
  if (self.dim() == 4) {
    if (auto ours = likelihood("aten::nll_loss2d_forward.output", self, target, weight, reduction, ignored)) {
      write_result(std::get<0>(*ours), out);
      write_result(std::get<1>(*ours), total);
      return {out, total};
    }
  }
  return at::cpu::nll_loss2d_forward_out(out, total, self, target, weight, reduction, ignored);
}

}  // namespace

void register_likelihoods(Registrar& library) {
  library.impl("nll_loss_forward", nll_loss);
  library.impl("nll_loss_forward.output", nll_loss_out);
  library.impl("nll_loss2d_forward", nll_loss2d);
  library.impl("nll_loss2d_forward.output", nll_loss2d_out);
}

}  // namespace tutti::kernels
