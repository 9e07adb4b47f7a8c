#include "tutti/comm/reduce_on_device.h"

#include <utility>
#include <vector>

#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/comm/flat.h"
#include "tutti/comm/on_device.h"
#include "tutti/transport/reduce.h"

namespace tutti::comm {
namespace {

// Uses the memory of `to` for the result if it is defined, which may be one of the two.
torch::Tensor combine(ReduceOp op, const torch::Tensor& a, const torch::Tensor& b, torch::Tensor to) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return to.defined() ? at::add_out(to, a, b) : a + b;
    case ReduceOp::Product:
      return to.defined() ? at::mul_out(to, a, b) : a * b;
    case ReduceOp::Min:
      return torch::where((b < a).logical_or(b != b), b, a);
    case ReduceOp::Max:
      return torch::where((b > a).logical_or(b != b), b, a);
    case ReduceOp::BitAnd:
      return to.defined() ? at::bitwise_and_out(to, a, b) : a.bitwise_and(b);
    case ReduceOp::BitOr:
      return to.defined() ? at::bitwise_or_out(to, a, b) : a.bitwise_or(b);
    case ReduceOp::BitXor:
      return to.defined() ? at::bitwise_xor_out(to, a, b) : a.bitwise_xor(b);
  }
  return {};
}

// Like reduce_on_device(), but the result may be in the memory of `output`, if that is defined. `output` may
// be one of the inputs: it is written when nothing else is left to be read.
torch::Tensor reduce_near(const torch::Tensor& output, std::span<const torch::Tensor> inputs,
                          const Reduction& reduction, const Program& program) {
  TUTTI_CHECK(!program.empty(), "nothing to reduce");
  const torch::NoGradGuard no_grad;
  // The values are 0 or 1: Max is "any" and Min is "all".
  const bool bits = reduction.type == ElementType::Bool;
  ReduceOp op = reduction.op;
  if (bits && op == ReduceOp::Sum) op = ReduceOp::Max;
  if (bits && op == ReduceOp::Product) op = ReduceOp::Min;
  const torch::ScalarType type = scalar_type(reduction.type);
  const torch::ScalarType wide = bits ? torch::kByte : scalar_type(sum_type(reduction.type));
  std::vector<torch::Tensor> stack;
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i] != kCombine) {
      stack.push_back(inputs[static_cast<size_t>(program[i])].to(wide));
      continue;
    }
    const torch::Tensor right = std::move(stack.back());
    stack.pop_back();
    const bool fits = i + 1 == program.size() && output.defined() && output.scalar_type() == wide;
    stack.back() = combine(op, stack.back(), right, fits ? output : torch::Tensor());
    if (reduction.round_each) stack.back() = stack.back().to(type).to(wide);
  }
  torch::Tensor result = stack.back();
  // A single input is its own result; it is copied because the caller's tensor must not be modified.
  if (program.size() == 1) result = result.clone();
  if (op == ReduceOp::Average) {
    const auto parts = reduction.parts != 0 ? reduction.parts : static_cast<int64_t>(inputs.size());
    divide(result, static_cast<double>(parts));
  }
  if (reduction.divisor != 0) {
    result = result.to(type).to(wide);
    divide(result, reduction.divisor);
  }
  return result.to(type);
}

}  // namespace

torch::Tensor reduce_on_device(std::span<const torch::Tensor> inputs, const Reduction& reduction,
                               const Program& program) {
  return reduce_near({}, inputs, reduction, program);
}

void reduce_tensors(std::span<const torch::Tensor> inputs, const torch::Tensor& output,
                    const Reduction& reduction, const Program& program) {
  if (!output.is_cpu()) {
    output.copy_(reduce_near(output, inputs, reduction, program));
    return;
  }
  std::vector<const std::byte*> from;
  for (const torch::Tensor& input : inputs) from.push_back(array_of(input).data);
  std::byte* const to = array_of(output).data;
  reduce(from, {&to, 1}, reduction, program);
}

// Divides by a tensor on the device: given a number of the host, CUDA would multiply by its reciprocal. The
// division uses the wide type because half precision cannot represent every divisor.
void divide(const torch::Tensor& values, double divisor) {
  const torch::NoGradGuard no_grad;
  const torch::ScalarType wide = scalar_type(sum_type(element_type(values.scalar_type())));
  values.copy_(values.to(wide).div_(torch::full({}, divisor, values.options().dtype(wide))));
}

std::shared_ptr<std::byte> OnDevice::memory_for(size_t size) const {
  const torch::Tensor memory =
      torch::empty({static_cast<int64_t>(size)}, torch::TensorOptions().dtype(torch::kByte).device(device_));
  return {static_cast<std::byte*>(memory.data_ptr()), [memory](std::byte*) {}};
}

void OnDevice::copy(const Array& from, const Array& to) const {
  if (from.data != to.data) tensor_of(to, device_).copy_(tensor_of(from, device_));
}

void OnDevice::combine_here(std::span<const Array> inputs, const Array& output, const Reduction& reduction,
                            const Program& program) const {
  std::vector<torch::Tensor> tensors;
  for (const Array& input : inputs)
    tensors.push_back(input.data == nullptr ? torch::Tensor() : tensor_of(input, device_));
  reduce_tensors(tensors, tensor_of(output, device_), reduction, program);
}

}  // namespace tutti::comm
