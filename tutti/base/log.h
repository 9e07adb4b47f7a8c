#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace tutti {

enum class LogLevel { Debug, Info, Warning, Error, Off };

// "debug", "info", "warning", "error", "off".
const std::vector<std::string>& log_level_names();

// One of these names; anything else is an InvalidArgument that suggests the nearest.
LogLevel parse_log_level(std::string_view text);

// Lines for people, on stderr, one write a line: "12:03:41.250 worker/2 warning: text". Thread-safe; a value,
// handed down with the Context, never global. The live line of the progress hook is told to step aside by
// `before_line`.
class Log {
 public:
  explicit Log(LogLevel level = LogLevel::Info, std::string task = "")
      : level_(level), task_(std::move(task)) {}

  bool enabled(LogLevel level) const { return level >= level_; }
  void write(LogLevel level, std::string_view text) const;

  template <class... Args>
  void debug(fmt::format_string<Args...> text, Args&&... args) const {
    if (enabled(LogLevel::Debug)) write(LogLevel::Debug, fmt::format(text, std::forward<Args>(args)...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) const {
    if (enabled(LogLevel::Info)) write(LogLevel::Info, fmt::format(text, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> text, Args&&... args) const {
    if (enabled(LogLevel::Warning)) write(LogLevel::Warning, fmt::format(text, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) const {
    if (enabled(LogLevel::Error)) write(LogLevel::Error, fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  LogLevel level_;
  std::string task_;
};

}  // namespace tutti
