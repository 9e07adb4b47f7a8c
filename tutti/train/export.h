#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/cluster/context.h"
#include "tutti/comm/group.h"
#include "tutti/data/feed.h"
#include "tutti/train/export/format.h"
#include "tutti/train/trainable.h"

namespace tutti {

// The inputs and outputs of an exported model.
struct Signature {
  // Names of tensors of a batch, in the order of the arguments. Empty: those that the outputs depend on, in
  // the order of the batch.
  std::vector<std::string> inputs = {};
  // The names of the outputs, as many as `function` returns.
  std::vector<std::string> outputs = {"prediction"};
  // Computes the outputs of a batch that has the inputs. Empty: the only output is what Trainable::predict
  // returns.
  std::function<std::vector<torch::Tensor>(const Batch&)> function = {};
};

// A size of inputs, besides the number of examples, that may differ from call to call, such as the length of
// a text.
struct FreeSize {
  std::string name = {};  // of your choice, for errors and signature.json
  // The inputs that have it, and at which dimension: {{"tokens", 1}, {"mask", 1}}. In every call it is the
  // same in all of them. (Dimension 0 is the number of examples.)
  std::vector<std::pair<std::string, int64_t>> of = {};
  // The least value that the model is called with. The greatest value that is checked is the greatest value
  // in the feed.
  int64_t least = 1;
};

// Options of export_model().
struct ExportOptions {
  Signature signature = {};  // of the function "forward", as programs call the model
  // Further functions of the exported model, by their names: {{"embed", {...}}} makes model.embed(...). They
  // share the weights.
  std::map<std::string, Signature> more_signatures = {};
  std::vector<FreeSize> free_sizes = {};  // sizes of inputs that may differ from call to call
  // The name of the new folder, a number. 0: one more than the greatest number there is.
  int64_t version = 0;
  // Files and folders that are copied, by their names in assets/: {{"words.txt", "/data/words.txt"}}.
  std::map<std::string, std::string> assets = {};
  // The names of embeddings, sharded or not, whose rows are not exported. The vectors of their ids become
  // inputs, "user.vectors" for the table "user".
  std::vector<std::string> leave_out = {};
  // If true, exports the weights of the last step even if there is a moving average.
  bool last_weights = false;
  // Numbers of the exported and of the trained model count as equal if they differ by at most this part of
  // 1 + the absolute value. Empty: 1e-5, or 0.02 with --precision bf16.
  std::optional<double> tolerance = {};
  // The number of examples of the feed with which the model is traced and checked.
  int64_t examples = 32;
  // Empty: TorchScript.
  std::shared_ptr<const ExportFormat> format = {};
};

// Writes a model so that other programs can run it, into a new folder of `dir`, and returns its path:
//   dir/1/model.pt              TorchScript, for torch::jit::load() and Python's torch.jit.load()
//   dir/1/weights.safetensors   parameters, buffers and rows of embeddings by name
//   dir/1/signature.json        names, types and shapes of the inputs and outputs
//   dir/1/assets/
// `model` computes in evaluation mode. The first examples of the feed determine types and shapes. Then
// another process loads the model, without the program that has trained it, and its outputs for these
// examples are compared with those of `model`. The folder gets its name only if they agree, so it is whole or
// absent.
//
// `checkpoint` is a folder ckpt-100 or a log directory, whose weights (by default their moving average) are
// loaded into the model first; "": the weights that it has. With a group, the chief exports while the other
// workers wait, and all return the same path or throw the same error. Without one, the job's chief exports,
// and other workers return "". In an evaluator, and after --stop-after has stopped a training of the program,
// it does nothing and returns "".
//
// Throws InvalidArgument if the model cannot be exported, if the version exists or an asset does not, and
// Overloaded if the disk is full; nothing is left behind then.
std::string export_model(const Context& context, const std::string& dir, const std::string& checkpoint,
                         const Trainable& model, const data::Feed& examples,
                         const ExportOptions& options = {}, const Group& group = {});

// Throws InvalidArgument if the context asks to export a checkpoint instead of training. `what` is a way of
// training that cannot do that.
void require_no_export(const Context& context, const char* what);

// Ends a program that was started to export a model (--export), once it has done so; caught by tutti::run().
class ExportDone final : public std::exception {
 public:
  explicit ExportDone(std::string path) : path_(std::move(path)) {}
  const std::string& path() const { return path_; }
  const char* what() const noexcept override { return "the model was exported"; }

 private:
  std::string path_;
};

}  // namespace tutti
