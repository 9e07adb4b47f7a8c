#include "tutti/metrics/score_counts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "tutti/base/check.h"

namespace tutti::metrics {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr size_t kCountersOfBin = 3;

// Maps a number to an unsigned integer of the same size, so that the integers have the order of the numbers.
uint32_t key_of(float number) {
  const auto bits = std::bit_cast<uint32_t>(number);
  return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFU : 0x80000000U);
}
uint64_t key_of(double number) {
  const auto bits = std::bit_cast<uint64_t>(number);
  return bits ^ (bits >> 63 != 0 ? ~uint64_t{0} : uint64_t{1} << 63);
}
double number_of(uint32_t key) {
  return std::bit_cast<float>(key ^ (key >> 31 != 0 ? 0x80000000U : 0xFFFFFFFFU));
}
double number_of(uint64_t key) {
  return std::bit_cast<double>(key ^ (key >> 63 != 0 ? uint64_t{1} << 63 : ~uint64_t{0}));
}

// Sorts keys digit by digit, beginning with the last (LSD radix sort). Digits are as long as the distance of
// the smallest key from the largest requires, so that most scores take two passes.
template <class Key>
void radix_sort(std::vector<Key>& keys) {
  constexpr int kMostBits = 13;
  constexpr size_t kFew = size_t{1} << kMostBits;
  if (std::is_sorted(keys.begin(), keys.end())) return;
  if (keys.size() < kFew) {
    std::sort(keys.begin(), keys.end());
    return;
  }
  const auto [smallest, largest] = std::minmax_element(keys.begin(), keys.end());
  const Key least = *smallest;
  const int all_bits = std::bit_width(static_cast<Key>(*largest - least));
  const int passes = (all_bits + kMostBits - 1) / kMostBits;
  const int bits = (all_bits + passes - 1) / passes;
  const auto mask = static_cast<Key>((Key{1} << bits) - 1);
  std::vector<Key> other(keys.size());
  for (int shift = 0; shift < all_bits; shift += bits) {
    std::vector<size_t> place(size_t{mask} + 1);
    for (const Key key : keys) ++place[(key - least) >> shift & mask];
    size_t sum = 0;
    for (size_t& count : place) sum += std::exchange(count, sum);
    for (const Key key : keys) other[place[(key - least) >> shift & mask]++] = key;
    keys.swap(other);
  }
}

// Passes over the keys of this score, from `at` on, and returns how many there are.
template <class Key>
uint64_t count_equal(const std::vector<Key>& keys, size_t& at, double score) {
  const size_t first = at;
  while (at < keys.size() && number_of(keys[at]) == score) ++at;
  return at - first;
}

}  // namespace

template <class Score, class Key>
bool ScoreCounts::add_to(Classes<Key>& classes, const torch::Tensor& scores, const torch::Tensor& labels) {
  constexpr int64_t kChunk = 4096;
  const torch::Tensor as_doubles = labels.to(torch::kDouble);
  const auto* score = static_cast<const Score*>(scores.data_ptr());
  const auto* label = static_cast<const double*>(as_doubles.data_ptr());
  const std::array<size_t, 2> before = {classes[0].size(), classes[1].size()};
  std::array<std::array<Key, kChunk>, 2> keys;
  int64_t bad = 0;
  for (int64_t begin = 0; begin < scores.numel(); begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, scores.numel());
    std::array<size_t, 2> count{};
    for (int64_t i = begin; i < end; ++i) {
      const Score one = score[i] + Score{0};  // -0 becomes 0
      const bool is_positive = label[i] == 1;
      const bool is_negative = label[i] == 0;
      keys[0][count[0]] = keys[1][count[1]] = key_of(one);
      count[0] += is_negative ? 1 : 0;
      count[1] += is_positive ? 1 : 0;
      const bool is_missing = label[i] != label[i];
      const bool is_bad = (!is_positive && !is_negative) || one != one;
      bad += is_bad && !is_missing ? 1 : 0;
    }
    for (size_t c = 0; c < 2; ++c)
      classes[c].insert(classes[c].end(), keys[c].begin(), keys[c].begin() + static_cast<int64_t>(count[c]));
  }
  for (size_t c = 0; c < 2; ++c) {
    if (bad > 0) classes[c].resize(before[c]);
    totals_[c] += classes[c].size() - before[c];
  }
  return bad == 0;
}

bool ScoreCounts::add(const torch::Tensor& scores, const torch::Tensor& labels) {
  const bool are_good = scores.scalar_type() == torch::kFloat ? add_to<float>(narrow_, scores, labels)
                                                              : add_to<double>(wide_, scores, labels);
  if (kept() >= compact_at_) compact();
  return are_good;
}

size_t ScoreCounts::kept() const {
  return narrow_[0].size() + narrow_[1].size() + wide_[0].size() + wide_[1].size() + bins_.size();
}

// Puts all scores into bins if many are equal, else waits for twice as many. A bin takes as much memory as
// six scores of 32 bits.
void ScoreCounts::compact() {
  size_t distinct = 0;
  each_bin([&](double, uint64_t, uint64_t) { ++distinct; });
  compact_at_ = std::max(kFirstCompaction, 2 * kept());
  if (6 * distinct > kept()) return;
  bins_ = bins();
  narrow_ = {};
  wide_ = {};
  compact_at_ = kFirstCompaction + bins_.size();
}

void ScoreCounts::sort() const {
  for (auto& keys : narrow_) radix_sort(keys);
  for (auto& keys : wide_) radix_sort(keys);
  const auto is_less = [](const Bin& a, const Bin& b) { return a.score < b.score; };
  if (!std::is_sorted(bins_.begin(), bins_.end(), is_less)) std::sort(bins_.begin(), bins_.end(), is_less);
}

template <class Visit>
void ScoreCounts::each_bin(const Visit& visit) const {
  sort();
  std::array<size_t, 2> narrow{};
  std::array<size_t, 2> wide{};
  size_t bin = 0;
  for (;;) {
    std::optional<double> score;
    const auto consider = [&](double other) { score = score && *score <= other ? *score : other; };
    for (size_t c = 0; c < 2; ++c) {
      if (narrow[c] < narrow_[c].size()) consider(number_of(narrow_[c][narrow[c]]));
      if (wide[c] < wide_[c].size()) consider(number_of(wide_[c][wide[c]]));
    }
    if (bin < bins_.size()) consider(bins_[bin].score);
    if (!score) return;
    std::array<uint64_t, 2> counts{};
    for (size_t c = 0; c < 2; ++c)
      counts[c] = count_equal(narrow_[c], narrow[c], *score) + count_equal(wide_[c], wide[c], *score);
    for (; bin < bins_.size() && bins_[bin].score == *score; ++bin) {
      counts[0] += static_cast<uint64_t>(bins_[bin].negatives);
      counts[1] += static_cast<uint64_t>(bins_[bin].positives);
    }
    visit(*score, counts[1], counts[0]);
  }
}

std::vector<double> ScoreCounts::counters() const {
  std::vector<double> counters;
  each_bin([&](double score, uint64_t positives, uint64_t negatives) {
    counters.insert(counters.end(), {score, static_cast<double>(positives), static_cast<double>(negatives)});
  });
  return counters;
}

void ScoreCounts::merge(std::span<const double> counters) {
  TUTTI_CHECK(counters.size() % kCountersOfBin == 0, "{} counters, not a multiple of 3", counters.size());
  for (size_t i = 0; i < counters.size(); i += kCountersOfBin) {
    const Bin bin{counters[i], counters[i + 1], counters[i + 2]};
    totals_[0] += static_cast<uint64_t>(bin.negatives);
    totals_[1] += static_cast<uint64_t>(bin.positives);
    const size_t c = bin.positives > 0 ? 1 : 0;
    const auto as_float = static_cast<float>(bin.score);
    if (bin.positives + bin.negatives > 1)
      bins_.push_back(bin);
    else if (static_cast<double>(as_float) == bin.score)
      narrow_[c].push_back(key_of(as_float));
    else
      wide_[c].push_back(key_of(bin.score));
  }
}

// Mann and Whitney's statistic: the sum, over the positives, of the number of negatives with lower scores
// plus half the number of negatives with the same score. Computed as twice that, in whole numbers.
std::optional<double> ScoreCounts::auc() const {
  if (positives() == 0 || negatives() == 0) return std::nullopt;
  Wide doubled = 0;
  uint64_t below = 0;
  each_bin([&](double, uint64_t of_class_1, uint64_t of_class_0) {
    doubled += static_cast<Wide>(of_class_1) * (2 * static_cast<Wide>(below) + of_class_0);
    below += of_class_0;
  });
  return static_cast<double>(doubled) / 2 / static_cast<double>(negatives()) /
         static_cast<double>(positives());
}

std::vector<Bin> ScoreCounts::bins() const {
  std::vector<Bin> bins;
  each_bin([&](double score, uint64_t positives, uint64_t negatives) {
    bins.push_back({score, static_cast<double>(positives), static_cast<double>(negatives)});
  });
  return bins;
}

}  // namespace tutti::metrics
