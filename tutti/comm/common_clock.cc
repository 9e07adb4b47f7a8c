#include "tutti/comm/common_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <torch/types.h>
#include <torch/utils.h>

namespace tutti::comm {
namespace {

constexpr int kRoundTrips = 20;
// The difference of readings closer together than this is dominated by their errors, not by drift.
constexpr int64_t kApart = 1'000'000'000;

int64_t& value(const torch::Tensor& one) { return *static_cast<int64_t*>(one.data_ptr()); }

ClockReading ask(Communicator& comm, int rank, const std::function<int64_t()>& now) {
  const torch::Tensor message = torch::zeros({1}, torch::kInt64);
  ClockReading best{.uncertainty = std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < kRoundTrips; ++i) {
    const int64_t sent = now();
    comm.send(message, rank, {.what = "a clock reading"}).wait();
    comm.recv(message, rank, {.what = "a clock reading"}).wait();
    const int64_t back = now();
    const int64_t half = (back - sent + 1) / 2;
    if (half < best.uncertainty) best = {value(message), sent + half - value(message), half};
  }
  return best;
}

void answer(Communicator& comm, const std::function<int64_t()>& now) {
  const torch::Tensor message = torch::zeros({1}, torch::kInt64);
  for (int i = 0; i < kRoundTrips; ++i) {
    comm.recv(message, 0, {.what = "a clock reading"}).wait();
    value(message) = now();
    comm.send(message, 0, {.what = "a clock reading"}).wait();
  }
}

}  // namespace

std::vector<ClockReading> compare_clocks(Communicator& comm, const std::vector<std::string>& hosts,
                                         const std::function<int64_t()>& now) {
  constexpr int64_t kNumbers = 3;
  const torch::NoGradGuard no_grad;
  const torch::Tensor readings = torch::zeros({comm.world(), kNumbers}, torch::kInt64);
  auto* row = static_cast<int64_t*>(readings.data_ptr());
  for (int rank = 0; rank < comm.world(); ++rank, row += kNumbers) {
    const auto first =
        std::find(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(rank)]) - hosts.begin();
    if (first == 0) {
      row[0] = now();  // any time will do: the offset is always 0
    } else if (first < rank) {
      std::copy_n(row - (rank - first) * kNumbers, kNumbers, row);
    } else if (comm.rank() == 0) {
      const ClockReading reading = ask(comm, rank, now);
      row[0] = reading.at;
      row[1] = reading.ahead;
      row[2] = reading.uncertainty;
    } else if (comm.rank() == rank) {
      answer(comm, now);
    }
  }
  comm.broadcast(readings, 0, {.what = "the clock readings"}).wait();
  std::vector<ClockReading> all;
  row = static_cast<int64_t*>(readings.data_ptr());
  for (int rank = 0; rank < comm.world(); ++rank, row += kNumbers) all.push_back({row[0], row[1], row[2]});
  return all;
}

CommonClock::CommonClock(const ClockReading& begin, const std::optional<ClockReading>& end)
    : begin_(begin), end_(end.value_or(begin)) {
  if (end_.at - begin_.at >= kApart) return;
  if (begin_.uncertainty <= end_.uncertainty) end_ = begin_;
  begin_ = end_;
}

int64_t CommonClock::operator()(int64_t own) const {
  const int64_t apart = end_.at - begin_.at;
  if (apart == 0 || own <= begin_.at) return own + begin_.ahead;
  if (own >= end_.at) return own + end_.ahead;
  const double part = static_cast<double>(own - begin_.at) / static_cast<double>(apart);
  return own + begin_.ahead + std::llround(part * static_cast<double>(end_.ahead - begin_.ahead));
}

int64_t CommonClock::uncertainty() const { return std::max(begin_.uncertainty, end_.uncertainty); }

}  // namespace tutti::comm
