#pragma once

#include "tutti/train/export/format.h"

namespace tutti {

// model.pt: a TorchScript module, which torch::jit::load() of LibTorch and torch.jit.load() of Python read.
// Each function is a method, which takes the arguments and returns a tensor or, of several results, a tuple.
class TorchScriptFormat final : public ExportFormat {
 public:
  std::string name() const override { return "torchscript"; }
  std::vector<std::string> files() const override { return {"model.pt"}; }
  Written write(const Computation& computation, const std::string& folder) const override;
  std::unique_ptr<LoadedComputation> load(const std::string& folder, torch::Device device) const override;
};

}  // namespace tutti
