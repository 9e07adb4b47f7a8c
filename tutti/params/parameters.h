#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace tutti::comm {
class UsesCommunicator;
}

namespace tutti {

// A part of one block of the parameters, or the whole block, with its gradients: two vectors of the same
// length.
struct Section {
  torch::Tensor values;
  torch::Tensor grads;
  // The index of the block in Parameters::blocks(), and where in the block the section begins.
  size_t block = 0;
  int64_t offset = 0;
};

// The order of the elements of four-dimensional parameters in memory.
enum class Layout {
  Contiguous,
  ChannelsLast,  // four-dimensional parameters lie with their channels innermost; names, shapes and values
                 // are the same
};

// Takes the number of elements, the type and the device; returns a one-dimensional tensor of zeros.
using Allocate = std::function<torch::Tensor(int64_t elements, const torch::TensorOptions& options)>;

// A module that may have rows of an embedding which are not among its parameters, because they are spread
// over several tasks.
class HasShardedRows {
 public:
  virtual ~HasShardedRows() = default;
  virtual bool has_sharded_rows() const = 0;
};

// Options of Parameters.
struct ParametersOptions {
  // Allocates the vectors. The default is LibTorch's own allocator.
  Allocate allocate = {};
  Layout layout = Layout::Contiguous;  // of four-dimensional parameters
  // There may be nothing to train, and then no vectors: all that the model learns is held elsewhere, in
  // sharded embeddings.
  bool may_be_empty = false;
};

// The trainable parameters of a module as one flat vector of values and one of gradients, each tensor a named
// view into them, in the order in which the module created them. A module with parameters of several types
// has one pair of vectors per type. Each view starts on a cache line; the gaps between views are always zero.
//
// The constructor moves the module's tensors into the vectors; the module continues to work as before, and
// autograd accumulates into the gradient views. The vectors do not include tensors that are not trained:
// frozen parameters stay where they are, and buffers of a floating type are moved into vectors of their own,
// so that they can be saved, summed and restored together. A tensor that is registered under several names is
// stored once, under its first name.
//
// Shares ownership of the module's tensors and of those submodules that need a communicator, but not of the
// module itself. Thread-compatible.
//
// The constructor throws InvalidArgument if there is nothing to train (may_be_empty), if a parameter is
// sparse, if parameters are on several devices, or if two different parameters overlap in memory.
class Parameters {
 public:
  // A named tensor of the module, and where it is in the vectors.
  struct View {
    std::string name;
    torch::Tensor tensor;  // the module's own: a parameter or a buffer
    torch::Tensor grad;    // of a trained parameter, else undefined
    size_t block = 0;      // which pair of vectors
    int64_t offset = 0;    // the first element in them
  };

  explicit Parameters(torch::nn::Module& module, const ParametersOptions& options = {});

  std::span<const View> trained() const { return trained_; }
  std::span<const View> frozen() const { return frozen_; }
  std::span<const View> buffers() const { return buffers_; }
  // All of them, in this order. freeze() invalidates the pointers.
  std::vector<const View*> all() const;
  // Second and further names of tensors stored once: name -> the first name.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

  // The blocks, each as one section: the whole vectors.
  const std::vector<Section>& blocks() const { return blocks_; }
  // The only vector, if all trained parameters have the same type; else InvalidArgument.
  const torch::Tensor& values() const;
  const torch::Tensor& grads() const;
  // The vectors of the floating buffers, one per type.
  std::span<const torch::Tensor> buffer_vectors() const { return buffer_vectors_; }

  // Submodules that need a communicator; each once.
  std::span<const std::shared_ptr<comm::UsesCommunicator>> communicator_users() const {
    return communicator_users_;
  }

  // The names of the submodules whose rows are spread over several tasks, and so are not among the
  // parameters.
  std::span<const std::string> sharded_tables() const { return sharded_tables_; }

  // Embeddings of the module that were made with sparse(true). Their gradients are dense nevertheless.
  struct SparseTable {
    std::string name;  // "item.weight"
    int64_t rows = 0;
    uint64_t bytes = 0;
  };
  std::span<const SparseTable> sparse_tables() const { return sparse_tables_; }

  // Returns the part of `vector` that belongs to this parameter, in its shape. `vector` is as long as the
  // values of the view's block, as an optimiser's slot is.
  torch::Tensor view_of(const View& view, const torch::Tensor& vector) const;

  // The device of the trained parameters; the CPU if there are none.
  torch::Device device() const {
    return blocks_.empty() ? torch::Device(torch::kCPU) : blocks_.front().values.device();
  }
  Layout layout() const { return layout_; }
  // The number of elements of all trained parameters, without gaps.
  int64_t size() const;

  // Clears requires_grad of these parameters and takes them out of the vectors, which are made anew:
  // blocks(), and references to the vectors from before, are invalid afterwards. Gradients become zero.
  // Throws InvalidArgument, and changes nothing, if no parameter would be left to train (may_be_empty).
  void freeze(std::span<const std::string> names);

  // Throws InvalidArgument if a parameter was frozen or unfrozen since construction, other than by freeze():
  // the vectors hold those that were trainable at that time.
  void require_as_made() const;

  // Moves the vectors to other memory of the same device, values and all. The tensors stay the same ones:
  // vectors, and views into them, that the program holds see the new memory.
  void move(const Allocate& allocate);

  void zero_grads();
  // Copies gradients that the program or autograd has replaced by other tensors back into the vectors; a
  // dropped gradient becomes zero. Has to be called after the backward pass, before the gradient vectors are
  // read.
  void collect_grads();
  // Like collect_grads(), for one parameter of trained().
  void collect_grad(size_t parameter);

  // SHA-256 over the bytes of the trained parameters, each in its logical order, in the order of their names.
  std::string sha256() const;
  // One line per trained parameter, "conv1.weight float32[32,1,5,5]"; must be the same on every worker.
  std::vector<std::string> plan() const;

 private:
  void place_trained();
  void place_buffers();

  Allocate allocate_;
  Layout layout_;
  bool may_be_empty_;
  std::vector<View> trained_;
  std::vector<View> frozen_;
  std::vector<View> buffers_;
  std::map<std::string, std::string> aliases_;
  std::vector<Section> blocks_;
  std::vector<torch::Tensor> buffer_vectors_;
  std::vector<std::shared_ptr<comm::UsesCommunicator>> communicator_users_;
  std::vector<std::string> sharded_tables_;
  std::vector<SparseTable> sparse_tables_;
};

// Throws InvalidArgument that names the first table if there are sharded ones. `where` completes "cannot be
// trained ...": "with --strategy in-graph".
void require_no_sharded_tables(const Parameters& parameters, std::string_view where);

// "float32[32,1,5,5]".
std::string describe(const torch::Tensor& tensor);

}  // namespace tutti
