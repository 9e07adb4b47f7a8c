#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

namespace tutti {

// The facts that determine the bits of a result besides the program and its data. Two tasks with the same
// facts compute with the same kernels, as far as this can be determined without running the whole training.
// The hashes also distinguish limits and processors for which this struct has no field.
struct Kernels {
  // With the kernels of tutti/kernels: their version. With LibTorch's on the CPU: LibTorch and the
  // instruction set of its kernels, the limits that variables such as ONEDNN_MAX_CPU_ISA and MKL_CBWR set,
  // OpenBLAS's core. On a GPU: LibTorch, CUDA, cuDNN, and the kind of GPU.
  std::string libraries;
  // Hash of an optimiser's operations on a few numbers, which do not depend on the number of threads. "" on a
  // GPU.
  std::string updates;
  int threads = 1;  // 0: results do not depend on it
  // Hash of these, and of a product, a convolution and other functions, forward and backward. "" on a GPU.
  std::string results;

  bool on_cpu() const { return !updates.empty(); }
  // Returns the facts that all tasks which compute gradients have to have in common, one per line.
  std::vector<std::string> lines() const;
  // Returns only the lines that matter to a task that adds gradients and updates parameters on the CPU, such
  // as a parameter server; they come first in lines(). None on a GPU.
  std::vector<std::string> lines_of_updates() const;
};

// Computes with the kernels of this process, for some milliseconds. Leaves LibTorch's random generators as
// they are. `precision` is a value of --precision. On the CPU, `threads` has to be the number of threads with
// which the calling thread runs kernels.
Kernels find_kernels(c10::Device device, int threads, std::string_view precision = "fp32");
// Returns the lines_of_updates() of kernels on the CPU. Does not load what only the other kernels need, so
// that a server starts at once.
std::vector<std::string> find_lines_of_updates();

}  // namespace tutti
