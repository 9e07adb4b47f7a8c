#include "tools/launch/restart_pause.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace tutti {
namespace {

constexpr std::chrono::seconds kFirst{1};
constexpr std::chrono::seconds kLongest{60};

}  // namespace

std::chrono::seconds RestartPause::next(std::chrono::duration<double> lasted) {
  if (lasted > kLongest) next_ = std::chrono::seconds(0);
  return std::exchange(next_, std::clamp(2 * next_, kFirst, kLongest));
}

std::string describe_pause(std::chrono::seconds pause) {
  return pause.count() == 0 ? "" : fmt::format(" in {} s", pause.count());
}

}  // namespace tutti
