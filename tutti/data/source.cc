#include "tutti/data/source.h"

#include <cstring>

#include <ATen/Functions.h>

#include "tutti/base/error.h"

namespace tutti::data {
namespace {

// Copies rows without index_select, which would start kernel threads that compete with those of the training
// loop.
torch::Tensor copy_rows(const torch::Tensor& from, std::span<const int64_t> rows) {
  auto shape = from.sizes().vec();
  shape[0] = static_cast<int64_t>(rows.size());
  torch::Tensor to = at::empty(shape, from.options());
  const size_t row_bytes = from.size(0) == 0 ? 0 : from.nbytes() / static_cast<size_t>(from.size(0));
  if (row_bytes == 0) return to;
  const auto* source = static_cast<const char*>(from.data_ptr());
  auto* target = static_cast<char*>(to.data_ptr());
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    end = begin + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    const size_t bytes = (end - begin) * row_bytes;
    std::memcpy(target, source + static_cast<size_t>(rows[begin]) * row_bytes, bytes);
    target += bytes;
  }
  return to;
}

torch::Tensor select_on_device(const torch::Tensor& from, std::span<const int64_t> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  torch::Tensor index = at::empty({count}, at::kLong);
  std::memcpy(index.data_ptr(), rows.data(), rows.size_bytes());
  return at::index_select(from, 0, index.to(from.device()));
}

class TensorSource final : public Source {
 public:
  explicit TensorSource(Batch batch) : batch_(std::move(batch)) {}

  int64_t size() const override { return batch_.size(); }

  Batch read(std::span<const int64_t> examples) const override {
    check_examples(examples, size(), "tensors in memory");
    Batch::Tensors rows;
    rows.reserve(batch_.tensors().size());
    for (const auto& [name, tensor] : batch_.tensors()) {
      rows.emplace_back(
          name, tensor.device().is_cpu() ? copy_rows(tensor, examples) : select_on_device(tensor, examples));
    }
    return Batch(std::move(rows));
  }

 private:
  const Batch batch_;
};

}  // namespace

std::string Source::id(int64_t example) const { return std::to_string(example); }

std::string Source::place_of(int64_t /*example*/) const { return {}; }

TableStatistics Source::statistics(const std::string& name) const {
  return statistics_in_parts(
      size(), [&](std::span<const int64_t> examples) { return statistics_of(read(examples)[name]); });
}

std::shared_ptr<const Source> from_tensors(Batch::Tensors tensors) {
  if (tensors.empty()) fail(ErrorKind::InvalidArgument, "from_tensors: at least one tensor is needed");
  Batch checked(std::move(tensors));
  Batch::Tensors contiguous;
  for (const auto& [name, tensor] : checked.tensors()) {
    contiguous.emplace_back(name, tensor.detach().contiguous());
  }
  return std::make_shared<TensorSource>(Batch(std::move(contiguous)));
}

void check_examples(std::span<const int64_t> examples, int64_t size, std::string_view what) {
  for (const int64_t example : examples) {
    if (example < 0 || example >= size) {
      fail(ErrorKind::Bug, "{}: example {} was requested, but there are only {}", what, example, size);
    }
  }
}

}  // namespace tutti::data
