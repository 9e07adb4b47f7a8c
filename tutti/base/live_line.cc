#include "tutti/base/live_line.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/environment.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

// Errors are ignored: a terminal that cannot be written to must not stop the training.
void put(const std::string& text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

bool is_terminal(int descriptor) { return ::isatty(descriptor) == 1; }

bool wants_colour(const Environment& environment) {
  return environment.get("NO_COLOR").value_or("").empty() && environment.get("TERM") != "dumb";
}

// Returns the length of the escape sequence with which the text begins, such as "\x1b[32m"; 0: none.
size_t escape_length(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const size_t end = text.find_first_of("mK");
  return end == std::string_view::npos ? 0 : end + 1;
}

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

}  // namespace

bool is_live(std::string_view log) {
  return log == kLogLive || (log == kLogAuto && is_terminal(STDERR_FILENO));
}

// Escape sequences take no columns, and are kept, so that colours end.
std::string fitted_to(std::string_view text, int columns) {
  std::string fitted;
  while (!text.empty()) {
    size_t length = escape_length(text);
    const bool is_visible = length == 0;
    if (is_visible) {
      length = 1;
      while (length < text.size() && continues_character(text[length])) ++length;
      --columns;
    }
    if (!is_visible || columns >= 0) fitted += text.substr(0, length);
    text.remove_prefix(length);
  }
  return fitted;
}

int columns_of(int descriptor) {
  constexpr int kUsual = 80;
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

// The last column stays free, since some terminals begin another line after it.
std::string replaced_by(std::string_view text, int columns) {
  return "\r\x1b[K" + fitted_to(text, columns - 1);
}

LiveLine::LiveLine(std::string_view log)
    : is_shown_(is_live(log)),
      in_terminal_(is_terminal(STDERR_FILENO)),
      has_colour_(is_shown_ && wants_colour(Environment::of_process())) {}

void LiveLine::show(std::string text) {
  if (!is_shown_) return;
  text_ = std::move(text);
  put(in_terminal_ ? replaced_by(text_, columns_of(STDERR_FILENO)) : text_ + "\r");
}

// A line of the log may have taken the place of the text.
void LiveLine::leave() {
  if (text_.empty()) return;
  put((in_terminal_ ? replaced_by(text_, columns_of(STDERR_FILENO)) : text_) + "\n");
  text_.clear();
}

void LiveLine::remove() {
  if (text_.empty()) return;
  put(in_terminal_ ? replaced_by("", 1) : "\r");
  text_.clear();
}

std::string LiveLine::bar(double share) const {
  constexpr size_t kWidth = 20;
  const double done = std::clamp(share, 0.0, 1.0) * static_cast<double>(kWidth);
  std::string full(static_cast<size_t>(std::floor(done)), '=');
  if (full.size() < kWidth) full += '>';
  const std::string rest(kWidth - full.size(), ' ');
  return has_colour_ ? "[\x1b[32m" + full + "\x1b[0m" + rest + "]" : "[" + full + rest + "]";
}

Meter::Meter(std::string_view log, std::string what, int64_t total)
    : line_(log),
      what_(std::move(what)),
      total_(total),
      next_(std::chrono::steady_clock::now() + std::chrono::seconds(1)) {}

void Meter::at(int64_t done) {
  constexpr std::chrono::milliseconds kEvery{250};
  if (!line_.is_shown()) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kEvery;
  const double share = total_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total_);
  line_.show(fmt::format("{} {} {}/{}", what_, line_.bar(share), grouped(done), grouped(total_)));
}

}  // namespace tutti
