#include "tutti/comm/reduce_on_device.h"

#include <utility>
#include <vector>

#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/comm/flat.h"
#include "tutti/comm/reduce.h"

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
  const bool bits = reduction.type == torch::kBool;
  const bool any = reduction.op == ReduceOp::Sum || reduction.op == ReduceOp::Max;
  const ReduceOp op = !bits ? reduction.op : any ? ReduceOp::Max : ReduceOp::Min;
  const torch::ScalarType wide = bits ? torch::kByte : sum_type(reduction.type);
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
    if (reduction.round_each) stack.back() = stack.back().to(reduction.type).to(wide);
  }
  torch::Tensor result = stack.back();
  // A single input is its own result; it is copied because the caller's tensor must not be modified.
  if (program.size() == 1) result = result.clone();
  if (op == ReduceOp::Average) {
    const auto parts = reduction.parts != 0 ? reduction.parts : static_cast<int64_t>(inputs.size());
    divide(result, static_cast<double>(parts));
  }
  if (reduction.divisor != 0) {
    result = result.to(reduction.type).to(wide);
    divide(result, reduction.divisor);
  }
  return result.to(reduction.type);
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
  for (const torch::Tensor& input : inputs)
    from.push_back(input.defined() ? bytes_of(input).data() : nullptr);
  std::byte* const to = bytes_of(output).data();
  reduce(from, {&to, 1}, reduction, program);
}

// Divides by a tensor on the device: given a number of the host, CUDA would multiply by its reciprocal. The
// division uses the wide type because half precision cannot represent every divisor.
void divide(const torch::Tensor& values, double divisor) {
  const torch::NoGradGuard no_grad;
  const torch::ScalarType wide = sum_type(values.scalar_type());
  values.copy_(values.to(wide).div_(torch::full({}, divisor, values.options().dtype(wide))));
}

}  // namespace tutti::comm
