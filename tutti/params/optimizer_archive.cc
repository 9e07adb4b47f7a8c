#include "tutti/params/optimizer_archive.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include <torch/serialize/archive.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

torch::serialize::InputArchive opened(const torch::Tensor& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel()));
  return archive;
}

torch::Tensor bytes_from(const std::string& text) {
  const torch::Tensor bytes = torch::empty({static_cast<int64_t>(text.size())}, torch::kUInt8);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

}  // namespace

torch::Tensor archive_of(const torch::optim::Optimizer& optimizer, const std::string& name) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  const torch::Tensor bytes = bytes_from(out.str());
  if (opened(bytes).keys().empty())
    fail(ErrorKind::InvalidArgument,
         "the optimiser {} saves nothing, so a checkpoint would not contain its state: override "
         "torch::optim::Optimizer::save() and load()",
         name);
  return bytes;
}

void load_archive(torch::optim::Optimizer& optimizer, const torch::Tensor& archive, const std::string& name) {
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (const auto& group : optimizer.param_groups()) options.push_back(group.options().clone());
  try {
    auto input = opened(archive);
    optimizer.load(input);
  } catch (const c10::Error& error) {
    fail(ErrorKind::InvalidArgument, "the saved state does not fit the optimiser {}: {}", name,
         first_line(error.what()));
  }
  for (size_t i = 0; i < options.size(); ++i) optimizer.param_groups()[i].set_options(std::move(options[i]));
}

}  // namespace tutti
