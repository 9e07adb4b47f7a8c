#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

Operation operation_of(const char* name, const Options& options, std::chrono::milliseconds usual,
                       Timeline* timeline) {
  const auto timeout = options.timeout.count() > 0 ? options.timeout : usual;
  return {name, options.what, options.step, deadline_after(timeout), timeout, timeline};
}

// FNV-1a hash.
uint64_t key_of(const Operation& operation) {
  uint64_t key = 14695981039346656037ULL;
  const auto mix = [&key](uint64_t value) { key = (key ^ value) * 1099511628211ULL; };
  for (const char* name = operation.name; *name != '\0'; ++name) mix(static_cast<unsigned char>(*name));
  if (operation.whole == nullptr) return key;
  mix(static_cast<uint64_t>(operation.whole->type));
  mix(static_cast<uint64_t>(operation.whole->op));
  mix(static_cast<uint64_t>(operation.whole->count));
  return key;
}

std::string describe(const Operation& operation) {
  std::string text = operation.name;
  if (*operation.what != '\0') text += fmt::format(" of {}", operation.what);
  if (operation.step >= 0) text += fmt::format(" at step {}", operation.step);
  return text;
}

std::string_view why_not_there(const Operation& operation) {
  if (operation.step >= 0) return "";
  return ". A rank may also skip this call if it is inside a condition such as `if (ctx.is_chief())`";
}

}  // namespace tutti::comm
