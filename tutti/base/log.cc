#include "tutti/base/log.h"

#include <string>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/base/time_of_day.h"

namespace tutti {

const std::vector<std::string>& log_level_names() {
  static const std::vector<std::string> kNames = {"debug", "info", "warning", "error", "off"};
  return kNames;
}

LogLevel parse_log_level(std::string_view text) {
  const std::vector<std::string>& names = log_level_names();
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<LogLevel>(i);
  }
  fail(ErrorKind::InvalidArgument, "'{}' is not a log level: use {}{}", text, fmt::join(names, ", "),
       did_you_mean(text, names));
}

void Log::write(LogLevel level, std::string_view text) const {
  const std::string who = task_.empty() ? "" : task_ + " ";
  const std::string kind =
      level == LogLevel::Info ? "" : fmt::format("{}: ", log_level_names()[static_cast<size_t>(level)]);
  // The progress hook may have printed a live line here, whose rest would otherwise follow this line.
  const char* clear = ::isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "";
  const std::string line = fmt::format("{}{} {}{}{}\n", clear, time_of_day(), who, kind, text);
  // Uses one write per line, so that lines of several processes do not mix. Failing to write the log is no
  // reason to stop.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  if (listener_) listener_(level, text);
}

}  // namespace tutti
