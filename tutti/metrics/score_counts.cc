#include "tutti/metrics/score_counts.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti::metrics {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr size_t kCountersOfBin = 3;

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
  const auto [least, most] = std::minmax_element(keys.begin(), keys.end());
  const Key base = *least;
  const int all_bits = std::bit_width(static_cast<Key>(*most - base));
  const int passes = (all_bits + kMostBits - 1) / kMostBits;
  const int bits = (all_bits + passes - 1) / passes;
  const Key mask = (Key{1} << bits) - 1;
  const auto digit = [=](Key key, int pass) {
    return static_cast<size_t>((key - base) >> (pass * bits) & mask);
  };
  // First the counts of digits, then their places.
  std::vector<std::vector<size_t>> places(static_cast<size_t>(passes), std::vector<size_t>(mask + 1));
  for (const Key key : keys) {
    for (int pass = 0; pass < passes; ++pass) ++places[static_cast<size_t>(pass)][digit(key, pass)];
  }
  std::vector<Key, LargePages<Key>> other(keys.size());
  Key* from = keys.data();
  Key* to = other.data();
  for (int pass = 0; pass < passes; ++pass) {
    size_t* const place = places[static_cast<size_t>(pass)].data();
    size_t sum = 0;
    for (size_t i = 0; i <= mask; ++i) sum += std::exchange(place[i], sum);
    for (size_t i = 0; i < keys.size(); ++i) to[place[digit(from[i], pass)]++] = from[i];
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

template <class Score, class Key>
void ScoreCounts::add(Classes<Key>& classes, const Expected& expected, const torch::Tensor& scores,
                      const torch::Tensor& labels) {
  constexpr int64_t kChunk = 4096;
  const int64_t size = scores.numel();
  const auto* score = static_cast<const Score*>(scores.data_ptr());
  const uint64_t positives_before = classes.positives.size();
  const uint64_t negatives_before = classes.negatives.size();
  std::array<Key, kChunk> positives;
  std::array<Key, kChunk> negatives;
  int64_t bad_labels = 0;
  int64_t nans = 0;
  for (int64_t begin = 0; begin < size; begin += kChunk) {
    const int64_t count = std::min(kChunk, size - begin);
    const torch::Tensor chunk = labels.narrow(0, begin, count).to(torch::kDouble);
    const auto* label = static_cast<const double*>(chunk.data_ptr());
    size_t positive = 0;
    size_t negative = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Score one = score[begin + i] + Score{0};  // -0 becomes 0
      const bool is_positive = label[i] == 1;
      const bool is_negative = label[i] == 0;
      const Key key = key_of(one);
      positives[positive] = key;
      negatives[negative] = key;
      positive += is_positive ? 1 : 0;
      negative += is_negative ? 1 : 0;
      bad_labels += !is_positive && !is_negative && label[i] == label[i] ? 1 : 0;
      nans += one != one && label[i] == label[i] ? 1 : 0;
    }
    classes.positives.add({positives.data(), positive});
    classes.negatives.add({negatives.data(), negative});
  }
  if (bad_labels == 0 && nans == 0) {
    classes.positives.compact();
    classes.negatives.compact();
    return;
  }
  classes.positives.shrink(positives_before);
  classes.negatives.shrink(negatives_before);
  fail(ErrorKind::InvalidArgument, "{}: {} of {} {}", expected.metric, bad_labels > 0 ? bad_labels : nans,
       size,
       bad_labels > 0 ? fmt::format("labels in '{}' are not 0, 1 or missing (NaN)", expected.label)
                      : "predictions are NaN");
}

void ScoreCounts::add(const Expected& expected, const torch::Tensor& scores, const torch::Tensor& labels) {
  if (scores.scalar_type() == torch::kFloat)
    add<float>(narrow_, expected, scores, labels);
  else
    add<double>(wide_, expected, scores, labels);
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
