#include "tutti/kernels/scratch.h"

#include <array>
#include <hwy/aligned_allocator.h>

namespace tutti::kernels {

void* scratch_bytes(Buffer buffer, size_t bytes) {
  struct Memory {
    hwy::AlignedFreeUniquePtr<char[]> data;
    size_t size = 0;
  };
  thread_local std::array<Memory, static_cast<size_t>(Buffer::Count)> all;
  Memory& memory = all[static_cast<size_t>(buffer)];
  if (memory.size < bytes) {
    memory.data.reset();  // frees the old memory before the new memory is allocated
    memory.data = hwy::AllocateAligned<char>(bytes);
    memory.size = bytes;
  }
  return memory.data.get();
}

}  // namespace tutti::kernels
