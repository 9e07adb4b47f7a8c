#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tutti::data {

// An example of one of the feeds that a feed is made of.
struct PartExample {
  size_t part = 0;
  int64_t example = 0;

  bool operator==(const PartExample&) const = default;
};

// Says which examples of its parts a combined feed has, and in which order. A pure function: it stores no
// list of examples. Const after construction.
class Arrangement {
 public:
  virtual ~Arrangement() = default;

  // The number of examples of the combined feed.
  virtual int64_t size() const = 0;
  // Requires 0 <= example < size().
  virtual PartExample at(int64_t example) const = 0;
  // All numbers that determine the arrangement, readable: "skip 10". Different arrangements of the same parts
  // have different texts.
  virtual std::string text() const = 0;
};

// All examples of a part of `size` examples but the first `count`.
std::shared_ptr<const Arrangement> skipping(int64_t size, int64_t count);

// The examples at the positions `begin` to `end` of a random order of a part of `size` examples, which `seed`
// determines.
std::shared_ptr<const Arrangement> drawn(int64_t size, int64_t begin, int64_t end, int64_t seed);

// All examples of the first part, then all of the second, and so on.
std::shared_ptr<const Arrangement> one_after_another(const std::vector<int64_t>& sizes);

// `counts[i]` examples of part i, spread evenly: among the first n positions every part has its share of n,
// rounded, give or take one for each time that the number of parts can be halved. `seed` determines the exact
// positions. The examples of each part come in their order, from the first one on, and again from the first
// one after its last. Requires that no count is negative, and that their sum is at most 2^53.
std::shared_ptr<const Arrangement> interleaved(std::vector<int64_t> sizes, std::vector<int64_t> counts,
                                               int64_t seed);

}  // namespace tutti::data
