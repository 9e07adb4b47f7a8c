#include "tutti/store/named_tensors.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/type_name.h"

namespace tutti::store {
namespace {

// What an outline says of a tensor.
struct Form {
  torch::ScalarType type;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t bytes = 0;
};

// Returns the number of elements. Throws InvalidArgument unless a tensor of this form has no gaps in memory.
int64_t elements_in(const Form& form) {
  constexpr int64_t kMost = int64_t{1} << 40;  // no tensor has so many, and sizes in bytes do not overflow
  const auto refuse = [&] {
    fail(ErrorKind::InvalidArgument, "a tensor of shape [{}] cannot have the strides [{}]",
         fmt::join(form.shape, ","), fmt::join(form.strides, ","));
  };
  if (form.shape.size() != form.strides.size()) refuse();
  int64_t elements = 1;
  int64_t last = 0;
  const bool empty = std::find(form.shape.begin(), form.shape.end(), 0) != form.shape.end();
  for (size_t d = 0; d < form.shape.size(); ++d) {
    const int64_t size = form.shape[d];
    const int64_t stride = form.strides[d];
    if (size < 0 || size > kMost || stride < 0) refuse();
    if (empty || size == 1) continue;
    if (elements > kMost / size || stride > kMost / size) refuse();
    elements *= size;
    last += (size - 1) * stride;
  }
  if (!empty && last + 1 != elements) refuse();
  return empty ? 0 : elements;
}

// Returns nullopt for an undefined tensor.
std::optional<Form> form_in(const Json& outline) {
  try {
    if (outline.at("type").is_null()) return std::nullopt;
    Form form{type_named(outline.at("type").get<std::string>()),
              outline.at("shape").get<std::vector<int64_t>>(),
              outline.at("strides").get<std::vector<int64_t>>()};
    form.bytes = elements_in(form) * static_cast<int64_t>(c10::elementSize(form.type));
    return form;
  } catch (const Json::exception& error) {
    fail(ErrorKind::InvalidArgument, "the outline of a tensor is invalid: {}", error.what());
  }
}

void require_list(const Json& outlines) {
  if (!outlines.is_array()) fail(ErrorKind::InvalidArgument, "a list of tensors is missing");
}

}  // namespace

TensorsByName by_name(const NamedTensors& tensors) {
  TensorsByName map;
  for (const auto& [name, tensor] : tensors) map.emplace(name, tensor);
  return map;
}

NamedTensors dense(NamedTensors tensors) {
  for (auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    if (tensor.layout() != torch::kStrided)
      fail(ErrorKind::InvalidArgument, "a sparse tensor cannot be sent: make it dense first");
    tensor = tensor.detach().to(torch::kCPU).resolve_neg();
    if (!tensor.is_non_overlapping_and_dense()) tensor = tensor.contiguous();
  }
  return tensors;
}

torch::Tensor elements_of(const torch::Tensor& dense) { return dense.as_strided({dense.numel()}, {1}); }

Json outline_of(const NamedTensors& dense) {
  Json outlines = Json::array();
  for (const auto& [name, tensor] : dense) {
    if (tensor.defined())
      outlines.push_back({{"name", name},
                          {"type", type_name(tensor.scalar_type())},
                          {"shape", tensor.sizes().vec()},
                          {"strides", tensor.strides().vec()}});
    else
      outlines.push_back({{"name", name}, {"type", nullptr}});
  }
  return outlines;
}

Json outline_of(const Snapshot& dense) {
  return {{"values", dense.values}, {"tensors", outline_of(dense.tensors)}};
}

NamedTensor empty_tensor(const Json& outline) {
  const std::optional<Form> form = form_in(outline);
  return {outline.at("name").get<std::string>(),
          form ? torch::empty_strided(form->shape, form->strides, form->type) : torch::Tensor()};
}

NamedTensors empty_tensors(const Json& outlines) {
  require_list(outlines);
  NamedTensors tensors;
  for (const Json& outline : outlines) tensors.push_back(empty_tensor(outline));
  return tensors;
}

Snapshot empty_snapshot(const Json& outline) {
  return {empty_tensors(outline.at("tensors")), outline.at("values")};
}

int64_t bytes_in(const Json& outlines) {
  if (outlines.is_object()) {
    const std::optional<Form> form = form_in(outlines);
    return form ? form->bytes : 0;
  }
  require_list(outlines);
  int64_t bytes = 0;
  for (const Json& outline : outlines) bytes += bytes_in(outline);
  return bytes;
}

}  // namespace tutti::store
