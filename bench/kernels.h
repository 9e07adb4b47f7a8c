#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

namespace bench {

// One call of LibTorch that is measured with LibTorch's own kernels and with those of tutti/kernels.
struct KernelCase {
  std::string network;  // where the shape comes from
  std::string call;     // the operator and the shape
  std::function<void()> run;
};

// The products and convolutions, forward and backward, of the networks that the README shows.
std::vector<KernelCase> product_cases();

// The functions of one element, reductions, normalisations, losses and attention of the same networks, and
// others of these.
std::vector<KernelCase> function_cases();

// A training step: forward, loss, backward, and the optimiser.
struct StepCase {
  std::string network;
  std::function<std::function<void()>()> make;  // makes the network, and returns its step
};

std::vector<StepCase> step_cases();

// Returns the seconds that this thread has used, which do not grow while other programs use its core.
double thread_seconds();

// Prints the operators that take the time of a step, with both kernels.
void print_operators(const StepCase& step);

}  // namespace bench
