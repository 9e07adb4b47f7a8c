// torch::optim on flat vectors: whole, in slices that fit into the cache (what Tutti does), and a pass written by hand that
// touches every element once. One core; prints Markdown.
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "bench/sides.h"
#include "tutti/params/optimizer.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMnistParameters = 1663370;
constexpr int64_t kLarge = 100000000;

double milliseconds(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Vectors {
  explicit Vectors(int64_t elements) : values(torch::rand({elements})), grads(torch::rand({elements})) {}
  torch::Tensor values;
  torch::Tensor grads;
};

// The fastest way there could be: all of Adam in one pass. It need not give the same bits.
class SinglePassAdam {
 public:
  explicit SinglePassAdam(const Vectors& vectors)
      : vectors_(vectors), average_(torch::zeros_like(vectors.values)), square_(torch::zeros_like(vectors.values)) {}

  __attribute__((optimize("O3", "no-math-errno", "no-trapping-math"), target_clones("avx512f", "avx2", "default"))) void step() {
    ++steps_;
    const auto bias1 = static_cast<float>(1 - std::pow(0.9, steps_));
    const auto bias2 = static_cast<float>(std::sqrt(1 - std::pow(0.999, steps_)));
    auto* __restrict values = vectors_.values.data_ptr<float>();
    const auto* __restrict grads = vectors_.grads.data_ptr<float>();
    auto* __restrict average = average_.data_ptr<float>();
    auto* __restrict square = square_.data_ptr<float>();
    const int64_t elements = vectors_.values.numel();
    const float rate = 1e-4F / bias1;
    for (int64_t i = 0; i < elements; ++i) {
      const float g = grads[i];
      const float m = average[i] * 0.9F + g * 0.1F;
      const float v = square[i] * 0.999F + g * g * 0.001F;
      average[i] = m;
      square[i] = v;
      values[i] -= rate * m / (__builtin_sqrtf(v) / bias2 + 1e-8F);
    }
  }

 private:
  const Vectors& vectors_;
  torch::Tensor average_;
  torch::Tensor square_;
  int steps_ = 0;
};

void compare(int64_t elements, int rounds) {
  const Vectors vectors(elements);
  torch::Tensor whole = vectors.values.clone().requires_grad_(true);
  whole.mutable_grad() = vectors.grads;
  torch::optim::Adam torch_adam({whole}, torch::optim::AdamOptions(1e-4));
  tutti::Optimizer sliced({{vectors.values, vectors.grads}}, torch::optim::AdamOptions(1e-4));
  const Vectors others(elements);
  SinglePassAdam single(others);
  std::vector<double> a;
  std::vector<double> b;
  std::vector<double> c;
  for (int round = 0; round < rounds + 2; ++round) {
    const double of_whole = milliseconds([&] { torch_adam.step(); });
    const double of_slices = milliseconds([&] { sliced.step(); });
    const double of_single = milliseconds([&] { single.step(); });
    if (round < 2) continue;  // the first ones allocate
    a.push_back(of_whole);
    b.push_back(of_slices);
    c.push_back(of_single);
  }
  const double torch_ms = bench::median(a);
  const double sliced_ms = bench::median(b);
  const double single_ms = bench::median(c);
  fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |\n", elements, torch_ms, sliced_ms, single_ms,
             torch_ms / sliced_ms, sliced_ms / single_ms);
}

}  // namespace

int main() {
  bench::pin_to_one_core();
  at::set_num_threads(1);
  fmt::print(
      "## Optimiser\n\nAdam, one core, milliseconds a step, median: `torch::optim` on the whole vector; the same in slices of {} "
      "elements, which is what Tutti does and gives the same bits; and one pass written by hand as the limit "
      "(`./dev bench optimizer`).\n\n| parameters | whole | slices | one pass by hand | whole / slices | slices / one pass |\n"
      "|---|---|---|---|---|---|\n",
      tutti::Optimizer::kSliceElements);
  compare(kMnistParameters, 101);
  compare(kLarge, 7);
  return 0;
}
