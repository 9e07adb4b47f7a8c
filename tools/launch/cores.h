#pragma once

#include <vector>

namespace tutti {

// Returns the logical cores that this process may run on. Logical cores of one physical core are next to each
// other, and so are cores of one package.
std::vector<int> usable_cores();

// Returns the part of `cores` for worker `index` of `workers`: contiguous, and all parts differ by at most
// one core. Empty if there are fewer cores than workers: then no worker is pinned.
std::vector<int> share_of(const std::vector<int>& cores, int index, int workers);

}  // namespace tutti
