#include "tutti/step/buckets.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <torch/utils.h>

namespace tutti {
namespace {

// Starts a new bucket at the first parameter for which the current bucket has reached the minimum size.
void cut(const Parameters& parameters, size_t block, int64_t bytes, Buckets& buckets) {
  const torch::Tensor& vector = buckets.vectors[block];
  const int64_t enough = (bytes - 1) / static_cast<int64_t>(vector.element_size()) + 1;
  const auto& views = parameters.trained();
  Bucket bucket{.vector = block, .begin = 0, .end = vector.numel(), .gradients = true};
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].block != block) continue;
    if (views[i].offset - bucket.begin >= enough) {
      bucket.end = views[i].offset;
      buckets.all.push_back(bucket);
      bucket.begin = views[i].offset;
      bucket.end = vector.numel();
    }
    buckets.of_parameter[i] = buckets.all.size();
  }
  buckets.all.push_back(bucket);
}

int64_t units_in(const comm::ElementRange& range) { return (range.size() + kSliceUnit - 1) / kSliceUnit; }

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

// Returns the worker's slice of each bucket of gradients.
std::vector<torch::Tensor> gradients_in(const Buckets& buckets, int rank = 0, int world = 1) {
  std::vector<torch::Tensor> slices;
  for (const Bucket& bucket : buckets.all) {
    if (bucket.gradients)
      slices.push_back(elements_of(buckets.vectors[bucket.vector], slice_of(bucket, rank, world)));
  }
  return slices;
}

// Returns the sum of squares of each unit (kSliceUnit) of these vectors, one after the other.
std::vector<double> squares_of(const std::vector<torch::Tensor>& sections) {
  std::vector<double> squares;
  for (const torch::Tensor& section : sections) {
    const torch::Tensor values = section.is_cpu() && section.scalar_type() == torch::kFloat
                                     ? section
                                     : section.to(torch::kCPU, torch::kDouble);
    for (int64_t begin = 0; begin < values.numel(); begin += kSliceUnit) {
      const int64_t count = std::min(kSliceUnit, values.numel() - begin);
      squares.push_back(values.scalar_type() == torch::kFloat
                            ? sum_of_squares(static_cast<const float*>(values.data_ptr()) + begin, count)
                            : sum_of_squares(static_cast<const double*>(values.data_ptr()) + begin, count));
    }
  }
  return squares;
}

void clip(const std::vector<torch::Tensor>& gradients, double norm, double largest) {
  if (const double factor = clip_factor(norm, largest); factor < 1) {
    for (const torch::Tensor& part : gradients) part.mul_(factor);
  }
}

}  // namespace

Buckets buckets_of(const Parameters& parameters, int64_t bytes) {
  Buckets buckets;
  buckets.of_parameter.resize(parameters.trained().size());
  for (const Section& block : parameters.blocks()) buckets.vectors.push_back(block.grads);
  for (size_t block = 0; block < parameters.blocks().size(); ++block) cut(parameters, block, bytes, buckets);
  for (const torch::Tensor& vector : parameters.buffer_vectors()) {
    buckets.all.push_back(
        {.vector = buckets.vectors.size(), .begin = 0, .end = vector.numel(), .gradients = false});
    buckets.vectors.push_back(vector);
  }
  return buckets;
}

comm::ElementRange slice_of(const Bucket& bucket, int rank, int world) {
  const int64_t units = units_in(bucket.range());
  const auto at = [&](int r) { return std::min(bucket.end, bucket.begin + units * r / world * kSliceUnit); };
  return {at(rank), at(rank + 1)};
}

std::vector<Section> sections_of(const Parameters& parameters, int rank, int world) {
  if (world == 1) return parameters.blocks();
  std::vector<Section> sections;
  for (const Bucket& bucket : buckets_of(parameters).all) {
    const comm::ElementRange slice = slice_of(bucket, rank, world);
    if (!bucket.gradients || slice.size() == 0) continue;
    const Section& block = parameters.blocks()[bucket.vector];
    sections.push_back(
        {elements_of(block.values, slice), elements_of(block.grads, slice), bucket.vector, slice.begin});
  }
  return sections;
}

// A sum takes one pass and no memory, but the sum of finite numbers may be infinite.
bool is_finite(const torch::Tensor& vector) {
  const torch::NoGradGuard no_grad;
  return std::isfinite(vector.sum().item<double>()) || torch::isfinite(vector).all().item<bool>();
}

double norm_of(const Buckets& buckets, double other_squares) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (const double square : squares_of(gradients_in(buckets))) sum += square;
  return std::sqrt(sum + other_squares);
}

// torch::nn::utils::clip_grad_norm_ adds the same small number.
double clip_factor(double norm, double largest) { return std::min(1.0, largest / (norm + 1e-6)); }

double clip_norm(const Buckets& buckets, double largest, double other_squares) {
  const torch::NoGradGuard no_grad;
  const double norm = norm_of(buckets, other_squares);
  clip(gradients_in(buckets), norm, largest);
  return norm;
}

double clip_norm_scattered(comm::Communicator& comm, const Buckets& buckets, double largest, int64_t step,
                           double other_squares) {
  const torch::NoGradGuard no_grad;
  const auto units_of = [&](const Bucket& bucket, int rank) {
    return bucket.gradients ? units_in(slice_of(bucket, rank, comm.world())) : 0;
  };
  const std::vector<torch::Tensor> own = gradients_in(buckets, comm.rank(), comm.world());
  std::vector<torch::Tensor> squares;  // [rank]
  std::vector<const double*> next;     // [rank]
  for (int rank = 0; rank < comm.world(); ++rank) {
    int64_t units = 0;
    for (const Bucket& bucket : buckets.all) units += units_of(bucket, rank);
    squares.push_back(torch::empty({units}, torch::kDouble));
    next.push_back(static_cast<const double*>(squares.back().data_ptr()));
  }
  comm.all_gather_uneven(squares, torch::tensor(squares_of(own), torch::kDouble),
                         {.what = "the norm of gradients", .step = step});
  // Adds in the order of the units, as norm_of() does on a single worker, so that the bits are the same.
  double sum = 0;
  for (const Bucket& bucket : buckets.all) {
    for (int rank = 0; rank < comm.world(); ++rank) {
      for (int64_t units = units_of(bucket, rank); units > 0; --units)
        sum += *next[static_cast<size_t>(rank)]++;
    }
  }
  const double norm = std::sqrt(sum + other_squares);
  clip(own, norm, largest);
  return norm;
}

}  // namespace tutti
