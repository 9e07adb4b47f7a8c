#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/transport/rendezvous.h"
#include "tutti/transport/transport.h"

namespace tutti::comm {

struct FailuresOptions {
  int rank = 0;
  int world = 1;
  std::vector<std::string> who = {};         // by rank, for error messages; empty: "rank 3"
  std::string holder = "rank 0 of the job";  // the rank that holds the board, for error messages
  // If the board does not answer for this long, operations time out, even if their own timeout is longer.
  std::chrono::milliseconds silence{60000};
  // How often a waiting rank checks whether another rank has failed.
  std::chrono::milliseconds look_up{200};
  // A rank that has waited this long (or a quarter of its timeout) reports on the board that it waits. Other
  // reports, of the last operation it finished, are at least this far apart.
  std::chrono::milliseconds between_reports{1000};
};

// The key with which a rank ends a roll call: why it has failed.
inline constexpr const char* kMissing = "missing";

// Every rank contributes a message and gets the messages of all ranks. Throws a Timeout that names the
// missing ranks; the text is the same for all ranks that did come.
std::vector<std::string> roll_call(Rendezvous& board, const FailuresOptions& options,
                                   const std::string& message, std::chrono::milliseconds timeout);

// Return an error as a value on a board, and the other way round.
std::string to_value(const Error& error);
Error to_error(const std::string& value);

// Return the name of a rank, or of several. `who` has the names of all ranks, or is empty.
std::string name_of(const std::vector<std::string>& who, int rank);
std::vector<std::string> names_of(const std::vector<std::string>& who, const std::vector<int>& ranks);

// Lets ranks fail together, with one text that names the rank at fault. Every operation
// is registered with it. Its own thread reports on the board what this rank does, enforces the deadlines, and
// checks whether another rank has failed. The first failure written to the board becomes the failure of all
// ranks.
//
// The board must exist as long as operations are in progress: if it is lost, the group fails.
// Thread-safe.
class Failures {
 public:
  // `abandon` must make all operations in progress give up. It is called once, from any thread, when the
  // failure is known.
  Failures(std::shared_ptr<Rendezvous> board, FailuresOptions options, std::function<void()> abandon);
  ~Failures();
  Failures(const Failures&) = delete;
  Failures& operator=(const Failures&) = delete;

 private:
  struct Entry {
    std::string operation;  // text of describe(): the Operation's pointers may dangle before the entry ends
    std::string_view why_not_there;
    std::chrono::milliseconds timeout;
    std::chrono::steady_clock::time_point deadline;
    bool of_all;
    int64_t number;            // count of operations of all ranks begun so far
    std::vector<int> missing;  // peers from which not everything has arrived yet
    std::chrono::steady_clock::time_point began;
  };

 public:
  // Registers one operation for the lifetime of this object.
  class Watch {
   public:
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    // Everything expected from this rank has arrived.
    void arrived(int rank);

   private:
    friend class Failures;
    Watch(Failures& failures, std::list<Entry>::iterator entry) : failures_(failures), entry_(entry) {}

    Failures& failures_;
    const std::list<Entry>::iterator entry_;
  };

  enum class Party { All, Two };  // all ranks take part, or this rank and one other
  // Throws if the group has already failed. An operation of all ranks that begins within another counts as
  // part of the outer one.
  Watch watch(const Operation& operation, Party party, std::vector<int> peers);

  // Throws the failure that all ranks share: the known one, or else that rank `rank` is gone. `why` is the
  // network's reason, or empty.
  [[noreturn]] void lost(const Watch& watch, int rank, const std::string& why);
  // Like lost(), with the caller's own kind and text.
  [[noreturn]] void report(ErrorKind kind, const std::string& text);
  // Makes all other ranks fail with this text, unless they have already failed. Does not throw it.
  void give_up(const std::string& text) { fail_together(ErrorKind::PeerLost, text); }
  void throw_if_failed();
  // Returns what the rank has reported: "it waits in barrier". Throws if the board cannot be reached.
  std::string known_of(int rank);

 private:
  using Clock = std::chrono::steady_clock;
  struct Report {
    bool waiting = false;
    int64_t number = 0;
    std::string text;
  };

  void look_after_pause(const Operation& operation);
  bool runs_of_all() const;
  void keep_watch();
  Clock::time_point next_look() const;
  void look(std::unique_lock<std::mutex>& lock);
  bool waits_long(const Entry& entry) const;
  std::string own_report() const;
  void adopt_failure();
  void look_at_board(const std::string& own, const std::string& waiting);
  void time_out(const Entry& entry);
  void time_out_without_board(const std::string& operation, std::chrono::milliseconds timeout);
  void fail_together(ErrorKind kind, const std::string& text);
  std::vector<int> to_blame(const Entry& entry, const std::vector<Report>& reports) const;
  std::optional<Report> report_of(int rank);
  std::string who(int rank) const;

  const std::shared_ptr<Rendezvous> board_;  // shared: ranks that are threads may use the same board
  const FailuresOptions options_;
  const std::function<void()> abandon_;
  std::optional<Clock::time_point> silent_since_;  // used only by the thread

  std::mutex reporting_;  // held while a failure is made known; taken before mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> entries_;  // all below: guarded by mutex_
  std::string last_done_;
  Clock::time_point done_at_;
  int64_t number_ = 0;
  std::string told_;  // the report on the board
  Clock::time_point told_at_;
  Clock::time_point looks_at_;
  std::optional<Error> failure_;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace tutti::comm
