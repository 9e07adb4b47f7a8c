// dropout in training. LibTorch makes it of bernoulli_, div_ and mul, and so are these results; one loop
// makes all of them here.
//
// | operators | types | layouts    |
// |-----------|-------|------------|
// | dropout   | float | contiguous |
//
// LibTorch composes the others.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tutti/kernels/draws.h"
#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/random.h"

namespace tutti::kernels {
namespace {

struct Dropped {
  at::Tensor out;
  at::Tensor noise;  // 0, or what an element is multiplied by
};

Dropped drop_elements(const at::Tensor& input, double p) {
  const at::Tensor x = input.detach();
  const Dropped result{at::empty_like(x), at::empty_like(x)};
  const Draw draw =
      next_draw(at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator()));
  const float factor = 1.0F / static_cast<float>(1 - p);
  const int64_t count = x.numel();
  const float* const from = x.data_ptr<float>();
  float* const noise = result.noise.data_ptr<float>();
  float* const out = result.out.data_ptr<float>();
  constexpr int64_t kCost = 16 * kDrawPiece;
  in_parallel((count + kDrawPiece - 1) / kDrawPiece, kCost, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kDrawPiece;
    drop(draw, first, std::min(end * kDrawPiece, count), 1 - p, factor, from + first, noise + first,
         out + first);
  });
  return result;
}

struct DropoutNode : torch::autograd::Function<DropoutNode> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, double p) {
    const Dropped dropped = drop_elements(input, p);
    context->save_for_backward({dropped.noise});
    return dropped.out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {at::mul(gradients[0], context->get_saved_variables()[0]), at::Tensor()};
  }
};

at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  const bool is_ours = train && p > 0 && p < 1 && input.scalar_type() == at::kFloat &&
                       input.layout() == at::kStrided && input.is_contiguous() && input.numel() > 0 &&
                       !input._fw_grad(/*level=*/0).defined();
  if (!is_ours) return at::native::dropout(input, p, train);
  if (at::GradMode::is_enabled() && input.requires_grad()) return DropoutNode::apply(input, p);
  return drop_elements(input, p).out;
}

}  // namespace

void register_dropout(Registrar& library) { library.impl_with_gradients("dropout", dropout); }

}  // namespace tutti::kernels
