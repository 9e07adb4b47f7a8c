#include "tools/inspect_tensors.h"

#include <algorithm>
#include <cctype>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/text.h"

namespace tutti {
namespace {

// Returns PyTorch's name, such as "float" or "long".
std::string type_name(torch::ScalarType type) {
  std::string name = c10::toString(type);
  for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return name;
}

std::string shape_of(const torch::Tensor& tensor) {
  return tensor.dim() == 0 ? "scalar" : fmt::format("{}", fmt::join(tensor.sizes(), "x"));
}

// Returns minimum, mean and maximum, or the number of values that are not finite.
std::string values_of(const torch::Tensor& tensor) {
  if (tensor.numel() == 0) return "empty";
  const torch::Tensor values = tensor.to(torch::kDouble);
  const auto odd = values.numel() - values.isfinite().sum().item<int64_t>();
  if (odd > 0) return fmt::format("{} of {} values are not finite", odd, values.numel());
  return fmt::format("{:>11.4g} {:>11.4g} {:>11.4g}", values.min().item<double>(),
                     values.mean().item<double>(), values.max().item<double>());
}

}  // namespace

void print_tensors(std::string_view heading, const std::vector<store::NamedTensor>& tensors) {
  size_t width = 4;
  size_t shape_width = 5;
  int64_t elements = 0;
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    width = std::max(width, name.size());
    shape_width = std::max(shape_width, shape_of(tensor).size());
    elements += tensor.numel();
    bytes += tensor.nbytes();
  }
  fmt::print("\n{}: {} tensors, {} values, {}\n", heading, tensors.size(), elements, human_bytes(bytes));
  if (tensors.empty()) return;
  fmt::print("  {:<{}} {:<8} {:<{}} {:>10} {:>11} {:>11} {:>11}\n", "name", width, "type", "shape",
             shape_width, "bytes", "min", "mean", "max");
  for (const auto& [name, tensor] : tensors) {
    fmt::print("  {:<{}} {:<8} {:<{}} {:>10} {}\n", name, width, type_name(tensor.scalar_type()),
               shape_of(tensor), shape_width, human_bytes(tensor.nbytes()), values_of(tensor));
  }
}

}  // namespace tutti
