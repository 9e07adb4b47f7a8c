#include "tutti/params/clip_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

namespace tutti {
namespace {

// Adds in a fixed order: eight partial sums side by side.
template <class T>
double sum_of_squares(const T* values, int64_t count) {
  constexpr int64_t kSums = 8;
  std::array<double, kSums> sums{};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t k = 0; k < kSums; ++k) {
      const auto value = static_cast<double>(values[i + k]);
      sums[static_cast<size_t>(k)] += value * value;
    }
  }
  for (int64_t k = 0; i < count; ++i, ++k) {
    const auto value = static_cast<double>(values[i]);
    sums[static_cast<size_t>(k)] += value * value;
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

// Appends the sum of squares of each cell of the stretch.
void append_squares(const torch::Tensor& stretch, std::vector<double>& squares) {
  const torch::Tensor values = stretch.is_cpu() && stretch.scalar_type() == torch::kFloat
                                   ? stretch
                                   : stretch.to(torch::kCPU, torch::kDouble);
  for (int64_t begin = 0; begin < values.numel(); begin += kCell) {
    const int64_t count = std::min(kCell, values.numel() - begin);
    squares.push_back(values.scalar_type() == torch::kFloat
                          ? sum_of_squares(static_cast<const float*>(values.data_ptr()) + begin, count)
                          : sum_of_squares(static_cast<const double*>(values.data_ptr()) + begin, count));
  }
}

int64_t cells_of(const comm::Slice& part) { return (part.end - part.begin + kCell - 1) / kCell; }

}  // namespace

double norm_of(const Buckets& buckets) {
  const torch::NoGradGuard no_grad;
  std::vector<double> squares;
  for (const Bucket& bucket : buckets.all) {
    if (bucket.gradients) append_squares(buckets.stretch(bucket), squares);
  }
  double sum = 0;
  for (const double square : squares) sum += square;
  return std::sqrt(sum);
}

// torch::nn::utils::clip_grad_norm_ adds the same small number.
double clip_factor(double norm, double largest) { return std::min(1.0, largest / (norm + 1e-6)); }

double clip_norm(const Buckets& buckets, double largest) {
  const torch::NoGradGuard no_grad;
  const double norm = norm_of(buckets);
  if (const double factor = clip_factor(norm, largest); factor < 1) {
    for (const Bucket& bucket : buckets.all) {
      if (bucket.gradients) buckets.stretch(bucket).mul_(factor);
    }
  }
  return norm;
}

double clip_norm_scattered(comm::Communicator& comm, const Buckets& buckets, double largest, int64_t step) {
  const torch::NoGradGuard no_grad;
  std::vector<double> mine;
  std::vector<int64_t> counts(static_cast<size_t>(comm.world()), 0);
  for (const Bucket& bucket : buckets.all) {
    if (!bucket.gradients) continue;
    const comm::Slice part = part_of(bucket, comm.rank(), comm.world());
    append_squares(buckets.vectors[bucket.vector].narrow(0, part.begin, part.end - part.begin), mine);
    for (int rank = 0; rank < comm.world(); ++rank)
      counts[static_cast<size_t>(rank)] += cells_of(part_of(bucket, rank, comm.world()));
  }
  std::vector<torch::Tensor> all;
  for (const int64_t count : counts) all.push_back(torch::empty({count}, torch::kDouble));
  comm.all_gather_uneven(all, torch::tensor(mine, torch::kDouble),
                         {.what = "the norm of gradients", .step = step});
  // Adds in the order of the cells, as clip_norm() does on a single worker, so that the bits are the same.
  std::vector<const double*> next;
  for (const torch::Tensor& squares : all) next.push_back(static_cast<const double*>(squares.data_ptr()));
  double sum = 0;
  for (const Bucket& bucket : buckets.all) {
    for (int rank = 0; bucket.gradients && rank < comm.world(); ++rank) {
      for (int64_t cells = cells_of(part_of(bucket, rank, comm.world())); cells > 0; --cells)
        sum += *next[static_cast<size_t>(rank)]++;
    }
  }
  const double norm = std::sqrt(sum);
  if (const double factor = clip_factor(norm, largest); factor < 1) {
    for (const Bucket& bucket : buckets.all) {
      if (!bucket.gradients) continue;
      const comm::Slice part = part_of(bucket, comm.rank(), comm.world());
      buckets.vectors[bucket.vector].narrow(0, part.begin, part.end - part.begin).mul_(factor);
    }
  }
  return norm;
}

}  // namespace tutti
