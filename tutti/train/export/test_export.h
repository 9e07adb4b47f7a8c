#pragma once

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/script.h>

#include "tutti/train/replica.h"
#include "tutti/train/test_training.h"

// Functions that the tests of exports share. Each export starts the test program again as the process that
// checks the result.
namespace tutti {

inline Context export_context(RunConfig config = test_flags()) {
  config.exports.checker = "/proc/self/exe";
  return test_context(config);
}

inline std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

inline Json signature_in(const std::string& folder) {
  std::ifstream file(folder + "/signature.json");
  return Json::parse(file);
}

// Returns the outputs that a program without Tutti computes.
inline torch::Tensor outputs_of(const std::string& folder, const std::vector<torch::jit::IValue>& inputs) {
  const torch::NoGradGuard no_grad;
  torch::jit::Module module = torch::jit::load(folder + "/model.pt");
  return module.forward(inputs).toTensor();
}

inline Batch examples_of(const data::Feed& feed, int64_t count) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) indices.push_back(i);
  return feed.read(indices);
}

}  // namespace tutti
