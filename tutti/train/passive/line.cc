#include "tutti/train/passive/line.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/wire.h"

namespace tutti::passive {
namespace {

using std::chrono::milliseconds;

constexpr const char* kBegin = "begin";
constexpr const char* kStop = "stop";
constexpr const char* kRefuse = "refuse";

}  // namespace

Line::Line(const Context& context, Stop stop)
    : context_(context),
      stop_(stop),
      host_(ps::host_at_own_address(context), mailbox_),
      announcement_(context, host_.port()) {}

// Refuses the pending request, so that no caller is left waiting: the host ends when all are answered.
Line::~Line() {
  if (!taken_) return;
  mailbox_.refuse(std::make_exception_ptr(
      Error(ErrorKind::PeerLost, fmt::format("{} has ended", context_.task().short_name()))));
}

std::optional<rpc::Mailbox::Request> Line::take(milliseconds patience) {
  announcement_.check();
  if (std::exchange(kept_, false)) return taken_;
  TUTTI_CHECK(!taken_, "the last request has not been answered");
  taken_ = mailbox_.next(patience);
  return taken_;
}

void Line::keep() {
  TUTTI_CHECK(taken_, "there is no request to keep");
  kept_ = true;
}

std::optional<Line::Request> Line::next(milliseconds patience) {
  const auto deadline = deadline_after(patience);
  do {
    const bool connected = mailbox_.is_there(master_);
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    const auto taken = take(std::min(std::max(left, milliseconds(0)), milliseconds(100)));
    if (taken && taken->caller->id == master_ && *taken->method == kRefuse) {
      const std::string why = ps::text_in(taken->message->head, "why");
      answer({});
      fail(ErrorKind::InvalidArgument, "{}", why);
    }
    if (taken && taken->caller->id == master_) return Request{*taken->method, taken->message};
    if (taken && is_stop(*taken)) return Request{*taken->method, taken->message};
    if (taken && *taken->method == kBegin && !mailbox_.is_there(master_)) {
      keep();
      fail(ErrorKind::PeerLost, "{} has left, and is starting again", master_name_);
    }
    if (taken) refuse(*taken);
    if (!taken && !connected) fail(ErrorKind::PeerLost, "{} has left", master_name_);
  } while (std::chrono::steady_clock::now() < deadline);
  return std::nullopt;
}

Line::Request Line::next() {
  for (;;) {
    if (auto request = next(milliseconds(60000))) return *request;
  }
}

std::optional<Line::Request> Line::next_beginning(milliseconds patience) {
  const auto deadline = deadline_after(patience);
  do {
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    const auto taken = take(std::max(left, milliseconds(0)));
    if (!taken) continue;
    if (*taken->method == kBegin) {
      master_ = taken->caller->id;
      master_name_ = ps::name_of(*taken->caller);
    }
    if (*taken->method == kBegin || is_stop(*taken)) return Request{*taken->method, taken->message};
    refuse(*taken);
  } while (std::chrono::steady_clock::now() < deadline);
  return std::nullopt;
}

bool Line::is_stop(const rpc::Mailbox::Request& taken) const {
  return stop_ == Stop::ByAnybody && *taken.method == kStop;
}

void Line::refuse(const rpc::Mailbox::Request& taken) {
  const std::string why =
      *taken.method == kStop
          ? fmt::format("{} runs its own program and is not a bare server: end its process instead",
                        context_.task().short_name())
      : master_ != 0 && mailbox_.is_there(master_)
          ? fmt::format("{} is already driven by {}, and can have only one master",
                        context_.task().short_name(), master_name_)
          : fmt::format("{} is a passive worker without a master: '{}' was called too early",
                        context_.task().short_name(), *taken.method);
  taken_.reset();
  mailbox_.refuse(std::make_exception_ptr(Error(ErrorKind::InvalidArgument, why)));
}

void Line::answer(rpc::Message message) {
  TUTTI_CHECK(taken_, "there is no request to answer");
  taken_.reset();
  mailbox_.answer(std::move(message));
}

void Line::answer_with(const std::function<rpc::Message()>& body) {
  TUTTI_CHECK(taken_, "there is no request to answer");
  try {
    answer(body());
  } catch (...) {
    taken_.reset();
    mailbox_.refuse(std::current_exception());
    throw;
  }
}

}  // namespace tutti::passive
