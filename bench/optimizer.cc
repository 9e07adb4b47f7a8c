// Compares torch::optim on whole flat vectors and on slices that fit into the cache, which is what Tutti
// does, with the time of the memory accesses alone. One core; prints Markdown.
#include "tutti/params/optimizer.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "bench/sides.h"

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

// The limit set by memory: a step of Adam reads four vectors and writes three, as many bytes as copying three
// and a half vectors.
class CopyOfAsManyBytes {
 public:
  explicit CopyOfAsManyBytes(int64_t elements) : from_(bytes_of(elements), 1), to_(bytes_of(elements), 2) {}
  void run() { std::memcpy(to_.data(), from_.data(), from_.size()); }

 private:
  static size_t bytes_of(int64_t elements) { return static_cast<size_t>(elements) * sizeof(float) * 7 / 2; }

  std::vector<char> from_;
  std::vector<char> to_;
};

void compare(int64_t elements, int rounds) {
  const Vectors vectors(elements);
  torch::Tensor whole = vectors.values.clone().requires_grad_(true);
  whole.mutable_grad() = vectors.grads;
  torch::optim::Adam torch_adam({whole}, torch::optim::AdamOptions(1e-4));
  tutti::Optimizer sliced({{vectors.values, vectors.grads}}, torch::optim::AdamOptions(1e-4));
  CopyOfAsManyBytes copy(elements);
  std::vector<double> a;
  std::vector<double> b;
  std::vector<double> c;
  for (int round = 0; round < rounds + 2; ++round) {
    const double of_whole = milliseconds([&] { torch_adam.step(); });
    const double of_slices = milliseconds([&] { sliced.step(); });
    const double of_copy = milliseconds([&] { copy.run(); });
    if (round < 2) continue;  // the first rounds allocate memory
    a.push_back(of_whole);
    b.push_back(of_slices);
    c.push_back(of_copy);
  }
  const double torch_ms = bench::median(a);
  const double sliced_ms = bench::median(b);
  const double copy_ms = bench::median(c);
  fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |\n", elements, torch_ms, sliced_ms, copy_ms,
             torch_ms / sliced_ms, sliced_ms / copy_ms);
}

}  // namespace

int main() {
  bench::pin_to_one_core();
  at::set_num_threads(1);
  fmt::print(
      "## Optimiser\n\nAdam, one core, median of milliseconds per step: `torch::optim` on the whole vector; "
      "the same in slices of {} elements, as Tutti does it, with the same bits; and a copy of as many bytes "
      "as a step reads and writes (`./dev bench optimizer`).\n\n| parameters | whole | slices | copying | "
      "whole / slices | slices / copying |\n|---|---|---|---|---|---|\n",
      tutti::Optimizer::kChunkElements);
  compare(kMnistParameters, 101);
  compare(kLarge, 7);
  return 0;
}
