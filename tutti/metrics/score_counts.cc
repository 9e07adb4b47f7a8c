#include "tutti/metrics/score_counts.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti::metrics {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr size_t kCountersOfBin = 3;

template <class Number>
bool is_nan(Number number) {
  if constexpr (std::is_floating_point_v<Number>) return number != number;
  return false;
}

// Sorts keys digit by digit, beginning with the last (LSD radix sort). Digits are as long as the distance of
// the smallest key from the largest requires, so that most scores take two passes.
template <class Key>
void radix_sort(std::vector<Key, LargePages<Key>>& keys) {
  constexpr int kMostBits = 13;
  constexpr size_t kFew = size_t{1} << kMostBits;
  if (std::is_sorted(keys.begin(), keys.end())) return;
  if (keys.size() < kFew) {
    std::sort(keys.begin(), keys.end());
    return;
  }
  Key least = keys.front();
  Key most = keys.front();
  for (const Key key : keys) {
    least = std::min(least, key);
    most = std::max(most, key);
  }
  const int all_bits = std::bit_width(static_cast<Key>(most - least));
  const int passes = (all_bits + kMostBits - 1) / kMostBits;
  const int bits = (all_bits + passes - 1) / passes;
  const size_t digits = size_t{1} << bits;
  const auto mask = static_cast<Key>(digits - 1);
  // First the counts of the digits of each pass, then their places.
  std::vector<size_t> places(static_cast<size_t>(passes) * digits);
  for (const Key key : keys) {
    Key rest = key - least;
    for (size_t* place = places.data(); place != places.data() + places.size(); place += digits) {
      ++place[rest & mask];
      rest >>= bits;
    }
  }
  std::vector<Key, LargePages<Key>> other(keys.size());
  Key* from = keys.data();
  Key* to = other.data();
  for (int pass = 0; pass < passes; ++pass) {
    size_t* const place = places.data() + static_cast<size_t>(pass) * digits;
    size_t sum = 0;
    for (size_t i = 0; i < digits; ++i) sum += std::exchange(place[i], sum);
    const int shift = pass * bits;
    for (size_t i = 0; i < keys.size(); ++i) to[place[(from[i] - least) >> shift & mask]++] = from[i];
    std::swap(from, to);
  }
  if (from != keys.data()) std::copy(from, from + keys.size(), keys.data());
}

}  // namespace

template <class Key>
void KeyCounts<Key>::add(Run run) {
  if (run.count == 1) {
    keys_.push_back(run.key);
  } else if (run.count > 0) {
    runs_.push_back(run);
    in_runs_ += run.count;
  }
}

template <class Key>
void KeyCounts<Key>::sort() const {
  radix_sort(keys_);
  const auto is_less = [](const Run& a, const Run& b) { return a.key < b.key; };
  if (!std::is_sorted(runs_.begin(), runs_.end(), is_less)) std::sort(runs_.begin(), runs_.end(), is_less);
  size_t kept = 0;
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (kept > 0 && runs_[kept - 1].key == runs_[i].key)
      runs_[kept - 1].count += runs_[i].count;
    else
      runs_[kept++] = runs_[i];
  }
  runs_.resize(kept);
}

template <class Key>
typename KeyCounts<Key>::Cursor KeyCounts<Key>::begin() const {
  sort();
  return {keys_, runs_};
}

template <class Key>
void KeyCounts<Key>::compact() {
  if (keys_.size() < compact_at_) return;
  sort();
  size_t distinct = 0;
  for (size_t i = 0; i < keys_.size(); ++i) distinct += i == 0 || keys_[i] != keys_[i - 1] ? 1 : 0;
  // A run takes as much memory as four keys of 32 bits. If there is little to save, waits for twice as many.
  if (4 * distinct > keys_.size()) {
    compact_at_ = 2 * keys_.size();
    return;
  }
  std::vector<Run> runs;
  for (Cursor left(keys_, runs_); !left.is_at_end();) {
    const Key key = left.key();
    runs.push_back({key, left.take(key)});
  }
  in_runs_ += keys_.size();
  keys_.clear();
  runs_ = std::move(runs);
}

template class KeyCounts<uint32_t>;
template class KeyCounts<uint64_t>;

template <class Key, class Score, class Label>
bool ScoreCounts::add_each(Classes<Key>& classes, const Score* score, const Label* label, int64_t size) {
  constexpr int64_t kChunk = 4096;
  std::array<Key, kChunk> positives;
  std::array<Key, kChunk> negatives;
  int64_t bad = 0;
  for (int64_t begin = 0; begin < size; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, size);
    size_t positive = 0;
    size_t negative = 0;
    for (int64_t i = begin; i < end; ++i) {
      const Score one = score[i] + Score{0};  // -0 becomes 0
      const bool is_positive = label[i] == Label{1};
      const bool is_negative = label[i] == Label{0};
      const bool is_missing = is_nan(label[i]);
      const Key key = key_of(one);
      positives[positive] = key;
      negatives[negative] = key;
      positive += is_positive ? 1 : 0;
      negative += is_negative ? 1 : 0;
      const bool is_bad = (!is_positive && !is_negative) || one != one;
      bad += is_bad && !is_missing ? 1 : 0;
    }
    classes.positives.add({positives.data(), positive});
    classes.negatives.add({negatives.data(), negative});
  }
  return bad == 0;
}

template <class Score, class Key>
bool ScoreCounts::add(Classes<Key>& classes, const torch::Tensor& scores, const torch::Tensor& labels) {
  const uint64_t positives_before = classes.positives.size();
  const uint64_t negatives_before = classes.negatives.size();
  const auto add_with = [&](const auto* label) {
    return add_each(classes, static_cast<const Score*>(scores.data_ptr()), label, scores.numel());
  };
  const bool is_other = labels.scalar_type() != torch::kLong && labels.scalar_type() != torch::kFloat;
  const torch::Tensor as_doubles = is_other ? labels.to(torch::kDouble) : torch::Tensor();
  bool are_good = false;
  if (labels.scalar_type() == torch::kLong)
    are_good = add_with(static_cast<const int64_t*>(labels.data_ptr()));
  else if (labels.scalar_type() == torch::kFloat)
    are_good = add_with(static_cast<const float*>(labels.data_ptr()));
  else
    are_good = add_with(static_cast<const double*>(as_doubles.data_ptr()));
  if (are_good) {
    classes.positives.compact();
    classes.negatives.compact();
  } else {
    classes.positives.shrink(positives_before);
    classes.negatives.shrink(negatives_before);
  }
  return are_good;
}

bool ScoreCounts::add(const torch::Tensor& scores, const torch::Tensor& labels) {
  return scores.scalar_type() == torch::kFloat ? add<float>(narrow_, scores, labels)
                                               : add<double>(wide_, scores, labels);
}

std::vector<double> ScoreCounts::counters() const {
  std::vector<double> counters;
  for (const Bin& bin : bins()) counters.insert(counters.end(), {bin.score, bin.positives, bin.negatives});
  return counters;
}

void ScoreCounts::merge(std::span<const double> counters) {
  TUTTI_CHECK(counters.size() % kCountersOfBin == 0, "{} counters, not a multiple of 3", counters.size());
  const auto add_bin = [](auto& classes, auto key, double positives, double negatives) {
    classes.positives.add({key, static_cast<uint64_t>(positives)});
    classes.negatives.add({key, static_cast<uint64_t>(negatives)});
  };
  for (size_t i = 0; i < counters.size(); i += kCountersOfBin) {
    const double score = counters[i];
    const auto as_float = static_cast<float>(score);
    if (static_cast<double>(as_float) == score)
      add_bin(narrow_, key_of(as_float), counters[i + 1], counters[i + 2]);
    else
      add_bin(wide_, key_of(score), counters[i + 1], counters[i + 2]);
  }
}

void ScoreCounts::unite() const {
  if (wide_.positives.size() + wide_.negatives.size() == 0) return;
  const auto move = [](const KeyCounts<uint32_t>& from, KeyCounts<uint64_t>& to) {
    for (auto left = from.begin(); !left.is_at_end();) {
      const uint32_t key = left.key();
      to.add({key_of(number_of(key)), left.take(key)});
    }
  };
  move(narrow_.positives, wide_.positives);
  move(narrow_.negatives, wide_.negatives);
  narrow_ = {};
}

// The sum over the positives of twice the number of negatives with lower scores, plus that of negatives with
// the same score, divided by 2: Mann and Whitney's statistic.
template <class Key>
double ScoreCounts::statistic(const Classes<Key>& classes) {
  Wide doubled = 0;
  uint64_t below = 0;
  auto negatives = classes.negatives.begin();
  for (auto positives = classes.positives.begin(); !positives.is_at_end();) {
    const Key key = positives.key();
    while (!negatives.is_at_end() && negatives.key() < key) below += negatives.take(negatives.key());
    const uint64_t ties = negatives.take(key);
    doubled += static_cast<Wide>(positives.take(key)) * (2 * static_cast<Wide>(below) + ties);
    below += ties;
  }
  return static_cast<double>(doubled) / 2;
}

std::optional<double> ScoreCounts::auc() const {
  if (positives() == 0 || negatives() == 0) return std::nullopt;
  unite();
  const double ordered = narrow_.positives.size() > 0 ? statistic(narrow_) : statistic(wide_);
  return ordered / static_cast<double>(negatives()) / static_cast<double>(positives());
}

template <class Key>
std::vector<Bin> ScoreCounts::bins(const Classes<Key>& classes) {
  std::vector<Bin> bins;
  auto positives = classes.positives.begin();
  auto negatives = classes.negatives.begin();
  while (!positives.is_at_end() || !negatives.is_at_end()) {
    const Key key = positives.is_at_end()   ? negatives.key()
                    : negatives.is_at_end() ? positives.key()
                                            : std::min(positives.key(), negatives.key());
    const auto of_positives = static_cast<double>(positives.take(key));
    bins.push_back({number_of(key), of_positives, static_cast<double>(negatives.take(key))});
  }
  return bins;
}

std::vector<Bin> ScoreCounts::bins() const {
  unite();
  return wide_.positives.size() + wide_.negatives.size() > 0 ? bins(wide_) : bins(narrow_);
}

}  // namespace tutti::metrics
