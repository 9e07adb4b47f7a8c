#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::kernels {

// The buffers of a thread, for the parts of operands and results that it works on, and for the images of the
// convolution that it begins.
enum class Buffer { Left, Right, Result, Images, Count };

// Returns memory of this thread, aligned to 128 bytes, that stays valid until the thread asks for more in the
// same buffer. It is kept until the thread ends, since new pages cost more than what is computed in them.
void* scratch_bytes(Buffer buffer, size_t bytes);

template <class T>
T* scratch(Buffer buffer, int64_t count) {
  return static_cast<T*>(scratch_bytes(buffer, static_cast<size_t>(count) * sizeof(T)));
}

}  // namespace tutti::kernels
