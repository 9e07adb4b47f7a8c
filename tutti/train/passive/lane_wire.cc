#include "tutti/train/passive/lane_wire.h"

#include <algorithm>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti::passive {
namespace {

// Returns the tensor in the form in which it is sent.
torch::Tensor flat(const torch::Tensor& tensor) { return tensor.detach().cpu().contiguous(); }

}  // namespace

std::vector<torch::Tensor> everything(const Parameters& parameters) {
  std::vector<torch::Tensor> all;
  for (const Stretch& block : parameters.blocks()) all.push_back(block.values.detach());
  all.insert(all.end(), parameters.buffer_vectors().begin(), parameters.buffer_vectors().end());
  for (const auto& view : parameters.buffers()) {
    if (!view.tensor.is_floating_point()) all.push_back(view.tensor);
  }
  return all;
}

std::vector<torch::Tensor> frozen(const Parameters& parameters) {
  std::vector<torch::Tensor> all;
  std::vector<const Parameters::View*> views;
  for (const auto& view : parameters.frozen()) views.push_back(&view);
  std::sort(views.begin(), views.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const auto* view : views) all.push_back(view->tensor.detach());
  return all;
}

void append(rpc::Message& message, const std::vector<torch::Tensor>& tensors) {
  for (const torch::Tensor& tensor : tensors) message.pieces.push_back(ps::piece_of(flat(tensor)));
}

void take_into(ps::Reader& reader, const std::vector<torch::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& tensor : tensors)
    torch::Tensor(tensor).copy_(reader.take(tensor.numel(), tensor.scalar_type()).view(tensor.sizes()));
}

Json append(rpc::Message& message, const Batch& batch) {
  Json names = Json::array();
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : batch.tensors()) {
    names.push_back(name);
    tensors.push_back(tensor);
  }
  return {{"names", names}, {"tensors", ps::pack(tensors, message.pieces)}};
}

Batch take_batch(ps::Reader& reader, const Json& outline) {
  const std::vector<std::string> names = ps::lines_in(outline, "names");
  const std::vector<torch::Tensor> unpacked = ps::unpack(outline.at("tensors"), reader);
  if (names.size() != unpacked.size())
    fail(ErrorKind::InvalidArgument, "the message has {} names for {} tensors", names.size(),
         unpacked.size());
  Batch::Tensors tensors;
  for (size_t i = 0; i < names.size(); ++i) tensors.emplace_back(names[i], unpacked[i]);
  return Batch(std::move(tensors));
}

}  // namespace tutti::passive
