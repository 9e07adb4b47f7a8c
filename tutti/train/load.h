#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "tutti/data/feed.h"
#include "tutti/embedding/row_shard.h"
#include "tutti/params/parameters.h"
#include "tutti/store/checkpoint.h"
#include "tutti/train/trainable.h"

namespace tutti {

// Returns the tensors of a file or checkpoint by name, on the CPU, without the program that wrote them: the
// weights and buffers of a checkpoint folder (run/ckpt-100) or of the checkpoint that was saved last in a
// log directory (run, or run/start-1), or everything in a .safetensors file or in a dictionary of tensors
// that torch.save() of Python has written (store/torch_file.h). Rows of sharded embeddings are joined:
// "user.weight" in the order of the ids or, for a dynamic table, in the order of "user.ids". A tensor that
// the model has under several names has all of them. A path that is none of these is an InvalidArgument, and
// a damaged file is a DataLoss.
std::map<std::string, torch::Tensor> load(const std::string& path);

// Returns the weights and buffers of a checkpoint that was read, each tensor once, with the values of the
// last step or, if has_average(), of the moving average.
std::vector<store::NamedTensor> tensors_in(const store::Checkpoint& checkpoint,
                                           embedding::RowValues values = embedding::RowValues::Last);
bool has_average(const store::Checkpoint& checkpoint);

// Returns the folder of a checkpoint: `path` itself, or the one that was saved last in the log directory
// `path`. Throws InvalidArgument if it is neither.
std::string checkpoint_at(const std::string& path);

// Maps the name of a saved tensor to the name of the model's tensor that it is for. Either a function, which
// may return "" to leave the tensor out, or pairs of prefixes: {{"encoder.", "backbone."}} replaces the first
// prefix that fits, and keeps names that none fits.
class Rename {
 public:
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  Rename() = default;
  Rename(std::initializer_list<Pairs::value_type> prefixes) : Rename(Pairs(prefixes)) {}
  Rename(Pairs prefixes);  // NOLINT(google-explicit-constructor)
  template <class Function>
  requires std::is_invocable_r_v<std::string, Function&, const std::string&> Rename(Function function)
      : function_(std::move(function)) {}  // NOLINT(google-explicit-constructor)

  std::string operator()(const std::string& name) const { return function_ ? function_(name) : name; }

 private:
  std::function<std::string(const std::string&)> function_;
};

// Says what happens if a tensor of the model was not saved.
enum class Missing {
  Refuse,  // a tensor of the model that was not saved is an error
  Allow,   // it keeps its values
};

// Options of load_weights().
struct LoadWeightsOptions {
  Rename rename = {};  // from saved names to those of the model
  // Loads only the tensors whose names in the model fit this pattern, as in "backbone.*"; '*' stands for any
  // text and '?' for any character. "": all.
  std::string only = {};
  Missing missing = Missing::Refuse;  // what happens if a tensor was not saved
};

// The result of load_weights().
struct LoadedWeights {
  std::vector<std::string> loaded;   // tensors of the model that have new values
  std::vector<std::string> missing;  // tensors of the model that were to be loaded, but were not saved
  std::vector<std::string>
      unused;  // saved tensors that `only` or `rename` has left out, by their saved names
};

// Copies what load(path) returns into the parameters and buffers of a module, for predictions or to train
// further, as with another head. Floating types are converted. Before anything is copied, checks that each
// tensor of the model was saved, unless `missing` allows otherwise, that each saved tensor is one of the
// model's, and that all shapes are the same; else throws an InvalidArgument that lists all differences. To
// load nothing at all is an InvalidArgument, too. Sharded embeddings of a module get their rows, too.
//
// With several workers, all of them call it before they create the Trainer.
LoadedWeights load_weights(torch::nn::Module& module, const std::string& path,
                           const LoadWeightsOptions& options = {});
LoadedWeights load_weights(Parameters& parameters, const std::string& path,
                           const LoadWeightsOptions& options = {});
// Like above, for tensors by name; `where` says for errors where they are from.
LoadedWeights load_weights(torch::nn::Module& module, const std::map<std::string, torch::Tensor>& tensors,
                           const std::string& where, const LoadWeightsOptions& options = {});
template <class Net>
LoadedWeights load_weights(const torch::nn::ModuleHolder<Net>& net, const std::string& path,
                           const LoadWeightsOptions& options = {}) {
  return load_weights(*net.ptr(), path, options);
}

// Like above, for all tensors of the checkpoint in `folder`. Throws InvalidArgument if the module is not that
// of the program that has trained it; the text names their first difference.
void load_checkpoint_weights(torch::nn::Module& module, const std::map<std::string, torch::Tensor>& tensors,
                             const std::string& folder);

// Options of predict().
struct PredictOptions {
  int64_t batch = 500;  // examples that are computed together
};

// Returns the predictions of the model for all examples of the feed, on the CPU, one row each, in the feed's
// order, which is not shuffled; an undefined tensor if there are none. Computes in evaluation mode, without
// gradients, on the device of the model's parameters. Needs no Trainer: Trainer::predict() is for the weights
// of a run.
torch::Tensor predict(const Trainable& model, const data::Feed& feed, const PredictOptions& options = {});

}  // namespace tutti
