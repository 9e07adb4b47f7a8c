#include "tutti/embedding/embedding.h"

#include <limits>

#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/params/parameters.h"

namespace tutti::nn {

EmbeddingImpl::EmbeddingImpl(int64_t rows, int64_t dim, const EmbeddingOptions& options)
    : EmbeddingImpl(rows, dim, options, false) {}

EmbeddingImpl::EmbeddingImpl(int64_t rows, int64_t dim, const EmbeddingOptions& options, bool may_be_padded)
    : table_(std::make_shared<embedding::Table>(rows, dim, options, may_be_padded)) {
  if (options.dynamic || rows * dim > options.replicate_up_to) return;
  weight = register_parameter(
      "weight", torch::empty({rows, dim}).uniform_(-options.initial_scale, options.initial_scale));
}

torch::Tensor EmbeddingImpl::forward(const torch::Tensor& ids) { return table_->look_up(ids, weight); }

void EmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "tutti::nn::Embedding(rows=" << table_->rows() << ", dim=" << table_->dim() << ")";
}

EmbeddingBagImpl::EmbeddingBagImpl(int64_t rows, int64_t dim, Pooling pooling,
                                   const EmbeddingOptions& options)
    : EmbeddingImpl(rows, dim, options, true), pooling_(pooling) {}

torch::Tensor EmbeddingBagImpl::forward(const torch::Tensor& ids, const torch::Tensor& weights) {
  if (ids.dim() < 2)
    fail(ErrorKind::InvalidArgument,
         "the EmbeddingBag '{}' takes ids of the shape (examples, ..., longest list), not {}",
         table()->name(), describe(ids));
  torch::Tensor rows = EmbeddingImpl::forward(ids);  // (examples, ..., longest list, dim)
  const torch::Tensor is_id = ids.ge(0);
  if (weights.defined()) {
    if (pooling_ != Pooling::Sum)
      fail(ErrorKind::InvalidArgument, "the EmbeddingBag '{}' takes weights only with Pooling::Sum",
           table()->name());
    if (weights.sizes() != ids.sizes())
      fail(ErrorKind::InvalidArgument, "the weights for the EmbeddingBag '{}' have the shape {}, its ids {}",
           table()->name(), describe(weights), describe(ids));
    return (rows * weights.masked_fill(is_id.logical_not(), 0).unsqueeze(-1)).sum(-2);
  }
  if (pooling_ == Pooling::Sum) return rows.sum(-2);
  const torch::Tensor count = is_id.sum(-1, /*keepdim=*/true);
  if (pooling_ == Pooling::Mean) return rows.sum(-2) / count.clamp_min(1);
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  torch::Tensor masked = rows.masked_fill(is_id.logical_not().unsqueeze(-1), kLeast);
  // Empty lists have no maximum. A trace must not depend on whether they are.
  if (ids.size(-1) == 0 || torch::jit::tracer::isTracing())
    masked = torch::constant_pad_nd(masked, {0, 0, 0, 1}, kLeast);
  return std::get<0>(masked.max(-2)).masked_fill(count.eq(0), 0);
}

}  // namespace tutti::nn
