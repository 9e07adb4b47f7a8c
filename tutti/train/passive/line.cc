#include "tutti/train/passive/line.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/ps/peer.h"

namespace tutti::passive {
namespace {

using std::chrono::milliseconds;

constexpr const char* kBegin = "begin";
constexpr const char* kStop = "stop";

}  // namespace

Line::Line(const Context& context, Stop stop)
    : context_(context),
      stop_(stop),
      host_(ps::host_at_own_address(context), mailbox_),
      announcement_(context, host_.port()) {}

// Nobody is left waiting: the host ends when all are answered.
Line::~Line() {
  if (!letter_) return;
  mailbox_.refuse(std::make_exception_ptr(
      Error(ErrorKind::PeerLost, fmt::format("{} has ended", context_.task().short_name()))));
}

std::optional<rpc::Mailbox::Letter> Line::take(milliseconds patience) {
  announcement_.check();
  if (std::exchange(kept_, false)) return letter_;
  TUTTI_CHECK(!letter_, "the last request has not been answered");
  letter_ = mailbox_.next(patience);
  return letter_;
}

void Line::keep() {
  TUTTI_CHECK(letter_, "there is no request to keep");
  kept_ = true;
}

std::optional<Line::Request> Line::next(milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  do {
    const bool connected = mailbox_.is_there(master_);
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    const auto letter = take(std::min(std::max(left, milliseconds(0)), milliseconds(100)));
    if (letter && letter->caller->id == master_) return Request{*letter->method, letter->request};
    if (letter && is_stop(*letter)) return Request{*letter->method, letter->request};
    if (letter && *letter->method == kBegin && !mailbox_.is_there(master_)) {
      keep();
      fail(ErrorKind::PeerLost, "{} has left, and begins anew", master_name_);
    }
    if (letter) refuse(*letter);
    if (!letter && !connected) fail(ErrorKind::PeerLost, "{} has left", master_name_);
  } while (std::chrono::steady_clock::now() < deadline);
  return std::nullopt;
}

Line::Request Line::next() {
  for (;;) {
    if (auto request = next(milliseconds(60000))) return *request;
  }
}

std::optional<Line::Request> Line::next_beginning(milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  do {
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    const auto letter = take(std::max(left, milliseconds(0)));
    if (!letter) continue;
    if (*letter->method == kBegin) {
      master_ = letter->caller->id;
      master_name_ = ps::name_of(*letter->caller);
    }
    if (*letter->method == kBegin || is_stop(*letter)) return Request{*letter->method, letter->request};
    refuse(*letter);
  } while (std::chrono::steady_clock::now() < deadline);
  return std::nullopt;
}

bool Line::is_stop(const rpc::Mailbox::Letter& letter) const {
  return stop_ == Stop::ByAnybody && *letter.method == kStop;
}

void Line::refuse(const rpc::Mailbox::Letter& letter) {
  const std::string why =
      *letter.method == kStop ? fmt::format("{} is a program of its own, not a bare server: end its process",
                                            context_.task().short_name())
      : master_ != 0 && mailbox_.is_there(master_)
          ? fmt::format("{} is driven by {}, and by nobody else", context_.task().short_name(), master_name_)
          : fmt::format("{} is a passive worker, which nobody has begun to drive: '{}' comes too early",
                        context_.task().short_name(), *letter.method);
  letter_.reset();
  mailbox_.refuse(std::make_exception_ptr(Error(ErrorKind::InvalidArgument, why)));
}

void Line::answer(rpc::Message message) {
  TUTTI_CHECK(letter_, "there is no request to answer");
  letter_.reset();
  mailbox_.answer(std::move(message));
}

void Line::answer_with(const std::function<rpc::Message()>& body) {
  TUTTI_CHECK(letter_, "there is no request to answer");
  try {
    answer(body());
  } catch (...) {
    letter_.reset();
    mailbox_.refuse(std::current_exception());
    throw;
  }
}

}  // namespace tutti::passive
