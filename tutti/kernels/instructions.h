#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::kernels {

// Returns the vector instructions that the loops of this module can use on this processor, the fastest first:
// some of "avx512", "avx2", "sse4", "neon" and "portable", which is no vector instructions. With all of them
// the loops give the same bits.
std::vector<std::string> available_instructions();

// From now on the loops of this process use these instructions, and no longer the fastest ones. Throws
// InvalidArgument if they are not available. No operator may run meanwhile.
void use_instructions(std::string_view name);

// Returns true if the instructions in use multiply and add with one rounding. If not, the loops do so for
// one element at a time, which is slow.
bool have_fused_instructions();

}  // namespace tutti::kernels
