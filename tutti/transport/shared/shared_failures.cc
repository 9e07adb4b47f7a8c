#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/transport/shared/control_region.h"
#include "tutti/transport/shared/shared_transport.h"

// The part of SharedTransport by which ranks fail together: it finds ranks that have ended, are late or were
// stopped, and tells all ranks.
namespace tutti::comm {
namespace {

// The deadlines of `Failures` come so much earlier than those here, which hold in case it cannot enforce
// them.
constexpr std::chrono::seconds kBoardIsEarlier{60};
constexpr uint32_t kNone = 0;
constexpr uint32_t kBeingWritten = 1;
constexpr uint32_t kWritten = 2;

template <size_t N>
void copy_text(char (&to)[N], const char* from) {
  std::strncpy(to, from, N - 1);
  to[N - 1] = '\0';
}

}  // namespace

void SharedTransport::join(Failures& failures, std::vector<int> ranks) {
  joined_.emplace(Membership{failures, std::move(ranks)});
}

// Registers an operation with the failures that were joined, if any were, as long as the result exists.
// `peer` is the other rank of a message; -1: all take part.
std::unique_ptr<Failures::Watch> SharedTransport::watch(const Operation& operation, int peer) {
  if (!joined_) return nullptr;
  std::vector<int> peers;
  for (int r = 0; r < world_; ++r) {
    if (peer < 0 ? r != rank_ : r == peer) peers.push_back(joined_->ranks[static_cast<size_t>(r)]);
  }
  const auto party = peer < 0 ? Failures::Party::All : Failures::Party::Two;
  return std::unique_ptr<Failures::Watch>(
      new Failures::Watch(joined_->failures.watch(operation, party, std::move(peers))));
}

std::chrono::steady_clock::time_point SharedTransport::deadline_of(const Operation& operation) const {
  return joined_ ? operation.deadline + kBoardIsEarlier : operation.deadline;
}

void SharedTransport::throw_if_failed() {
  if (joined_) return joined_->failures.throw_if_failed();
  const ControlSlot& first = slot(0);
  if (first.failed.load(std::memory_order_acquire) == kWritten)
    throw Error(static_cast<ErrorKind>(first.kind), first.cause);
}

// Only the first failure is recorded.
void SharedTransport::leave_word(ErrorKind kind, const std::string& text) {
  ControlSlot& first = slot(0);
  uint32_t none = kNone;
  if (!first.failed.compare_exchange_strong(none, kBeingWritten)) return;
  first.kind = static_cast<uint32_t>(kind);
  copy_text(first.cause, text.c_str());
  first.failed.store(kWritten, std::memory_order_release);
}

void SharedTransport::abandon(const std::string& text) {
  joined_ ? joined_->failures.give_up(text) : leave_word(ErrorKind::PeerLost, text);
}

void SharedTransport::fail_together(ErrorKind kind, const std::string& text) {
  if (joined_) joined_->failures.report(kind, text);
  leave_word(kind, text);
  // A rank that is writing its failure finishes at once, unless it was killed. Then this rank's text is used.
  for (int i = 0; i < 1000; ++i) throw_if_failed();
  fail(kind, "{}", text);
}

// Describes what the rank announced last. The text could be garbled if the rank announced something else
// meanwhile, but it is only read when the rank is late.
std::string SharedTransport::last_seen(int rank) const {
  const ControlSlot& theirs = slot(rank);
  const uint32_t meetings = theirs.meetings.count.load(std::memory_order_acquire);
  const std::string label = theirs.label[meetings % 2].text();
  const bool completed = theirs.completed.load(std::memory_order_acquire) == meetings;
  std::string text = meetings == 0 ? "it has not started any operation yet"
                     : completed   ? fmt::format("its last operation was {}, which it completed", label)
                                   : "it was last seen in " + label;
  if (theirs.messages.load(std::memory_order_acquire) == 0) return text;
  const std::string message = theirs.message.text();
  return meetings == 0 ? "it waits in " + message : text + ", and waits in " + message;
}

std::string SharedTransport::known_of(int rank) {
  const char* state = is_gone(rank)               ? "is gone"
                      : memory_->is_stopped(rank) ? "has been stopped by a signal"
                                                  : "is there";
  return fmt::format("{} {}; {}", memory_->who(rank), state, last_seen(rank));
}

bool SharedTransport::has_left(int rank) { return slot(rank).left.load(std::memory_order_acquire) != 0; }

bool SharedTransport::is_gone(int rank) { return memory_->has_ended(rank) || has_left(rank); }

void SharedTransport::look_up(const Late& late, const Operation& operation) {
  throw_if_failed();
  std::vector<int> gone = late();
  std::erase_if(gone, [this](int r) { return !is_gone(r); });
  // A rank that was late at the first check may have arrived since, and then left.
  const std::vector<int> missed = late();
  for (const int r : gone) {
    if (std::find(missed.begin(), missed.end(), r) == missed.end()) continue;
    fail_together(ErrorKind::PeerLost,
                  fmt::format("{} failed: {} is gone; {}. Its own output says why{}", describe(operation),
                              memory_->who(r), last_seen(r), has_left(r) ? why_not_there(operation) : ""));
  }
  look_for_stopped(missed, operation);
  if (missed.empty() || std::chrono::steady_clock::now() <= deadline_of(operation)) return;
  std::string missing;
  for (const int r : missed) {
    missing += fmt::format("{}nothing from {} for {:g} s, {}{}", missing.empty() ? "" : "; ", memory_->who(r),
                           seconds(operation.timeout), last_seen(r),
                           memory_->is_stopped(r) ? "; it has been stopped by a signal" : "");
  }
  fail_together(ErrorKind::Timeout,
                fmt::format("{} failed: {}. Look at what it is doing, or raise --timeout{}",
                            describe(operation), missing, why_not_there(operation)));
}

// An operation whose timeout is longer than usual, since a rank may be busy with other work, still waits only
// the usual timeout for a rank that is stopped.
void SharedTransport::look_for_stopped(const std::vector<int>& late, const Operation& operation) {
  constexpr std::chrono::seconds kGap{1};  // a rank not seen stopped for this long has continued
  if (operation.timeout <= timeout_) return;
  const auto now = std::chrono::steady_clock::now();
  for (const int r : late) {
    if (!memory_->is_stopped(r)) continue;
    std::chrono::steady_clock::time_point since;
    {
      const std::lock_guard lock(mutex_);
      Stopped& stopped = stopped_.try_emplace(r, Stopped{now, now}).first->second;
      if (now - stopped.seen > kGap) stopped.since = now;
      stopped.seen = now;
      since = stopped.since;
    }
    if (now - since < timeout_) continue;
    fail_together(
        ErrorKind::Timeout,
        fmt::format(
            "{} failed: {} has been stopped by a signal for {:g} s; {}. Continue it (kill -CONT), or end "
            "the job",
            describe(operation), memory_->who(r), seconds(timeout_), last_seen(r)));
  }
}

}  // namespace tutti::comm
