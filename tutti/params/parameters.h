#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace tutti::comm {
class UsesCommunicator;
}

namespace tutti {

// A stretch of parameters with its gradients, both one-dimensional and of one length.
struct Stretch {
  torch::Tensor values;
  torch::Tensor grads;
  // Of which block of Parameters, and where in it.
  size_t block = 0;
  int64_t offset = 0;
};

enum class Layout {
  Contiguous,
  ChannelsLast,  // four-dimensional parameters lie with their channels innermost; names, shapes and values
                 // are the same
};

// Gets the number of elements, type and device; returns a one-dimensional tensor of zeros.
using Allocate = std::function<torch::Tensor(int64_t elements, const torch::TensorOptions& options)>;

struct ParametersOptions {
  // Where the vectors live. The default is LibTorch's own allocator.
  Allocate allocate;
  Layout layout = Layout::Contiguous;
};

// The trainable parameters of a module as one flat vector of values and one of gradients, each tensor a named
// view into them, in the order in which the module created them. A module with parameters of several types
// has one pair of vectors a type. Each view starts on a cache line; the gaps between views are zero and stay
// zero.
//
// The constructor moves the module's tensors into the vectors; the module goes on working as before, and
// autograd adds up into the gradient views. What is not trained stays beside the vectors: frozen parameters,
// which are left where they are, and buffers, of which those of a floating type are moved into vectors of
// their own, so that they can be saved, summed and restored as one. A tensor that is registered under several
// names is stored once, under its first name.
//
// Holds the module's tensors, not the module, and those submodules that work on all workers together.
// Thread-compatible. InvalidArgument: nothing to train, sparse parameters, parameters on several devices, or
// two parameters that overlap in memory without being the same one.
class Parameters {
 public:
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
  // Second and further names of tensors stored once: name -> the first name.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

  // Whole.
  const std::vector<Stretch>& blocks() const { return blocks_; }
  // The one vector, where all trained parameters have one type; else InvalidArgument.
  const torch::Tensor& values() const;
  const torch::Tensor& grads() const;
  // Of the floating buffers, one vector a type.
  std::span<const torch::Tensor> buffer_vectors() const { return buffer_vectors_; }

  // Submodules that want a communicator; each once.
  std::span<const std::shared_ptr<comm::UsesCommunicator>> communicator_users() const {
    return communicator_users_;
  }

  // What `vector`, as long as the values of the view's block, holds for this parameter: of an optimiser's
  // slot, say.
  torch::Tensor view_of(const View& view, const torch::Tensor& vector) const;

  torch::Device device() const { return blocks_.front().values.device(); }
  // Elements of all trained parameters, gaps not counted.
  int64_t size() const;

  // Moves the vectors to other memory, values and all. Nobody may hold on to them, or to views into them,
  // from before.
  void move(const Allocate& allocate);

  void zero_grads();
  // Puts gradients back that the program or autograd has replaced by tensors of its own; one that it has
  // dropped is zero. To be called between the backward pass and whatever reads the gradient vectors.
  void collect_grads();
  // The same for one of trained().
  void collect_grad(size_t parameter);

  // SHA-256 over the bytes of the trained parameters, each in its logical order, in the order of their names.
  std::string sha256() const;
  // One line a trained parameter, "conv1.weight float32[32,1,5,5]": what must be the same on every worker.
  std::vector<std::string> plan() const;

 private:
  void place_trained(const Allocate& allocate);
  void place_buffers(const Allocate& allocate);

  Layout layout_;
  std::vector<View> trained_;
  std::vector<View> frozen_;
  std::vector<View> buffers_;
  std::map<std::string, std::string> aliases_;
  std::vector<Stretch> blocks_;
  std::vector<torch::Tensor> buffer_vectors_;
  std::vector<std::shared_ptr<comm::UsesCommunicator>> communicator_users_;
};

// "float32[32,1,5,5]".
std::string describe(const torch::Tensor& tensor);

}  // namespace tutti
