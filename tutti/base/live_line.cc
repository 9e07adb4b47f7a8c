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
void put_line(const std::string& text) {
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

// Returns "340/812 MB".
std::string of_bytes(int64_t done, int64_t all) {
  constexpr double kMega = 1e6;
  constexpr double kGiga = 1e9;
  constexpr double kManyGigas = 10;
  const auto part = static_cast<double>(done);
  const auto whole = static_cast<double>(all);
  return whole < kManyGigas * kGiga ? fmt::format("{:.0f}/{:.0f} MB", part / kMega, whole / kMega)
                                    : fmt::format("{:.1f}/{:.1f} GB", part / kGiga, whole / kGiga);
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

void LiveLine::show(std::string text, std::string rest) {
  if (!is_shown_) return;
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
  rest_ = std::move(rest);
  draw();
}

// A line of the log may have taken the place of the text.
void LiveLine::leave() {
  const std::lock_guard lock(mutex_);
  const std::string text = std::exchange(text_, "") + std::exchange(rest_, "");
  if (text.empty()) return;
  put_line((in_terminal_ ? replaced_by(text, columns_of(STDERR_FILENO)) : text) + "\n");
  is_drawn_ = false;
  draw();
}

void LiveLine::put(Reading reading) {
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(readings_.begin(), readings_.end(),
                                  [&](const Reading& each) { return each.of == reading.of; });
  if (known == readings_.end())
    readings_.push_back(std::move(reading));
  else
    *known = std::move(reading);
  draw();
}

void LiveLine::remove(const Meter* meter) {
  const std::lock_guard lock(mutex_);
  if (std::erase_if(readings_, [&](const Reading& each) { return each.of == meter; }) > 0) draw();
}

std::string LiveLine::composed() const {
  std::string text = text_;
  for (const Reading& reading : readings_) text += text.empty() ? reading.alone : "  " + reading.beside;
  return text + rest_;
}

// Requires the mutex, so that the texts of several threads come in their order.
void LiveLine::draw() {
  const std::string text = composed();
  if (text.empty() && !is_drawn_) return;
  is_drawn_ = !text.empty();
  put_line(in_terminal_ ? replaced_by(text, columns_of(STDERR_FILENO)) : text + "\r");
}

std::string LiveLine::bar(double share) const {
  constexpr size_t kWidth = 20;
  const double done = std::clamp(share, 0.0, 1.0) * static_cast<double>(kWidth);
  std::string full(static_cast<size_t>(std::floor(done)), '=');
  if (full.size() < kWidth) full += '>';
  const std::string rest(kWidth - full.size(), ' ');
  return has_colour_ ? "[\x1b[32m" + full + "\x1b[0m" + rest + "]" : "[" + full + rest + "]";
}

Meter::Meter(LiveLine& line, std::string what, Unit unit, std::chrono::milliseconds patience)
    : line_(line),
      what_(std::move(what)),
      unit_(unit),
      next_(Clock::duration(Clock::now().time_since_epoch() + patience).count()) {}

// Several threads may call it: a text is shown by the thread that moves `next_` on.
void Meter::at(int64_t done, int64_t all) {
  constexpr std::chrono::milliseconds kEvery{250};
  if (!line_.is_shown()) return;
  const Clock::duration now = Clock::now().time_since_epoch();
  Clock::rep next = next_;
  if (now.count() < next || !next_.compare_exchange_strong(next, Clock::duration(now + kEvery).count()))
    return;
  const double share = all == 0 ? 1 : static_cast<double>(done) / static_cast<double>(all);
  const std::string count = unit_ == Unit::Bytes ? of_bytes(done, all) : grouped(done) + "/" + grouped(all);
  line_.put(
      {this, fmt::format("{} {}", what_, count), fmt::format("{} {} {}", what_, line_.bar(share), count)});
}

}  // namespace tutti
