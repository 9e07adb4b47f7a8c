#include "tutti/train/export/examples.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/params/parameters.h"

namespace tutti {
namespace {

constexpr int64_t kFewestExamples = 4;
constexpr int64_t kMoreExamples = 7;
// With each size there are twice as many traces.
constexpr size_t kMostSizes = 3;

Batch read_batch(const data::Feed& feed, int64_t begin, int64_t count, torch::Device device) {
  std::vector<int64_t> indices;
  for (int64_t i = begin; i < begin + count; ++i) indices.push_back(i % feed.size());
  const Batch batch = feed.read(indices);
  if (batch.size() != count) fail(ErrorKind::InvalidArgument, "the feed changes the number of examples");
  return batch.to(device);
}

Batch with_examples(const Batch& batch, int64_t examples) {
  Batch::Tensors tensors;
  for (const auto& [name, tensor] : batch.tensors())
    tensors.emplace_back(name, tensor.narrow(0, 0, examples));
  return Batch(std::move(tensors));
}

// Leaves out what comes after the first `value` of a size.
Batch with_size(const Batch& batch, const FreeSize& size, int64_t value) {
  Batch::Tensors tensors;
  for (const auto& [name, tensor] : batch.tensors()) {
    torch::Tensor cut = tensor;
    for (const auto& [of, dimension] : size.of) {
      if (of == name && cut.size(dimension) > value) cut = cut.narrow(dimension, 0, value).contiguous();
    }
    tensors.emplace_back(name, cut);
  }
  return Batch(std::move(tensors));
}

int64_t value_in(const Batch& batch, const FreeSize& size) {
  return batch[size.of.front().first].size(size.of.front().second);
}

// A size, and the second value that it has in traces: the first one is cut to it.
struct CutSize {
  FreeSize size;
  int64_t second = 0;
};

CutSize declared_size(const FreeSize& size, const Batch& batch) {
  if (size.name.empty() || size.of.empty())
    fail(ErrorKind::InvalidArgument,
         "a free size of an export needs a name, and an input that has it (FreeSize::name, FreeSize::of)");
  for (const auto& [input, dimension] : size.of) {
    const torch::Tensor& tensor = batch[input];  // throws
    if (dimension < 1 || dimension >= tensor.dim())
      fail(ErrorKind::InvalidArgument,
           "the free size '{}' cannot be the dimension {} of '{}', which is {}: expected 1 or more "
           "(dimension 0 is "
           "the number of examples, which is always free)",
           size.name, dimension, input, describe(tensor));
    if (tensor.size(dimension) != value_in(batch, size))
      fail(ErrorKind::InvalidArgument,
           "the free size '{}' is not the same in all of its inputs: '{}' is {}, and '{}' is {}. Give them "
           "two sizes",
           size.name, size.of.front().first, describe(batch[size.of.front().first]), input, describe(tensor));
  }
  const int64_t most = value_in(batch, size);
  if (size.least < 1 || most <= size.least)
    fail(ErrorKind::InvalidArgument,
         "the free size '{}' is {} in the feed, and its least value is {}: the model is traced with two "
         "values, so "
         "the feed needs a greater one",
         size.name, most, size.least);
  return {size, (most + size.least) / 2};
}

// Finds sizes that differ among batches of the feed, as the longest list of a column does. Those that have
// the same values in all batches are one size.
std::vector<CutSize> differing_sizes(const std::vector<Batch>& batches,
                                     const std::set<std::pair<std::string, int64_t>>& declared) {
  std::vector<CutSize> sizes;
  std::map<std::vector<int64_t>, size_t> known;
  for (const auto& [name, tensor] : batches.front().tensors()) {
    for (int64_t d = 1; d < tensor.dim(); ++d) {
      std::vector<int64_t> values;
      int64_t second = 0;  // the greatest value that the first batch can be cut to
      for (const Batch& batch : batches) {
        values.push_back(batch[name].size(d));
        if (values.back() < values.front()) second = std::max(second, values.back());
      }
      if (second == 0 || declared.contains({name, d})) continue;
      const auto [found, is_new] = known.try_emplace(values, sizes.size());
      if (is_new) sizes.push_back({{.name = fmt::format("size {} of {}", d, name)}, second});
      sizes[found->second].size.of.emplace_back(name, d);
    }
  }
  return sizes;
}

}  // namespace

std::vector<int64_t> ExportExamples::values_of(const FreeSize& size) const {
  std::vector<int64_t> values;
  for (const Batch& batch : batches) {
    const int64_t value = value_in(batch, size);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
  return values;
}

ExportExamples read_export_examples(const data::Feed& feed, const ExportOptions& options,
                                    torch::Device device) {
  if (options.examples < 1)
    fail(ErrorKind::InvalidArgument, "an export with {} examples, expected 1 or more", options.examples);
  if (feed.size() == 0)
    fail(ErrorKind::InvalidArgument,
         "the feed has no examples, with which an exported model is traced and checked");
  const int64_t count = std::max(options.examples, kFewestExamples);
  const Batch first = read_batch(feed, 0, count, device);
  Batch one = read_batch(feed, 0, 1, device);
  Batch more = read_batch(feed, count, kMoreExamples, device);

  std::vector<CutSize> sizes;
  std::set<std::pair<std::string, int64_t>> declared;
  for (const FreeSize& size : options.free_sizes) {
    sizes.push_back(declared_size(size, first));
    declared.insert(size.of.begin(), size.of.end());
  }
  if (sizes.size() > kMostSizes)
    fail(ErrorKind::InvalidArgument, "an export has {} free sizes, but it can have {} at most", sizes.size(),
         kMostSizes);
  for (const CutSize& size : differing_sizes({first, one, more}, declared)) {
    if (sizes.size() < kMostSizes) sizes.push_back(size);
  }

  ExportExamples examples;
  for (size_t which = 0; which < size_t{2} << sizes.size(); ++which) {
    Batch batch = (which & 1) == 0 ? first : with_examples(first, count / 2);
    for (size_t k = 0; k < sizes.size(); ++k) {
      if ((which >> (k + 1) & 1) != 0) batch = with_size(batch, sizes[k].size, sizes[k].second);
    }
    examples.batches.push_back(batch);
  }
  // A number that only looks like a multiple of a size is wrong for other values than the traced ones.
  for (size_t k = 0; k < options.free_sizes.size(); ++k) {
    const FreeSize& size = sizes[k].size;
    one = with_size(one, size, size.least);
    more = with_size(more, size, std::max(value_in(first, size) - 1, size.least));
  }
  examples.batches.push_back(one);
  examples.batches.push_back(more);
  for (const CutSize& each : sizes) examples.sizes.push_back(each.size);
  return examples;
}

}  // namespace tutti
