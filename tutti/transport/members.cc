#include "tutti/transport/members.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"

namespace tutti::comm {
namespace {

constexpr std::array<const char*, 4> kWhys = {"lost", "late", "change", "joins"};

// The pauses between two looks at the board: short ones first.
class Pause {
 public:
  explicit Pause(const Sleep& sleep) : sleep_(sleep) {}
  void wait() {
    constexpr std::chrono::milliseconds kLongest{20};
    sleep_(next_);
    next_ = std::min(2 * next_, kLongest);
  }

 private:
  const Sleep& sleep_;
  std::chrono::milliseconds next_{1};
};

Json parsed(const std::string& text, std::string_view what) {
  Json json = parse_json(text, what, ErrorKind::DataLoss);
  if (!json.is_object()) fail(ErrorKind::DataLoss, "{}: not an object: {}", what, text);
  return json;
}

int small_in(const Json& json, std::string_view key, std::string_view what) {
  const auto value = value_in<int64_t>(json, key, what);
  if (value < 0 || value > 1'000'000'000) fail(ErrorKind::DataLoss, "{}: {} is {}", what, key, value);
  return static_cast<int>(value);
}

uint64_t epoch_in(const Json& json, std::string_view what) {
  const auto value = value_in<int64_t>(json, "epoch", what);
  if (value < 0) fail(ErrorKind::DataLoss, "{}: the epoch is {}", what, value);
  return static_cast<uint64_t>(value);
}

std::optional<uint64_t> newest_on(Rendezvous& board) {
  const auto newest = parse_int(board.peek(kNewestKey).value_or(""));
  return newest ? std::optional(static_cast<uint64_t>(*newest)) : std::nullopt;
}

}  // namespace

bool is_loss(const Error& error) {
  return error.kind() == ErrorKind::PeerLost || error.kind() == ErrorKind::Timeout;
}

std::optional<int> Members::rank_of(const Member& member) const {
  const auto found = std::find(by_rank.begin(), by_rank.end(), member);
  return found == by_rank.end() ? std::nullopt : std::optional(static_cast<int>(found - by_rank.begin()));
}

std::string to_text(const Members& members) {
  Json json = {{"epoch", members.epoch}, {"members", Json::array()}};
  for (const Member& member : members.by_rank)
    json["members"].push_back(Json{{"worker", member.worker}, {"life", member.life}});
  if (members.is_last) json["last"] = true;
  if (!members.end.empty()) json["end"] = members.end;
  return json.dump();
}

Members members_of(const std::string& text) {
  constexpr std::string_view kWhat = "the list of the members";
  const Json json = parsed(text, kWhat);
  Members members{.epoch = epoch_in(json, kWhat),
                  .is_last = value_in<bool>(json, "last", kWhat, false),
                  .end = value_in<std::string>(json, "end", kWhat, "")};
  const auto list = json.find("members");
  if (list == json.end() || !list->is_array()) fail(ErrorKind::DataLoss, "{}: {}", kWhat, text);
  for (const Json& one : *list) {
    if (!one.is_object()) fail(ErrorKind::DataLoss, "{}: {}", kWhat, text);
    members.by_rank.push_back({small_in(one, "worker", kWhat), small_in(one, "life", kWhat)});
  }
  if (members.by_rank.empty() == members.end.empty()) fail(ErrorKind::DataLoss, "{}: {}", kWhat, text);
  return members;
}

std::string to_text(const Call& call) {
  return Json{{"epoch", call.epoch},
              {"why", kWhys.at(static_cast<size_t>(call.why))},
              {"text", call.text},
              {"facts", call.facts}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Call call_of(const std::string& text) {
  constexpr std::string_view kWhat = "the call of a worker";
  const Json json = parsed(text, kWhat);
  const auto why = value_in<std::string>(json, "why", kWhat);
  const auto* const found = std::find(kWhys.begin(), kWhys.end(), why);
  if (found == kWhys.end()) fail(ErrorKind::DataLoss, "{}: {}", kWhat, text);
  return {.epoch = epoch_in(json, kWhat),
          .why = static_cast<Call::Why>(found - kWhys.begin()),
          .text = value_in<std::string>(json, "text", kWhat),
          .facts = value_in<std::string>(json, "facts", kWhat, "")};
}

std::string to_text(const Agreement& facts) {
  return Json{{"who", facts.who}, {"lines", facts.lines}}.dump(-1, ' ', false,
                                                               Json::error_handler_t::replace);
}

Agreement facts_of(const std::string& text) {
  constexpr std::string_view kWhat = "the facts of a worker";
  const Json json = parsed(text, kWhat);
  Agreement facts{value_in<std::string>(json, "who", kWhat)};
  const auto lines = json.find("lines");
  if (lines == json.end() || !lines->is_array()) fail(ErrorKind::DataLoss, "{}: {}", kWhat, text);
  for (const Json& line : *lines) {
    if (!line.is_string()) fail(ErrorKind::DataLoss, "{}: {}", kWhat, text);
    facts.lines.push_back(line.get<std::string>());
  }
  return facts;
}

std::string members_key(uint64_t epoch) { return fmt::format("members/{}", epoch); }

std::string call_key(const Member& member) { return fmt::format("call/{}/{}", member.worker, member.life); }

std::string plan_key(const std::string& fit) { return "plan/" + fit; }

std::string refused_key(const Member& member) {
  return fmt::format("refused/{}/{}", member.worker, member.life);
}

void publish(Rendezvous& board, const Members& members) {
  board.set(members_key(members.epoch), to_text(members));
  board.set(kNewestKey, std::to_string(members.epoch));
}

bool has_later(Rendezvous& board, uint64_t epoch) {
  const auto newest = newest_on(board);
  return newest && *newest > epoch;
}

EpochBoard::EpochBoard(std::shared_ptr<Rendezvous> board, uint64_t epoch)
    : board_(std::move(board)), epoch_(epoch), own_(with_prefix(board_, fmt::format("epoch/{}/", epoch))) {}

std::string EpochBoard::get(const std::string& key, std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  const Sleep sleep = sleep_in_this_thread;
  for (Pause pause(sleep); std::chrono::steady_clock::now() < deadline; pause.wait()) {
    if (auto value = peek(key)) return *std::move(value);
  }
  return own_->get(key, std::chrono::milliseconds(0));  // throws the Timeout
}

std::optional<std::string> EpochBoard::peek(const std::string& key) {
  auto value = own_->peek(key);
  if (!value && !connected_ && has_later(*board_, epoch_))
    fail(ErrorKind::PeerLost, "the workers of epoch {} have changed before all were connected", epoch_);
  return value;
}

void sleep_in_this_thread(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

Members MembersBoard::at(uint64_t epoch) const {
  const auto text = board_->peek(members_key(epoch));
  if (!text) fail(ErrorKind::DataLoss, "the board has no members of epoch {}", epoch);
  return members_of(*text);
}

std::optional<Members> MembersBoard::newest_after(uint64_t epoch) const {
  const auto newest = newest_on(*board_);
  return newest && *newest > epoch ? std::optional(at(*newest)) : std::nullopt;
}

Members MembersBoard::await_next(const Call& call) const {
  bool has_called = false;
  bool has_moved = false;
  for (Pause pause(sleep_);;) {
    std::optional<Members> next;
    try {
      if (has_moved) tell_fit();
      has_moved = false;
      if (!has_called) board_->set(call_key(self_), to_text(call));
      has_called = true;
      if (call.why == Call::Why::Joins) require_admission();
      next = newest_after(call.epoch);
    } catch (const Error& error) {
      if (!is_loss(error) || !board_->reconnect()) throw;
      has_called = false;
      has_moved = true;
      continue;
    }
    if (next && !next->end.empty())
      fail(ErrorKind::PeerLost, "{}{}the job ends: {}", call.text, call.text.empty() ? "" : "; ", next->end);
    if (next && next->rank_of(self_)) return *next;
    if (next && call.why != Call::Why::Joins)
      fail(ErrorKind::PeerLost,
           "{}{}the others go on without this worker, which did not answer in time (epoch {})", call.text,
           call.text.empty() ? "" : "; ", next->epoch);
    pause.wait();
  }
}

int MembersBoard::least() const {
  const auto text = board_->peek(kLeastKey);
  return static_cast<int>(parse_int(text.value_or("")).value_or(1));
}

bool MembersBoard::change_is_due(uint64_t epoch) const {
  try {
    return board_->peek(kChangeKey) == std::to_string(epoch) || has_later(*board_, epoch);
  } catch (const Error& error) {
    if (!is_loss(error)) throw;
    return true;
  }
}

void MembersBoard::require_admission() const {
  const auto why = board_->peek(refused_key(self_));
  if (!why) return;
  fail(ErrorKind::InvalidArgument,
       "the others do not take in this worker, and go on without it: {}. Start it with the program and flags "
       "of the others",
       *why);
}

// The facts are there before anybody may join.
void MembersBoard::tell_fit() const {
  if (!told_fit_) return;
  if (!facts_.empty()) board_->set(kFactsKey, facts_);
  board_->set(kFitKey, std::to_string(*told_fit_));
}

// If the board is lost, another one is told when the next epoch begins.
void MembersBoard::set_fit(int64_t fit) const {
  told_fit_ = fit;
  try {
    tell_fit();
  } catch (const Error& error) {
    if (!is_loss(error)) throw;
  }
}

std::optional<int64_t> MembersBoard::fit() const {
  for (bool has_moved = false;; has_moved = true) {
    try {
      if (has_moved) tell_fit();
      const auto text = board_->peek(kFitKey);
      return text ? parse_int(*text) : std::nullopt;
    } catch (const Error& error) {
      if (!is_loss(error) || !board_->reconnect()) throw;
    }
  }
}

}  // namespace tutti::comm
