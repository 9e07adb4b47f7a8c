#pragma once

#include <cstdint>
#include <exception>

namespace tutti {

// The result of machine_memory(), in bytes.
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

// Tunes glibc's allocator for training, in which every step allocates and frees the same tensors. This
// affects the whole process, so only main() may call it, before it starts threads: tutti::run() and `tutti`
// do. Does nothing with another C library.
//  - Freed memory is kept. By default blocks of this size go back to the system each time, and the kernel
//    clears their pages again, which costs a seventh of a step of a small network (docs/benchmarks.md).
//  - Small freed blocks are merged with their neighbours at once. By default they wait in lists ("fastbins")
//    until a larger block is allocated. LibTorch's aligned allocations leave such a block on each side: as
//    long as these wait, the memory between them is too small for the next aligned allocation, and each step
//    takes new memory (glibc bug 30723). With batches of less than a kilobyte, a process grew by 300 to 600
//    bytes a step.
void tune_heap();

// Returns true if an exception of the standard library or of LibTorch means that memory, threads, processes,
// file descriptors or disk space have run out. This is then an Overloaded error and not an invalid request.
bool ran_out(const std::exception& error);

}  // namespace tutti
