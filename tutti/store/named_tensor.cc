#include "tutti/store/named_tensor.h"

#include <algorithm>

namespace tutti::store {
namespace {

constexpr int64_t kPieceBytes = 16 << 20;

std::span<const std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

// Splits along the first dimension until a piece is small enough to be copied.
void copy_pieces(const torch::Tensor& tensor, const std::function<void(std::span<const std::byte>)>& take) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (tensor.device().is_cpu() && tensor.is_contiguous()) {
    take(bytes_of(tensor));
  } else if (bytes <= kPieceBytes || tensor.dim() == 0) {
    take(bytes_of(tensor.contiguous().cpu()));
  } else if (tensor.size(0) == 1) {
    copy_pieces(tensor.select(0, 0), take);
  } else {
    const int64_t rows = std::max<int64_t>(1, tensor.size(0) * kPieceBytes / bytes);
    for (int64_t row = 0; row < tensor.size(0); row += rows) {
      copy_pieces(tensor.narrow(0, row, std::min(rows, tensor.size(0) - row)), take);
    }
  }
}

}  // namespace

void for_each_piece(const torch::Tensor& tensor,
                    const std::function<void(std::span<const std::byte>)>& take) {
  // A negated view has the opposite sign of the numbers in its memory.
  copy_pieces(tensor.detach().resolve_neg(), take);
}

}  // namespace tutti::store
