#include "examples/10_clicks/clicks.h"

#include <cmath>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>

#include "tutti/base/hashes.h"
#include "tutti/data/source.h"
#include "tutti/kernels/same_functions.h"

namespace example {
namespace {

using tutti::Batch;
using tutti::kGoldenBits;

// Returns a number in [0, 1) from random bits.
double unit(uint64_t word) {
  return static_cast<double>(tutti::mix_bits(word + kGoldenBits) >> 11) * 0x1p-53;
}

// Returns a number in [-0.5, 0.5) for each id of a table, or for each of the 13 numbers.
double centred(int64_t table, int64_t id) {
  return unit(static_cast<uint64_t>(id) * kGoldenBits + static_cast<uint64_t>(table)) - 0.5;
}

constexpr double kScale = 3;

// Returns what an id adds to the logit, which is less for rarer ids.
double effect_of_id(int64_t table, int64_t id) {
  constexpr double kFrequentIds = 4;
  return centred(table, id) * kScale * std::sqrt(kFrequentIds / (kFrequentIds + static_cast<double>(id)));
}

double effect_of_number(int64_t number) { return centred(kTables, number) * kScale; }

class Clicks final : public tutti::data::Source {
 public:
  explicit Clicks(const ClickOptions& options) : options_(options) {}

  int64_t size() const override { return options_.examples; }

  Batch read(std::span<const int64_t> examples) const override {
    const auto size = static_cast<int64_t>(examples.size());
    std::vector<torch::Tensor> ids;
    std::vector<int64_t*> id;
    for (int64_t table = 0; table < kTables; ++table) {
      ids.push_back(torch::empty({size}, torch::kLong));
      id.push_back(static_cast<int64_t*>(ids.back().data_ptr()));
    }
    const torch::Tensor numbers = torch::empty({size, kNumbers});
    const torch::Tensor click = torch::empty({size});
    const torch::Tensor truth = torch::empty({size});
    auto* number = static_cast<float*>(numbers.data_ptr());
    for (int64_t i = 0; i < size; ++i) {
      uint64_t state = tutti::mix_bits(options_.seed * kGoldenBits) ^
                       static_cast<uint64_t>(examples[static_cast<size_t>(i)] + 1) * kGoldenBits;
      const auto draw = [&] { return unit(state += kGoldenBits); };
      double logit = -0.5;
      for (int64_t table = 0; table < kTables; ++table) {
        const double u = draw();
        const auto one = static_cast<int64_t>(static_cast<double>(options_.rows) * u * u * u * u);
        id[static_cast<size_t>(table)][i] = one;
        logit += effect_of_id(table, one);
      }
      for (int64_t k = 0; k < kNumbers; ++k, ++number) {
        *number = static_cast<float>(2 * draw() - 1);
        logit += static_cast<double>(*number) * effect_of_number(k);
      }
      const bool is_click = draw() < 1 / (1 + tutti::same::exp(-logit));
      static_cast<float*>(click.data_ptr())[i] = is_click ? 1 : 0;
      static_cast<float*>(truth.data_ptr())[i] = static_cast<float>(logit);
    }
    Batch::Tensors tensors;
    for (int64_t table = 0; table < kTables; ++table)
      tensors.emplace_back(id_column(table), ids[static_cast<size_t>(table)]);
    tensors.emplace_back("numbers", numbers);
    tensors.emplace_back("click", click);
    tensors.emplace_back("truth", truth);
    return Batch(std::move(tensors));
  }

  std::string parts() const override {
    return fmt::format("clicks of seed {} with {} rows", options_.seed, options_.rows);
  }

 private:
  const ClickOptions options_;
};

}  // namespace

std::string id_column(int64_t table) { return fmt::format("id{}", table); }

tutti::data::Feed clicks(const ClickOptions& options) {
  return tutti::data::Feed(std::make_shared<Clicks>(options));
}

}  // namespace example
