#pragma once

#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "tutti/base/torch_compat.h"
#include "tutti/cluster/context.h"
#include "tutti/params/parameters.h"

namespace tutti {

// The type in which a forward pass computes.
enum class Precision { Float32, BFloat16 };

// Reads the value of --precision.
Precision parse_precision(const std::string& text);

// Computes in this precision, in this thread, until the end of the scope: LibTorch's autocast lowers the
// operators for which it is accurate. A scope belongs around a forward pass and its loss, but not around the
// backward pass, whose operators have the types of the forward pass. Scopes may be nested.
class PrecisionScope {
 public:
  PrecisionScope(torch::Device device, Precision precision)
      : autocast_(device.type(), precision == Precision::BFloat16
                                     ? std::optional<torch::ScalarType>(torch::kBFloat16)
                                     : std::nullopt) {}

 private:
  const compat::AutocastScope autocast_;
};

// Returns the layout for the parameters of this module that --layout asks for. "auto" is channels-last if the
// module has convolutions over images, because their kernels are then faster (docs/benchmarks.md). A program
// that makes its own Parameters passes it as ParametersOptions::layout.
Layout layout_for(const Context& context, const torch::nn::Module& module);
// Throws InvalidArgument if the parameters of images lie otherwise than --layout says.
void require_layout(const Context& context, const Parameters& parameters);

}  // namespace tutti
