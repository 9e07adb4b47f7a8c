#include "tutti/base/interrupted.h"

#include <string.h>

#include <fmt/format.h>

namespace tutti {

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

}  // namespace tutti
