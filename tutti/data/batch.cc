#include "tutti/data/batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/type_name.h"

namespace tutti {
namespace {

std::vector<std::string> names_of(const Batch::Tensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

const torch::Tensor* find(const Batch::Tensors& tensors, std::string_view name) {
  for (const auto& [candidate, tensor] : tensors) {
    if (candidate == name) return &tensor;
  }
  return nullptr;
}

void check_tensor(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) {
    fail(ErrorKind::InvalidArgument, "batch: '{}' is an undefined tensor", name);
  }
  if (tensor.dim() == 0) {
    fail(ErrorKind::InvalidArgument,
         "batch: '{}' has no dimensions; the size of the first one must be the number of examples", name);
  }
}

}  // namespace

Batch::Batch(Tensors tensors) : tensors_(std::move(tensors)) {
  for (const auto& [name, tensor] : tensors_) {
    check_tensor(name, tensor);
    if (find(tensors_, name) != &tensor) {
      fail(ErrorKind::InvalidArgument, "batch: the name '{}' occurs twice", name);
    }
    if (tensor.size(0) != tensors_.front().second.size(0)) {
      fail(ErrorKind::InvalidArgument, "batch: '{}' has {} rows, but '{}' has {}", tensors_.front().first,
           tensors_.front().second.size(0), name, tensor.size(0));
    }
  }
}

const torch::Tensor& Batch::operator[](std::string_view name) const {
  if (const torch::Tensor* tensor = find(tensors_, name)) return *tensor;
  fail(ErrorKind::InvalidArgument, "batch: there is no tensor '{}'; the batch has: {}", name,
       tensors_.empty() ? "nothing" : fmt::format("{}", fmt::join(names_of(tensors_), ", ")));
}

bool Batch::has(std::string_view name) const { return find(tensors_, name) != nullptr; }

const torch::Tensor& Batch::front() const {
  if (tensors_.empty()) fail(ErrorKind::InvalidArgument, "batch: front() needs a batch with tensors");
  return tensors_.front().second;
}

int64_t Batch::size() const { return tensors_.empty() ? 0 : tensors_.front().second.size(0); }

Batch Batch::with_each(const std::function<torch::Tensor(const torch::Tensor&)>& replace) const {
  Batch changed = *this;
  for (auto& [name, tensor] : changed.tensors_) tensor = replace(tensor);
  return changed;
}

Batch Batch::to(torch::Device device) const {
  // A copy to the CPU is synchronous, since the caller could not find out when an asynchronous one has
  // finished.
  const bool asynchronous = !device.is_cpu();
  return with_each([&](const torch::Tensor& tensor) { return tensor.to(device, asynchronous); });
}

Batch Batch::pinned() const {
  return with_each([](const torch::Tensor& tensor) {
    return tensor.device().is_cpu() && !tensor.is_sparse() ? tensor.pin_memory() : tensor;
  });
}

std::string Batch::describe(int64_t example) const {
  if (name_of_ == nullptr) return fmt::format("example {} of the batch", example);
  return fmt::format("example {}", (*name_of_)(example));
}

void Batch::name_examples(NameOf name) { name_of_ = std::make_shared<const NameOf>(std::move(name)); }

}  // namespace tutti

namespace tutti::data {
namespace {

bool is_alike(const Column& a, const Column& b) {
  if (a.name != b.name || a.type != b.type || a.is_ragged != b.is_ragged) return false;
  if (!a.is_ragged) return a.shape == b.shape;
  return std::equal(a.shape.begin(), a.shape.end() - 1, b.shape.begin(), b.shape.end() - 1);
}

// Copies without kernels, whose threads would compete with the threads of the training loop.
void copy_rows(const torch::Tensor& from, const std::vector<int64_t>& positions, torch::Tensor& to) {
  const torch::Tensor rows = from.contiguous();
  if (positions.empty() || rows.nbytes() == 0) return;
  const size_t row_bytes = rows.nbytes() / positions.size();
  const auto* source = static_cast<const char*>(rows.data_ptr());
  auto* target = static_cast<char*>(to.data_ptr());
  for (size_t row = 0; row < positions.size(); ++row)
    std::memcpy(target + static_cast<size_t>(positions[row]) * row_bytes, source + row * row_bytes,
                row_bytes);
}

// Returns an index for index_select() that moves the rows, one part after the other, to their positions.
torch::Tensor rows_by_position(const std::vector<PartRows>& parts, int64_t rows) {
  torch::Tensor index = at::empty({rows}, at::kLong);
  auto* at = index.data_ptr<int64_t>();
  int64_t row = 0;
  for (const PartRows& part : parts) {
    for (const int64_t position : part.positions) at[position] = row++;
  }
  return index;
}

torch::Tensor join(const std::vector<PartRows>& parts, std::vector<torch::Tensor> tensors, int64_t rows,
                   bool is_ragged) {
  if (is_ragged) {
    int64_t longest = 0;
    for (const torch::Tensor& tensor : tensors) longest = std::max(longest, tensor.size(-1));
    for (torch::Tensor& tensor : tensors) {
      const at::Scalar padding = tensor.is_floating_point() ? at::Scalar(std::nan("")) : at::Scalar(-1);
      tensor = at::constant_pad_nd(tensor, {0, longest - tensor.size(-1)}, padding);
    }
  }
  const bool in_memory = std::all_of(tensors.begin(), tensors.end(), [](const torch::Tensor& tensor) {
    return tensor.device().is_cpu() && tensor.layout() == torch::kStrided;
  });
  if (!in_memory) {
    const torch::Tensor all = at::cat(tensors);
    return at::index_select(all, 0, rows_by_position(parts, rows).to(all.device()));
  }
  auto shape = tensors.front().sizes().vec();
  shape[0] = rows;
  torch::Tensor joined = at::empty(shape, tensors.front().options());
  for (size_t i = 0; i < parts.size(); ++i) copy_rows(tensors[i], parts[i].positions, joined);
  return joined;
}

}  // namespace

std::vector<Column> columns_in(const Batch& batch) {
  std::vector<Column> columns;
  for (const auto& [name, tensor] : batch.tensors()) {
    // Tables give the lengths of the lists in a column of this name (tables/table_source.h).
    const bool may_have_lists = tensor.is_floating_point() || tensor.scalar_type() == torch::kLong;
    const bool is_ragged = batch.has(name + " length") && tensor.dim() > 1 && may_have_lists;
    columns.push_back({name, tensor.scalar_type(), tensor.sizes().slice(1).vec(), is_ragged});
  }
  return columns;
}

std::string text_of(const std::vector<Column>& columns) {
  std::vector<std::string> texts;
  for (const Column& column : columns)
    texts.push_back(fmt::format("{} {}[{}{}]", column.name, type_name(column.type),
                                fmt::join(column.shape, ","), column.is_ragged ? " or longer" : ""));
  return texts.empty() ? "no columns" : fmt::format("{}", fmt::join(texts, ", "));
}

bool are_alike(const std::vector<Column>& a, const std::vector<Column>& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const Column& column) {
           return std::any_of(b.begin(), b.end(),
                              [&](const Column& other) { return is_alike(column, other); });
         });
}

Batch join_rows(const std::vector<PartRows>& parts, int64_t rows, const std::vector<Column>& columns) {
  for (const PartRows& part : parts) {
    const std::vector<Column> own = columns_in(part.batch);
    if (are_alike(columns, own)) continue;
    fail(ErrorKind::InvalidArgument,
         "feed: a batch of feed {} of a combined feed has {}, but the first example of the first feed had "
         "{}; every batch needs the same columns",
         part.part, text_of(own), text_of(columns));
  }
  Batch::Tensors joined;
  for (const Column& column : columns) {
    std::vector<torch::Tensor> tensors;
    for (const PartRows& part : parts) tensors.push_back(part.batch[column.name]);
    joined.emplace_back(column.name, join(parts, std::move(tensors), rows, column.is_ragged));
  }
  return Batch(std::move(joined));
}

}  // namespace tutti::data
