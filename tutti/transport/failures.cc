#include "tutti/transport/failures.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/start_thread.h"
#include "tutti/base/text.h"

namespace tutti::comm {
namespace {

constexpr const char* kFailure = "failure";
constexpr std::chrono::milliseconds kPause{10};

std::string last_seen(bool waiting, const std::string& text) {
  if (text.empty()) return "it has not reported any operation yet";
  return waiting ? "it waits in " + text
                 : fmt::format("its last reported operation was {}, which it completed", text);
}

}  // namespace

// Format: the number of the kind, a space, the text.
std::string to_value(const Error& error) {
  return fmt::format("{} {}", static_cast<int>(error.kind()), error.what());
}

Error to_error(const std::string& value) {
  const size_t space = value.find(' ');
  const auto kind = parse_int(value.substr(0, space));
  if (kind && *kind >= 0 && *kind <= static_cast<int>(ErrorKind::Bug) && space != std::string::npos)
    return {static_cast<ErrorKind>(*kind), value.substr(space + 1)};
  return {ErrorKind::DataLoss, fmt::format("the board of the ranks contains a failure that Tutti did not "
                                           "write: '{}'. Does another program write to it?",
                                           value)};
}

std::vector<std::string> roll_call(Rendezvous& board, const FailuresOptions& options,
                                   const std::string& message, std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  const auto key = [](int rank) { return fmt::format("here/{}", rank); };
  board.set(key(options.rank), message);
  std::vector<std::string> messages;
  while (static_cast<int>(messages.size()) < options.world) {
    if (auto theirs = board.peek(key(static_cast<int>(messages.size())))) {
      messages.push_back(*std::move(theirs));
      continue;
    }
    if (const auto missing = board.peek(kMissing)) fail(ErrorKind::Timeout, "{}", *missing);
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(kPause);
  }
  if (static_cast<int>(messages.size()) == options.world) return messages;
  std::string missing = name_of(options.who, static_cast<int>(messages.size()));
  for (int r = static_cast<int>(messages.size()) + 1; r < options.world; ++r) {
    if (!board.peek(key(r))) missing += ", " + name_of(options.who, r);
  }
  const std::string text = fmt::format(
      "connect failed: nothing from {} for {:g} s. Check that it is running, look at its output, or "
      "raise --timeout",
      missing, seconds(timeout));
  fail(ErrorKind::Timeout, "{}", board.set_once(kMissing, text));
}

std::string name_of(const std::vector<std::string>& who, int rank) {
  return who.empty() ? fmt::format("rank {}", rank) : who[static_cast<size_t>(rank)];
}

std::vector<std::string> names_of(const std::vector<std::string>& who, const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(name_of(who, rank));
  return names;
}

Failures::Failures(std::shared_ptr<Rendezvous> board, FailuresOptions options, std::function<void()> abandon)
    : board_(std::move(board)), options_(std::move(options)), abandon_(std::move(abandon)) {
  thread_ = start_thread("watching over the operations of the ranks", [this] { keep_watch(); });
}

Failures::~Failures() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::string Failures::who(int rank) const { return name_of(options_.who, rank); }

// During a pause the others may have given up on this rank. Without this check, messages that they had
// already sent would let it go on for a while.
void Failures::look_after_pause(const Operation& operation) {
  {
    const std::lock_guard lock(mutex_);
    const auto pause = std::min(options_.look_up, operation.timeout);
    if (!entries_.empty() || Clock::now() - done_at_ < pause) return;
  }
  try {
    adopt_failure();
  } catch (const Error&) {
    // The operation itself will detect the failure.
  }
}

bool Failures::runs_of_all() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.of_all; });
}

Failures::Watch Failures::watch(const Operation& operation, Party party, std::vector<int> peers) {
  look_after_pause(operation);
  const std::lock_guard lock(mutex_);
  if (failure_) throw *failure_;
  const bool of_all = party == Party::All;
  if (of_all && !runs_of_all()) ++number_;
  const auto place =
      entries_.insert(entries_.end(), {describe(operation), why_not_there(operation), operation.timeout,
                                       operation.deadline, of_all, number_, std::move(peers), Clock::now()});
  // The thread wakes up often enough except for short timeouts.
  if (operation.timeout < 4 * options_.look_up) changed_.notify_all();
  return {*this, place};
}

Failures::Watch::~Watch() {
  const std::lock_guard lock(failures_.mutex_);
  failures_.done_at_ = Clock::now();
  const std::string operation = std::move(entry_->operation);
  const bool of_all = entry_->of_all;
  failures_.entries_.erase(entry_);
  // A part of an operation that still runs is not reported as completed.
  if (!of_all || !failures_.runs_of_all()) failures_.last_done_ = operation;
}

void Failures::Watch::arrived(int rank) {
  const std::lock_guard lock(failures_.mutex_);
  std::erase(entry_->missing, rank);
}

void Failures::throw_if_failed() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw *failure_;
}

void Failures::lost(const Watch& watch, int rank, const std::string& why) {
  throw_if_failed();
  std::string operation;
  std::string_view otherwise;
  {
    const std::lock_guard lock(mutex_);
    operation = watch.entry_->operation;
    if (watch.entry_->of_all) otherwise = watch.entry_->why_not_there;
  }
  std::string seen;
  try {
    const auto last = report_of(rank).value_or(Report{});
    seen = "; " + last_seen(last.waiting, last.text);
  } catch (const Error&) {
    // The board is gone too, so nothing is known about the rank.
  }
  report(ErrorKind::PeerLost,
         fmt::format("{} failed: {} is gone{}{}. Its own output says why{}", operation, who(rank),
                     why.empty() ? "" : fmt::format(" ({})", why), seen, otherwise));
}

void Failures::report(ErrorKind kind, const std::string& text) {
  fail_together(kind, text);
  throw_if_failed();
  throw Error(kind, text);
}

void Failures::fail_together(ErrorKind kind, const std::string& text) {
  const std::lock_guard reporting(reporting_);
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
  }
  Error error(kind, text);
  try {
    error = to_error(board_->set_once(kFailure, to_value(error)));
  } catch (const Error&) {
    // The board cannot be reached; each rank has to detect the failure by itself.
  }
  {
    const std::lock_guard lock(mutex_);
    failure_ = error;
  }
  abandon_();
}

void Failures::keep_watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_ && !failure_) {
    // If woken for an operation with a short timeout, only the time of the next look is computed again.
    if (changed_.wait_until(lock, next_look()) == std::cv_status::timeout && !stopping_) look(lock);
  }
}

bool Failures::waits_long(const Entry& entry) const {
  return Clock::now() - entry.began >= std::min(options_.between_reports, entry.timeout / 4);
}

Failures::Clock::time_point Failures::next_look() const {
  Clock::time_point next = looks_at_;
  for (const Entry& entry : entries_) {
    next = std::min(next, entry.deadline);
    if (!waits_long(entry)) next = std::min(next, entry.began + entry.timeout / 4);
  }
  return next;
}

// Operations that have not waited long are left out: the last finished one says more than one just begun.
std::string Failures::own_report() const {
  const Entry* longest = nullptr;
  for (const Entry& entry : entries_) {
    // If it waits both for all ranks and for one rank, the wait for all matters more to the others.
    if (waits_long(entry) && (longest == nullptr || (entry.of_all && !longest->of_all))) longest = &entry;
  }
  if (longest != nullptr)
    return fmt::format("W {} {}", longest->of_all ? longest->number : 0, longest->operation);
  return last_done_.empty() ? "" : fmt::format("D {} {}", number_, last_done_);
}

void Failures::look(std::unique_lock<std::mutex>& lock) {
  const auto now = Clock::now();
  looks_at_ = now + options_.look_up;
  const auto late = std::find_if(entries_.begin(), entries_.end(),
                                 [&](const Entry& entry) { return now >= entry.deadline; });
  if (late != entries_.end()) {
    const Entry entry = *late;
    lock.unlock();
    time_out(entry);
    lock.lock();
    return;
  }
  std::string own = own_report();
  const bool soon = own.starts_with('W') || now - told_at_ >= options_.between_reports;
  if (own == told_ || !soon) {
    own.clear();
  } else {
    told_ = own;
    told_at_ = now;
  }
  std::string waiting;
  if (!entries_.empty() && (now - entries_.front().began >= options_.look_up || waits_long(entries_.front())))
    waiting = entries_.front().operation;
  lock.unlock();
  look_at_board(own, waiting);
  lock.lock();
}

void Failures::adopt_failure() {
  if (const auto failure = board_->peek(kFailure)) {
    const Error error = to_error(*failure);
    fail_together(error.kind(), error.what());
  }
}

void Failures::look_at_board(const std::string& own, const std::string& waiting) {
  const auto now = Clock::now();
  try {
    if (!own.empty()) board_->set(fmt::format("last/{}", options_.rank), own);
    if (!waiting.empty()) adopt_failure();
    silent_since_.reset();
  } catch (const Error& error) {
    if (waiting.empty()) return;
    // If the rank that holds the board left in good order, the board is not needed: the connections to the
    // other ranks report when these end. If the board was lost, its rank is lost, and no failure could be
    // announced. A board that is silent may come back.
    if (error.kind() == ErrorKind::PeerLost && !board_->ended())
      fail_together(ErrorKind::PeerLost, fmt::format("{} failed: {}", waiting, error.what()));
    if (error.kind() != ErrorKind::Timeout) return;
    if (!silent_since_) silent_since_ = now;
    if (Clock::now() - *silent_since_ >= options_.silence) time_out_without_board(waiting, options_.silence);
  }
}

std::string Failures::known_of(int rank) {
  const Report last = report_of(rank).value_or(Report{});
  return last_seen(last.waiting, last.text);
}

std::optional<Failures::Report> Failures::report_of(int rank) {
  const auto value = board_->peek(fmt::format("last/{}", rank));
  if (!value || value->size() < 2) return std::nullopt;
  const size_t text = value->find(' ', 2);
  const auto number = parse_int(value->substr(2, text - 2));
  // An entry that Tutti did not write is ignored.
  if (!number || text == std::string::npos) return std::nullopt;
  return Report{value->front() == 'W', *number, value->substr(text + 1)};
}

void Failures::time_out(const Entry& entry) {
  std::vector<Report> reports;
  std::string board;
  try {
    for (int rank = 0; rank < options_.world; ++rank) reports.push_back(report_of(rank).value_or(Report{}));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Timeout) return time_out_without_board(entry.operation, entry.timeout);
    board = fmt::format(". {}", error.what());
    reports.assign(static_cast<size_t>(options_.world), Report{});
  }
  std::string text;
  for (const int rank : to_blame(entry, reports)) {
    const Report& last = reports[static_cast<size_t>(rank)];
    text += fmt::format("{}nothing from {} for {:g} s", text.empty() ? "" : "; ", who(rank),
                        seconds(entry.timeout));
    if (board.empty()) text += ", " + last_seen(last.waiting, last.text);
  }
  if (text.empty()) text = fmt::format("it did not finish within {:g} s", seconds(entry.timeout));
  fail_together(
      ErrorKind::Timeout,
      fmt::format("{} failed: {}{}. Look at what it is doing and at the network, or raise --timeout{}",
                  entry.operation, text, board, entry.of_all ? entry.why_not_there : ""));
}

// Without the board nothing is known about the other ranks: they may be waiting for the rank that holds it,
// as this one is.
void Failures::time_out_without_board(const std::string& operation, std::chrono::milliseconds timeout) {
  fail_together(
      ErrorKind::Timeout,
      fmt::format(
          "{} failed: it did not finish within {:g} s, and {}, which holds the board of the ranks, does not "
          "answer. It may have been stopped, or its host may be overloaded. Look at what it is doing, or "
          "raise --timeout",
          operation, seconds(timeout), options_.holder));
}

// Returns the ranks to blame: of those from which something is missing, the ones with the weakest excuse. In
// an operation of all ranks, a rank that waits in it too is waiting for others, and one that waits in an
// earlier one probably is; one that has begun it and does not wait may have been stopped. If all of them wait
// in it, those that have not begun it are to blame, although this rank needs nothing from them itself.
std::vector<int> Failures::to_blame(const Entry& entry, const std::vector<Report>& reports) const {
  constexpr int kWaitsToo = 3;
  constexpr int kHasBegun = 2;
  const auto excuse = [&](int rank) {
    const Report& last = reports[static_cast<size_t>(rank)];
    if (!entry.of_all || last.number == 0) return 0;
    if (last.number >= entry.number) return last.waiting ? kWaitsToo : kHasBegun;
    return last.waiting ? 1 : 0;
  };
  const auto weakest = [&](const std::vector<int>& ranks) {
    int least = kWaitsToo;
    for (const int rank : ranks) least = std::min(least, excuse(rank));
    return least;
  };
  std::vector<int> suspects = entry.missing;
  int least = weakest(suspects);
  if (!suspects.empty() && least == kWaitsToo) {
    std::vector<int> others;
    for (int rank = 0; rank < options_.world; ++rank) {
      if (rank != options_.rank) others.push_back(rank);
    }
    if (const int theirs = weakest(others); theirs < kHasBegun) {
      suspects = std::move(others);
      least = theirs;
    }
  }
  std::erase_if(suspects, [&](int rank) { return excuse(rank) != least; });
  return suspects;
}

}  // namespace tutti::comm
