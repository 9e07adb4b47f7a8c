#include "tutti/transport/mailbox.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"

namespace tutti::comm {
namespace {

using std::chrono::microseconds;

// How often a receiver from any rank looks for messages: ever more rarely, since nobody can wake it.
constexpr microseconds kFirstPause{20};
constexpr microseconds kLongestPause{1000};

size_t size_of(const OperationLabel& label) {
  return static_cast<size_t>(label.count) * tutti::size_of(static_cast<ElementType>(label.type));
}

}  // namespace

// Returns false if none is kept.
bool Mailbox::take_kept(Lock& lock, const Array& values, int from, const Operation& operation) {
  std::deque<Kept>& kept = box(from).kept;
  const auto found = std::find_if(kept.begin(), kept.end(),
                                  [&](const Kept& message) { return message.label.tag == operation.tag; });
  if (found == kept.end()) return false;
  const Kept message = std::move(*found);
  kept.erase(found);
  lock.unlock();
  if (const std::string text =
          other_message(fmt::format("rank {}", transport_.rank()), OperationLabel(operation),
                        fmt::format("rank {}", from), message.label);
      !text.empty())
    fail(ErrorKind::InvalidArgument, "{}", text);
  if (values.count > 0) std::memcpy(values.data, message.bytes.get(), values.size());
  return true;
}

// Calls read() as the only one that reads from this rank.
template <class Read>
void Mailbox::reading(Lock& lock, int from, const Read& read) {
  const auto leave = [&] {
    lock.lock();
    box(from).is_read = false;
    changed_.notify_all();
  };
  box(from).is_read = true;
  lock.unlock();
  try {
    read();
  } catch (const std::exception&) {
    leave();
    throw;
  }
  leave();
}

// Receives the next message of a rank, whose label has come: for this receiver, or to be kept. Returns true
// if it is for this one.
bool Mailbox::take_next(const OperationLabel& label, const Array& values, int from,
                        const Operation& operation) {
  if (label.tag == operation.tag) {
    transport_.recv(values.bytes(), from, operation);
    return true;
  }
  Kept message{label, std::make_unique_for_overwrite<std::byte[]>(size_of(label))};
  Operation other = operation;
  other.tag = label.tag;
  other.whole = Reduction{static_cast<ElementType>(label.type), ReduceOp::Sum, label.count};
  transport_.recv({message.bytes.get(), size_of(label)}, from, other);
  const std::lock_guard lock(mutex_);
  box(from).kept.push_back(std::move(message));
  return false;
}

void Mailbox::give_up_if_late(const Operation& operation) const {
  if (std::chrono::steady_clock::now() < operation.deadline) return;
  fail(ErrorKind::Timeout, "{} failed: no message has come for {:g} s{}", describe(operation),
       seconds(operation.timeout), operation.peer == kAnyRank ? known_of_others() : "");
}

// Returns "; worker/1 is gone; it was last seen in barrier" and the like for each other rank.
std::string Mailbox::known_of_others() const {
  constexpr int kMost = 8;
  std::string text;
  int named = 0;
  try {
    for (int rank = 0; rank < transport_.world(); ++rank) {
      if (rank == transport_.rank()) continue;
      if (++named > kMost) return text + fmt::format("; and {} more ranks", transport_.world() - 1 - kMost);
      if (const std::string known = transport_.known_of(rank); !known.empty()) text += "; " + known;
    }
  } catch (const Error&) {
    // The board of the ranks cannot be reached: what is known of the ranks before stays.
  }
  return text;
}

void Mailbox::take(const Array& values, int from, const Operation& operation) {
  Lock lock(mutex_);
  while (!take_kept(lock, values, from, operation)) {
    if (box(from).is_read) {
      changed_.wait_until(lock, operation.deadline);
      give_up_if_late(operation);
      continue;
    }
    bool taken = false;
    reading(lock, from,
            [&] { taken = take_next(transport_.await_message(from, operation), values, from, operation); });
    if (taken) return;
  }
}

int Mailbox::take_from_any(const Array& values, const Operation& operation) {
  Lock lock(mutex_);
  for (microseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    bool all_have_left = true;
    for (int from = 0; from < transport_.world(); ++from) {
      if (from == transport_.rank()) continue;
      if (take_kept(lock, values, from, operation)) return from;
      bool taken = false;
      bool some = false;
      bool has_left = false;
      const auto look = [&] {
        has_left = transport_.has_left(from);  // asked first: what it has sent has come then
        const auto label = transport_.next_message(from);
        some = label.has_value();
        taken = some && take_next(*label, values, from, operation);
      };
      if (!box(from).is_read) reading(lock, from, look);
      if (taken) return from;
      if (some) pause = kFirstPause;
      all_have_left = all_have_left && has_left && !some;
    }
    if (all_have_left) throw AllHaveLeft(describe(operation) + " failed: all other ranks have left");
    give_up_if_late(operation);
    changed_.wait_for(lock, pause);
  }
}

}  // namespace tutti::comm
