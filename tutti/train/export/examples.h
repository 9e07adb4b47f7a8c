#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/data/feed.h"
#include "tutti/train/export.h"

namespace tutti {

// The batches with which a model is traced and compared.
struct ExportExamples {
  // Sizes, besides the number of examples, that are not the same in all batches: those that the options name,
  // and those that differ among batches of the feed.
  std::vector<FreeSize> sizes;
  // The first ones are traced, in which every size has two values, in all combinations: the number of
  // examples has its second value where the bit 0 of the index is set, and sizes[k] where the bit k + 1 is.
  // The others, one of which has one example, are only compared.
  std::vector<Batch> batches;

  // The values of a size, each once, in the order of the batches.
  std::vector<int64_t> values_of(const FreeSize& size) const;
};

// Reads them. Throws an InvalidArgument if the options do not fit the feed.
ExportExamples read_export_examples(const data::Feed& feed, const ExportOptions& options,
                                    torch::Device device);

}  // namespace tutti
