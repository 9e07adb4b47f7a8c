#pragma once

#include <memory>
#include <ostream>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "tutti/embedding/tables.h"

namespace tutti::nn {

using EmbeddingOptions = embedding::TableOptions;

// A table of `rows` vectors of `dim` numbers, one for each id from 0, whose rows are spread over the workers
// while all other parameters have a copy on every worker:
//   tutti::nn::Embedding user = register_module("user", tutti::nn::Embedding(10'000'000, 32));
//   ... user(batch["user"]) ...
// Before a step, the workers fetch the rows for the ids in the table's columns of the batch
// (EmbeddingOptions::columns; by default the one that is called like the module), so forward() must not look
// up others. Afterwards each row that was looked up gets one update, from the mean gradient over all
// examples. The weights have the same bits on any number of workers. A small table is an ordinary parameter,
// "weight", instead.
//
// Trained by a Trainer on workers that are connected, or alone.
class EmbeddingImpl : public torch::nn::Module, public embedding::HasTable {
 public:
  EmbeddingImpl(int64_t rows, int64_t dim, const EmbeddingOptions& options = {});

  // Returns the vectors of the ids: their shape, and then `dim`. Ids are whole numbers of any type.
  torch::Tensor forward(const torch::Tensor& ids);

  std::shared_ptr<embedding::Table> table() const override { return table_; }
  torch::Tensor table_weight() const override { return weight; }
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor weight;  // defined if the table is a parameter

 protected:
  EmbeddingImpl(int64_t rows, int64_t dim, const EmbeddingOptions& options, bool may_be_padded);

 private:
  const std::shared_ptr<embedding::Table> table_;
};

TORCH_MODULE(Embedding);

// The way in which an EmbeddingBag makes one vector from the vectors of a list.
enum class Pooling { Sum, Mean, Max };

// An Embedding of lists of ids: the vectors of a list are pooled into one. The ids have the shape (examples,
// ..., longest list), as ragged tables have them; -1 fills the places after a shorter list. An empty list
// gives zeros.
class EmbeddingBagImpl : public EmbeddingImpl {
 public:
  EmbeddingBagImpl(int64_t rows, int64_t dim, Pooling pooling = Pooling::Sum,
                   const EmbeddingOptions& options = {});

  // `weights`, in the shape of the ids, multiply the vectors; only with Pooling::Sum.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& weights = {});

 private:
  const Pooling pooling_;
};

TORCH_MODULE(EmbeddingBag);

}  // namespace tutti::nn
