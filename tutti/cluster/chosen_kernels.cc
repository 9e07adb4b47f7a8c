#include "tutti/cluster/chosen_kernels.h"

#include <ATen/Context.h>

#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/kernels/instructions.h"

namespace tutti {

namespace {

// Some of cuDNN's algorithms add in another order each time. LibTorch then chooses among the others.
void use_repeatable_algorithms() { at::globalContext().setDeterministicCuDNN(true); }

}  // namespace

// TUTTI_TEST_INSTRUCTIONS limits the kernels as if this processor had no better instructions, for
// comparisons.
std::shared_ptr<kernels::SameKernels> chosen_kernels(std::string_view kernels, c10::Device device,
                                                     const Log& log) {
  if (kernels == "libtorch") return nullptr;
  if (kernels == "auto" && !device.is_cpu()) {
    use_repeatable_algorithms();
    return nullptr;
  }
  if (!device.is_cpu())
    fail(ErrorKind::Unimplemented,
         "--kernels {} is for the CPU, but this task computes on {}: use --device cpu or --kernels libtorch",
         kernels, device.str());
  if (const auto instructions = Environment::of_process().get("TUTTI_TEST_INSTRUCTIONS"))
    kernels::use_instructions(*instructions);
  if (!kernels::have_fused_instructions())
    log.warning(
        "this processor has no instruction that multiplies and adds with one rounding; --kernels {} computes "
        "the same bits without it, but slowly. --kernels libtorch is faster here",
        kernels);
  return std::make_shared<kernels::SameKernels>();
}

}  // namespace tutti
