#include "tutti/base/every.h"

#include <cmath>
#include <limits>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

Every parse_every(std::string_view text) {
  if (text == "auto") return {.automatic = true};
  if (text.ends_with('s')) {
    const auto seconds = parse_double(text.substr(0, text.size() - 1));
    if (seconds && std::isfinite(*seconds) && *seconds >= 0) return {.steps = 0, .seconds = *seconds};
  } else if (const auto steps = parse_int(text); steps && *steps >= 0) {
    return {.steps = *steps, .seconds = 0};
  }
  fail(ErrorKind::InvalidArgument, "'{}' is not a number of steps (500) or of seconds (600s), or auto", text);
}

StepInterval parse_step_interval(std::string_view text) {
  const auto dots = text.find("..");
  const auto begin = parse_int(text.substr(0, dots));
  if (begin && *begin >= 0 && *begin < std::numeric_limits<int64_t>::max()) {
    const auto end =
        dots == std::string_view::npos ? std::optional(*begin + 1) : parse_int(text.substr(dots + 2));
    if (end && *end > *begin) return {*begin, *end};
  }
  fail(ErrorKind::InvalidArgument,
       "'{}' is not a step or a range of steps: write 10 for step 10, 10..12 for the steps 10 and 11", text);
}

bool Due::at(int64_t step) const {
  if (every_.steps > 0) return step / every_.steps > step_ / every_.steps;
  return every_.seconds > 0 &&
         std::chrono::steady_clock::now() - last_ >= std::chrono::duration<double>(every_.seconds);
}

}  // namespace tutti
