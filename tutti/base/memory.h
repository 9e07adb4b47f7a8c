#pragma once

#include <cstdint>

namespace tutti {

struct MachineMemory {
  uint64_t available = 0;  // bytes
  uint64_t total = 0;
};
// Returns the memory of this machine or, if that is less, of its control group (a container's limit).
MachineMemory machine_memory();

// Allocates the pages [begin, begin + size) of a file in memory (memfd_create) now. Throws Overloaded if that
// is more than the machine has available: otherwise the kernel would end processes, of this job or of others,
// to get so much, or raise a signal at the first access.
void allocate_pages(int descriptor, uint64_t begin, uint64_t size);

}  // namespace tutti
