#pragma once

namespace tutti {

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

}  // namespace tutti
