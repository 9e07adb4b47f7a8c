#pragma once

#include <torch/types.h>

#include "tutti/base/type_name.h"
#include "tutti/transport/reduce.h"

namespace tutti::comm {

// A sum of tensors over ranks. Its tensors are plain memory on one device; undefined where this rank has
// none.
using SlicedSum = SumOf<torch::Tensor>;

inline ElementType element_type(torch::ScalarType type) { return static_cast<ElementType>(type); }
inline torch::ScalarType scalar_type(ElementType type) { return static_cast<torch::ScalarType>(type); }

}  // namespace tutti::comm
