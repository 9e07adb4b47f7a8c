#include "tutti/comm/arguments.h"

#include <ATen/MemoryOverlap.h>

#include "tutti/base/error.h"
#include "tutti/base/type_name.h"

namespace tutti::comm {

void require_tensor(const char* call, const torch::Tensor& tensor) {
  if (!tensor.defined()) fail(ErrorKind::InvalidArgument, "{}: a tensor is undefined", call);
  if (tensor.layout() != torch::kStrided)
    fail(ErrorKind::InvalidArgument, "{}: a tensor is sparse; pass the result of its to_dense()", call);
  if (tensor.is_meta() || tensor.is_quantized())
    fail(ErrorKind::InvalidArgument, "{}: a tensor {}", call,
         tensor.is_meta() ? "is on the device 'meta', so it has no values"
                          : "is quantized; pass the result of its dequantize()");
}

void require_writable(const char* call, const torch::Tensor& tensor) {
  require_tensor(call, tensor);
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    fail(
        ErrorKind::InvalidArgument,
        "{} writes to a tensor of which several elements share memory, as after expand(); pass the result of "
        "its contiguous()",
        call);
}

void require_writable(const char* call, const std::vector<torch::Tensor>& tensors) {
  for (const torch::Tensor& tensor : tensors) require_writable(call, tensor);
}

void require_fit(const char* call, const torch::Tensor& whole, const torch::Tensor& part, int parts) {
  if (whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * parts) return;
  fail(ErrorKind::InvalidArgument, "{}: {} {} elements cannot be divided into {} parts of {} {} elements",
       call, whole.numel(), type_name(whole.scalar_type()), parts, part.numel(),
       type_name(part.scalar_type()));
}

void require_one_each(const char* call, const std::vector<torch::Tensor>& tensors, int world) {
  if (tensors.size() != static_cast<size_t>(world))
    fail(ErrorKind::InvalidArgument, "{}: {} tensors were given for {} ranks; expected one for each rank",
         call, tensors.size(), world);
}

void require_rank(const char* call, int rank, int world) {
  if (rank < 0 || rank >= world)
    fail(ErrorKind::InvalidArgument, "{}: there is no rank {}; there are {} ranks", call, rank, world);
}

}  // namespace tutti::comm
