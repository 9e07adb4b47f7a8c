#include "examples/05_descriptors/make_data.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "tutti/kernels/same_functions.h"

namespace {

constexpr int kDescriptors = 210;
constexpr int kHidden = 5;

class Chance {
 public:
  explicit Chance(uint64_t seed) : words_(seed) {}
  // Returns a number in [0, 1).
  double uniform() { return static_cast<double>(words_() >> 11) * 0x1p-53; }
  // Returns a number with mean 0 and variance 1: the sum of twelve uniform ones.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }
  template <class T>
  void shuffle(std::vector<T>& all) {
    for (size_t left = all.size(); left > 1; --left)
      std::swap(all[left - 1], all[static_cast<size_t>(uniform() * static_cast<double>(left))]);
  }

 private:
  std::mt19937_64 words_;
};

// Computes a descriptor from the hidden numbers: a mixture of them, in a separate unit for each descriptor.
struct Descriptor {
  explicit Descriptor(Chance& chance)
      : offset(100 * chance.normal()), unit(tutti::same::exp(2 * chance.normal())) {
    for (double& weight : weights) weight = chance.normal();
  }
  double value_of(const std::array<double, kHidden>& hidden, Chance& chance) const {
    double sum = 0.3 * chance.normal();
    for (int i = 0; i < kHidden; ++i) sum += weights[i] * hidden[i];
    return offset + unit * sum;
  }

  std::array<double, kHidden> weights;
  double offset;
  double unit;
};

bool is_active(const std::array<double, kHidden>& hidden, Chance& chance) {
  const auto& [a, b, c, d, e] = hidden;
  return 2 * a + 0.5 * b * c + tutti::same::sin(d) + 0.4 * (e * e - 1) + 0.05 * chance.normal() > 0;
}

}  // namespace

void make_data(const std::string& folder, int64_t rows, int64_t shards, uint64_t seed) {
  // The set of descriptors is the same for all data.
  Chance nature(1);
  std::vector<Descriptor> descriptors;
  for (int i = 0; i < kDescriptors; ++i) descriptors.emplace_back(nature);

  Chance chance(seed);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < rows; ++i) ids.push_back(i);
  chance.shuffle(ids);
  for (int64_t shard = 0; shard < shards; ++shard) {
    const std::filesystem::path path = std::filesystem::path(folder) / fmt::format("shard{}", shard);
    std::filesystem::create_directories(path);
    std::ofstream table(path / "descriptors.tsv", std::ios::binary);
    table << "ID";
    for (int i = 0; i < kDescriptors; ++i) table << "\td" << i;
    table << "\n";
    std::vector<std::string> targets;
    for (int64_t i = shard * rows / shards; i < (shard + 1) * rows / shards; ++i) {
      const std::string id = fmt::format("thing{:05}-{}", ids[static_cast<size_t>(i)], seed);
      std::array<double, kHidden> hidden;
      for (double& number : hidden) number = 4 * chance.uniform() - 2;
      std::string line = id;
      for (const Descriptor& descriptor : descriptors) {
        const double number = descriptor.value_of(hidden, chance);
        line += chance.uniform() < 0.01 ? std::string("\t") : fmt::format("\t{:.6g}", number);
      }
      table << line << "\n";
      const bool active = is_active(hidden, chance);
      targets.push_back(fmt::format("{}\t{}\n", id, chance.uniform() < 0.02 ? "NA" : active ? "1" : "0"));
    }
    chance.shuffle(targets);
    std::ofstream answers(path / "targets.tsv", std::ios::binary);
    answers << "ID\tactive\n";
    for (const std::string& line : targets) answers << line;
  }
}
