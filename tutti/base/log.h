#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace tutti {

// Returns the local time as lines of the log begin, "12:03:41.250".
std::string time_of_day();

// The least level of the lines that a log writes (--log-level).
enum class LogLevel { Debug, Info, Warning, Error, Off };

// Returns "debug", "info", "warning", "error" and "off".
const std::vector<std::string>& log_level_names();

// Parses one of these names; anything else is an InvalidArgument that suggests the nearest.
LogLevel parse_log_level(std::string_view text);

// Writes log lines to stderr, one write(2) per line: "12:03:41.250 worker/2
// warning: text". Thread-safe. A value that is passed along with the Context, never
// a global.
class Log {
 public:
  // Called from any thread with each line that is written.
  using Listener = std::function<void(LogLevel level, std::string_view text)>;

  explicit Log(LogLevel level = LogLevel::Info, std::string task = "", Listener listener = {})
      : level_(level), task_(std::move(task)), listener_(std::move(listener)) {}

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
  Listener listener_;  // may be empty
};

}  // namespace tutti
