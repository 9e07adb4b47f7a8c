#include "tutti/metrics/metric.h"

#include <cmath>

#include "tutti/base/check.h"
#include "tutti/metrics/finite.h"

namespace tutti::metrics {
namespace {

// The format of the counters of one metric: their number, the number of counters that are not finite, then
// the position and the code of each of these, then all counters, with 0 in these positions.
constexpr size_t kHead = 2;

// Reads numbers one after the other.
class Reader {
 public:
  explicit Reader(std::span<const double> numbers) : left_(numbers) {}

  std::span<const double> read(size_t count) {
    TUTTI_CHECK(count <= left_.size(), "{} counters are left, but {} are needed", left_.size(), count);
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  size_t read_size() {
    const double size = read(1)[0];
    TUTTI_CHECK(size >= 0 && size <= static_cast<double>(left_.size()), "a size of {}", size);
    return static_cast<size_t>(size);
  }
  bool is_at_end() const { return left_.empty(); }

 private:
  std::span<const double> left_;
};

}  // namespace

std::vector<double> counters_of(const List& list) {
  std::vector<double> all;
  for (const MetricPtr& metric : list) {
    std::vector<double> counters = metric->counters();
    std::vector<double> codes;
    for (size_t i = 0; i < counters.size(); ++i) {
      if (std::isfinite(counters[i])) continue;
      codes.insert(codes.end(), {static_cast<double>(i), code_of(counters[i])});
      counters[i] = 0;
    }
    all.reserve(all.size() + kHead + codes.size() + counters.size());
    all.insert(all.end(), {static_cast<double>(counters.size()), static_cast<double>(codes.size())});
    all.insert(all.end(), codes.begin(), codes.end());
    all.insert(all.end(), counters.begin(), counters.end());
  }
  return all;
}

void merge(const List& list, std::span<const double> counters) {
  Reader reader(counters);
  for (const MetricPtr& metric : list) {
    const size_t size = reader.read_size();
    const std::span<const double> codes = reader.read(reader.read_size());
    const std::span<const double> finite = reader.read(size);
    if (codes.empty()) {
      metric->merge(finite);
      continue;
    }
    TUTTI_CHECK(codes.size() % 2 == 0, "{} numbers of positions and codes", codes.size());
    std::vector<double> numbers(finite.begin(), finite.end());
    for (size_t i = 0; i < codes.size(); i += 2)
      numbers.at(static_cast<size_t>(codes[i])) = number_of_code(codes[i + 1]);
    metric->merge(numbers);
  }
  TUTTI_CHECK(reader.is_at_end(), "there are more counters than those of {} metrics", list.size());
}

}  // namespace tutti::metrics
