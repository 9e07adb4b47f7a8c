#include "tutti/train/passive/lane_wire.h"

#include <utility>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/type_name.h"

namespace tutti::passive {
namespace {

// How it is sent.
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
  for (const auto& view : parameters.frozen()) all.push_back(view.tensor.detach());
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
  Json columns = Json::array();
  for (const auto& [name, tensor] : batch.tensors()) {
    columns.push_back(
        {{"name", name}, {"type", type_name(tensor.scalar_type())}, {"sizes", tensor.sizes().vec()}});
    message.pieces.push_back(ps::piece_of(flat(tensor)));
  }
  return columns;
}

Batch take_batch(ps::Reader& reader, const Json& columns) {
  Batch::Tensors tensors;
  for (const Json& column : columns) {
    const std::vector<int64_t> sizes = ps::sizes_in(column, "sizes");
    int64_t elements = 1;
    for (const int64_t size : sizes) elements *= size;
    tensors.emplace_back(ps::text_in(column, "name"),
                         reader.take(elements, ps::type_in(column, "type")).view(sizes));
  }
  return Batch(std::move(tensors));
}

}  // namespace tutti::passive
