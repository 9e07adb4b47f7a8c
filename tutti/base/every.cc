#include "tutti/base/every.h"

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

Every parse_every(std::string_view text) {
  if (text.ends_with('s')) {
    const auto seconds = parse_double(text.substr(0, text.size() - 1));
    if (seconds && std::isfinite(*seconds) && *seconds >= 0) return {.steps = 0, .seconds = *seconds};
  } else if (const auto steps = parse_int(text); steps && *steps >= 0) {
    return {.steps = *steps, .seconds = 0};
  }
  fail(ErrorKind::InvalidArgument, "'{}' is not a number of steps (500) or of seconds (600s)", text);
}

bool Due::at(int64_t step) const {
  if (every_.steps > 0) return step / every_.steps > step_ / every_.steps;
  return every_.seconds > 0 &&
         std::chrono::steady_clock::now() - last_ >= std::chrono::duration<double>(every_.seconds);
}

}  // namespace tutti
