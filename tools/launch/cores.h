#pragma once

#include <vector>

namespace tutti {

// The logical cores that this process may run on, those of one physical core side by side, then those of one
// package.
std::vector<int> usable_cores();

// The part of `cores` for worker `index` of `workers`: contiguous, and all parts differ by at most one core.
// Empty where there are fewer cores than workers: then nobody is pinned.
std::vector<int> share_of(const std::vector<int>& cores, int index, int workers);

}  // namespace tutti
