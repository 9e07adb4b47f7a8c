#include "tutti/step/lane_hashes.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <torch/utils.h>

#include "tutti/base/hashes.h"

namespace tutti {
namespace {

constexpr size_t kBytes = sizeof(XxhBits128);

// Returns the hash of this many elements of a vector in host memory.
std::string hash_of(const torch::Tensor& vector, int64_t offset, int64_t elements) {
  const size_t size = vector.element_size();
  const auto* const bytes = static_cast<const char*>(vector.data_ptr());
  return bytes_of(xxh128({bytes + static_cast<size_t>(offset) * size, static_cast<size_t>(elements) * size}));
}

std::string hash_of(const torch::Tensor& tensor) {
  const torch::Tensor here = tensor.detach().cpu().contiguous();
  return hash_of(here, 0, here.numel());
}

}  // namespace

std::string hashes_of_lane(const Parameters& parameters, const torch::Tensor& numbers) {
  std::vector<torch::Tensor> gradients;
  for (const Section& block : parameters.blocks()) gradients.push_back(block.grads.cpu());
  std::string hashes;
  for (const Parameters::View& view : parameters.trained())
    hashes += hash_of(gradients.at(view.block), view.offset, view.tensor.numel());
  for (const Parameters::View& view : parameters.buffers()) hashes += hash_of(view.tensor);
  return hashes + hash_of(numbers);
}

// Which of two NaNs a sum takes over depends on their order.
std::string hash_of_numbers(const torch::Tensor& numbers) {
  return hash_of(numbers.masked_fill(numbers.isnan(), std::numeric_limits<double>::quiet_NaN()));
}

std::string first_difference(const Parameters& parameters, const std::string& one, const std::string& other) {
  if (one.size() != other.size()) return "the number of examples";
  const auto at = std::mismatch(one.begin(), one.end(), other.begin()).first - one.begin();
  const size_t index = static_cast<size_t>(at) / kBytes;
  const size_t trained = parameters.trained().size();
  const size_t buffers = parameters.buffers().size();
  if (index < trained) return "the gradient of " + parameters.trained()[index].name;
  if (index < trained + buffers) return "the buffer " + parameters.buffers()[index - trained].name;
  return index == trained + buffers ? "the loss" : "the gradient of a row of a table";
}

}  // namespace tutti
