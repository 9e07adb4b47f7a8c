#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/progress.h"
#include "tutti/store/safetensors.h"

namespace tutti {

// The function that a program calls by calling the model.
inline constexpr const char* kDefaultFunction = "forward";

// A computation that is to be written to a file: functions of tensors, and the tensors that they remember.
struct Computation {
  using Tensors = std::vector<torch::Tensor>;

  // A size of a function's arguments that may differ from call to call.
  struct Size {
    // A dimension of an argument.
    struct Place {
      size_t argument = 0;
      int64_t dimension = 0;
    };
    std::string name;           // "examples", "length"
    std::vector<Place> places;  // it is the same in all of them
  };

  // A function of tensors that programs can call.
  struct Function {
    std::string name = kDefaultFunction;  // an identifier
    // The names of the arguments; each is an identifier.
    std::vector<std::string> arguments = {};
    std::function<Tensors(const Tensors& inputs)> body = {};
    // The first is the number of examples.
    std::vector<Size> sizes = {};
    // Arguments in which every size has two values, in all combinations: sizes[k] has its second value in
    // those whose index has the bit k set. No number of examples is one.
    std::vector<Tensors> examples = {};
    // If true, arguments that the results do not depend on are left out.
    bool drop_unused = false;
  };

  // The tensors of the model by name ("conv1.weight"), each once. The functions compute with these very
  // tensors.
  std::vector<store::NamedTensor> parameters = {};
  std::vector<store::NamedTensor> buffers = {};
  store::TiedNames tied = {};
  std::vector<Function> functions = {};
  // A format may tell how many bytes of the tensors it has written.
  OnBytes on_bytes = {};
};

// A model that was read from a file.
class LoadedComputation {
 public:
  virtual ~LoadedComputation() = default;
  // The tensors that it remembers, parameters and buffers.
  virtual std::vector<store::NamedTensor> tensors() const = 0;
  // Computes as users of the file do, with all optimisations, or operator by operator as the trained model
  // did.
  enum class Mode { Optimised, Exact };
  virtual Computation::Tensors run(const std::string& function, const Computation::Tensors& inputs,
                                   Mode mode) = 0;
};

// A format of files for models that run without the program that has trained them. Another one is a class of
// its own, passed in ExportOptions::format. Stateless, thread-safe.
class ExportFormat {
 public:
  virtual ~ExportFormat() = default;
  // "torchscript", as in signature.json. The process that checks the model finds the format by it.
  virtual std::string name() const = 0;
  // The names of the files that write() makes, in the order in which they matter.
  virtual std::vector<std::string> files() const = 0;

  // The result of write().
  struct Written {
    std::vector<std::vector<std::string>> arguments;  // those that are left, for each function
    // Warnings: what may make the result wrong for other batches.
    std::vector<std::string> doubts;
  };
  // Writes the computation to a folder, for arguments of any sizes. Returns when all data are on the device.
  // Throws an InvalidArgument that says why if it cannot be written for other sizes than those of the
  // examples.
  virtual Written write(const Computation& computation, const std::string& folder) const = 0;
  // Reads it, to a device. Throws DataLoss if the files are not those of the format.
  virtual std::unique_ptr<LoadedComputation> load(const std::string& folder, torch::Device device) const = 0;
};

// Writes the computation and, at the same time, its tensors as weights.safetensors.
ExportFormat::Written write_with_weights(const ExportFormat& format, const Computation& computation,
                                         const std::string& folder);

// Returns the format of that name; throws InvalidArgument if there is none.
std::shared_ptr<const ExportFormat> export_format(const std::string& name);

}  // namespace tutti
