#include <fmt/format.h>

#include "tutti/comm/transport.h"

namespace tutti::comm {

Operation operation_of(const char* name, const Options& options, std::chrono::milliseconds usual,
                       Timeline* timeline) {
  const auto timeout = options.timeout.count() > 0 ? options.timeout : usual;
  return {name, options.what, options.step, std::chrono::steady_clock::now() + timeout, timeout, timeline};
}

std::string describe(const Operation& operation) {
  std::string text = operation.name;
  if (*operation.what != '\0') text += fmt::format(" of {}", operation.what);
  if (operation.step >= 0) text += fmt::format(" at step {}", operation.step);
  return text;
}

std::string_view why_not_there(const Operation& operation) {
  if (operation.step >= 0) return "";
  return "; or it never comes here, where only some workers call this, as in `if (ctx.is_chief())`";
}

}  // namespace tutti::comm
