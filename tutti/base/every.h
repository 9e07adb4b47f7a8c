#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

// How often something is done: every so many steps, or every so many seconds, never both. Neither: not at
// all.
struct Every {
  int64_t steps = 0;
  double seconds = 0;

  bool never() const { return steps == 0 && seconds == 0; }
  bool operator==(const Every&) const = default;
};

// "500" is steps, "600s" and "0.5s" are seconds, "0" is never. Anything else is an InvalidArgument that
// quotes it.
Every parse_every(std::string_view text);

}  // namespace tutti
