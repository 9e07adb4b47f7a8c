#include "tutti/base/waiting.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// The shortest attempt, so that callers do not retry without a pause just before the end.
constexpr milliseconds kShortest{50};

}  // namespace

Reminder::Reminder(const Log& log, milliseconds duration, milliseconds between)
    : log_(log), duration_(duration), between_(between) {
  begin();
}

void Reminder::begin() {
  missing_.clear();
  last_ = deadline_after(duration_);
  next_ = deadline_after(between_);
  has_written_ = has_ended_ = false;
}

void Reminder::still_missing(const std::vector<std::string>& who) {
  if (who != missing_) {
    missing_ = who;
    last_ = deadline_after(duration_);
    has_ended_ = false;
  }
  const auto now = Clock::now();
  if (has_ended_ || (now < next_ && now < last_)) return;
  has_ended_ = now >= last_;
  has_written_ = true;
  next_ = now + between_;
  log_.info(
      "still waiting for {}{}", fmt::join(who, "; "),
      has_ended_ ? ". This is the last line about it, but this task waits on; `tutti stop` ends it" : "");
}

bool Reminder::nobody_is_missing() {
  const bool has_written = has_written_;
  begin();
  return has_written;
}

Waiting::Waiting(const Log& log, milliseconds timeout, std::string_view flag)
    : log_(log), timeout_(timeout), flag_(flag), deadline_(deadline_after(timeout)), reminder_(log) {}

milliseconds Waiting::patience() const {
  return std::max(kShortest, std::min(left(), reminder_.until_next()));
}

void Waiting::go_on(const std::vector<std::string>& missing) {
  if (std::chrono::steady_clock::now() < deadline_) return reminder_.still_missing(missing);
  fail(ErrorKind::Timeout, "waited in vain for {:g} s ({}) for{}{}", seconds(timeout_), flag_,
       missing.size() > 1 ? "\n  " : " ", fmt::join(missing, "\n  "));
}

void Waiting::end(std::string_view text) {
  if (reminder_.nobody_is_missing()) log_.info("{}", text);
}

}  // namespace tutti
