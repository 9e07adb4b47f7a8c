#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tutti::comm {

// How two lists of facts differ, such as "--batch 32", as each of them has it, in quotes.
struct Difference {
  std::string one;
  std::string other;
};

// Returns the first difference; nullopt if there is none. If it is that of a flag, returns all flags that
// differ, since one may have changed another: --epochs sets --steps to 0.
std::optional<Difference> difference_of(const std::vector<std::string>& one,
                                        const std::vector<std::string>& other);

}  // namespace tutti::comm
