#include "tutti/data/arrangement.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/data/permutation.h"

namespace tutti::data {
namespace {

class Skipping final : public Arrangement {
 public:
  Skipping(int64_t size, int64_t count) : size_(size), count_(std::min(size, count)) {}

  int64_t size() const override { return size_ - count_; }
  PartExample at(int64_t example) const override { return {0, count_ + example}; }
  std::string text() const override { return fmt::format("skip {}", count_); }

 private:
  const int64_t size_;
  const int64_t count_;
};

class Drawn final : public Arrangement {
 public:
  Drawn(int64_t size, int64_t begin, int64_t end, int64_t seed)
      : order_(size, mix(static_cast<uint64_t>(seed) + 0x9fb21c651e98df25ULL)),
        begin_(begin),
        end_(end),
        seed_(seed) {}

  int64_t size() const override { return end_ - begin_; }
  PartExample at(int64_t example) const override { return {0, order_(begin_ + example)}; }
  std::string text() const override {
    return fmt::format("{} to {} in the order of seed {}", begin_, end_, seed_);
  }

 private:
  const Permutation order_;
  const int64_t begin_;
  const int64_t end_;
  const int64_t seed_;
};

// Returns 0, and the sums of the first 1, 2, ... numbers.
std::vector<int64_t> sums_of(const std::vector<int64_t>& numbers) {
  std::vector<int64_t> sums = {0};
  for (const int64_t number : numbers) sums.push_back(sums.back() + number);
  return sums;
}

class OneAfterAnother final : public Arrangement {
 public:
  explicit OneAfterAnother(const std::vector<int64_t>& sizes) : begins_(sums_of(sizes)) {}

  int64_t size() const override { return begins_.back(); }
  PartExample at(int64_t example) const override {
    const auto next = std::upper_bound(begins_.begin(), begins_.end(), example);
    return {static_cast<size_t>(next - begins_.begin()) - 1, example - *(next - 1)};
  }
  std::string text() const override { return "concat"; }

 private:
  const std::vector<int64_t> begins_;  // of each part, and the end of the last one
};

// The parts are the leaves of a binary tree. A node with n positions, of which l belong to its left half,
// sends position p to the left if floor((p l + phase) / n) is less than floor(((p + 1) l + phase) / n): so
// the first p positions have that many of the left half before them, and its share differs from p l / n by
// less than one.
class Interleaved final : public Arrangement {
 public:
  Interleaved(std::vector<int64_t> sizes, std::vector<int64_t> counts, int64_t seed)
      : sizes_(std::move(sizes)), counts_(std::move(counts)), sums_(sums_of(counts_)), seed_(seed) {}

  int64_t size() const override { return sums_.back(); }

  PartExample at(int64_t example) const override {
    int64_t position = example;
    size_t begin = 0;
    size_t end = counts_.size();
    while (end - begin > 1) {
      const size_t middle = begin + (end - begin) / 2;
      const int64_t before = of_left(begin, middle, end, position);
      if (of_left(begin, middle, end, position + 1) > before) {
        position = before;
        end = middle;
      } else {
        position -= before;
        begin = middle;
      }
    }
    return {begin, position % sizes_[begin]};
  }

  std::string text() const override {
    return fmt::format("mix {} by seed {}", fmt::join(counts_, " : "), seed_);
  }

 private:
  // Returns the number of positions of the left half among the first `positions` of a node.
  int64_t of_left(size_t begin, size_t middle, size_t end, int64_t positions) const {
    __extension__ using Wide = unsigned __int128;
    const auto all = static_cast<uint64_t>(sums_[end] - sums_[begin]);
    const auto left = static_cast<uint64_t>(sums_[middle] - sums_[begin]);
    const uint64_t phase =
        mix(mix(static_cast<uint64_t>(seed_) + 0xd6e8feb86659fd93ULL) ^ (begin << 32 | end)) % all;
    return static_cast<int64_t>((Wide{static_cast<uint64_t>(positions)} * left + phase) / all);
  }

  const std::vector<int64_t> sizes_;
  const std::vector<int64_t> counts_;
  const std::vector<int64_t> sums_;
  const int64_t seed_;
};

}  // namespace

std::shared_ptr<const Arrangement> skipping(int64_t size, int64_t count) {
  return std::make_shared<Skipping>(size, count);
}

std::shared_ptr<const Arrangement> drawn(int64_t size, int64_t begin, int64_t end, int64_t seed) {
  return std::make_shared<Drawn>(size, begin, end, seed);
}

std::shared_ptr<const Arrangement> one_after_another(const std::vector<int64_t>& sizes) {
  return std::make_shared<OneAfterAnother>(sizes);
}

std::shared_ptr<const Arrangement> interleaved(std::vector<int64_t> sizes, std::vector<int64_t> counts,
                                               int64_t seed) {
  return std::make_shared<Interleaved>(std::move(sizes), std::move(counts), seed);
}

}  // namespace tutti::data
