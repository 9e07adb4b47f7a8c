#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/base/environment.h"

namespace tutti {

// The check of an exported model, by a process that has nothing of the one that has trained it: it loads the
// files by LibTorch alone, and compares what they compute with what the trained model has predicted.

// A batch, with the predictions of the trained model.
struct CheckedBatch {
  std::vector<torch::Tensor> inputs;
  std::vector<torch::Tensor> outputs;
};

struct CheckedFunction {
  std::string name;
  std::vector<std::string> outputs;  // their names, for errors
  std::vector<CheckedBatch> batches = {};
};

struct CheckOptions {
  std::string format;
  torch::Device device = torch::kCPU;
  int threads = 1;
  // The difference of two numbers a and b may be up to tolerance * (1 + |b|).
  double tolerance = 0;
  // The program that checks: one whose main() calls tutti::run(), or `tutti-torch`. "": `tutti-torch`, in the
  // folder of this program or in those of PATH.
  std::string program;
  std::chrono::milliseconds timeout{600000};
};

struct CheckResult {
  bool same_bits = false;          // in Mode::Exact, with the kernels of the process that asks
  double greatest_difference = 0;  // in any mode, relative to 1 + |b|
};

// Checks the model in the folder, and returns a result for each function. Throws an InvalidArgument that says
// what is different, and a Timeout if the process does not end. Leaves nothing in the folder.
std::vector<CheckResult> check_export(const std::string& folder,
                                      const std::vector<CheckedFunction>& functions,
                                      const CheckOptions& options);

// Makes the check and returns the exit code, if this process was started for one; else returns nullopt.
std::optional<int> answer_export_check(const Environment& environment);

}  // namespace tutti
