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
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

struct BoardOptions {
  int rank = 0;
  int world = 1;
  std::vector<std::string> who = {};  // by rank, for people; empty: "rank 3"
  // A rank that waits looks this often whether another has failed, ...
  std::chrono::milliseconds look_up{200};
  // ... says so on the board when it has waited this long (or a quarter of its timeout), and says no more
  // often what else it has done.
  std::chrono::milliseconds last_words{1000};
};

// Every rank leaves a word and gets those of all. Whoever has not come in time is named in the Timeout, with
// one text for all who have.
std::vector<std::string> roll_call(Rendezvous& table, const BoardOptions& options, const std::string& word,
                                   std::chrono::milliseconds timeout);

// What a rank, or these, are called where `who` has the names of all or of none.
std::string name_of(const std::vector<std::string>& who, int rank);
std::vector<std::string> names_of(const std::vector<std::string>& who, const std::vector<int>& ranks);

// How ranks that have no memory in common fail together: with one text, which names whoever is to blame. It
// is told of every operation. A thread of its own leaves word of what this rank does, keeps the deadlines,
// and looks whether another rank has failed. The first failure that comes to the table is everybody's.
//
// The table has to be there for as long as operations are under way: where it is gone, so is the group.
// Thread-safe.
class FailureBoard {
 public:
  // `abandon` makes all operations that are under way give up. Called once, in any thread, when the
  // failure is known; what on_failure() was given comes after it.
  FailureBoard(std::shared_ptr<Rendezvous> table, BoardOptions options, std::function<void()> abandon);
  ~FailureBoard();
  FailureBoard(const FailureBoard&) = delete;
  FailureBoard& operator=(const FailureBoard&) = delete;

 private:
  struct Entry {
    std::string operation;  // as describe() says it: what it points to may end before the entry does
    std::string_view why_not_there;
    std::chrono::milliseconds timeout;
    std::chrono::steady_clock::time_point deadline;
    bool of_all;
    int64_t number;            // of operations of all ranks that have begun
    std::vector<int> missing;  // peers of which nothing has come yet
    std::chrono::steady_clock::time_point began;
  };

 public:
  // One operation, from its beginning to the end of this object.
  class Watch {
   public:
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    // All has come from this rank.
    void arrived(int rank);

   private:
    friend class FailureBoard;
    Watch(FailureBoard& board, std::list<Entry>::iterator entry) : board_(board), entry_(entry) {}

    FailureBoard& board_;
    const std::list<Entry>::iterator entry_;
  };

  enum class Party { All, Two };  // whether all ranks take part, or this one and another
  // Throws where the group has failed already. An operation of all ranks that begins within another is a part
  // of that.
  Watch watch(const Operation& operation, Party party, std::vector<int> peers);

  // Throws the failure of all ranks: the one that is known, or else that this rank is gone. `why` is what the
  // network says about it, or nothing.
  [[noreturn]] void lost(const Watch& watch, int rank, const std::string& why);
  // The same with a text of one's own.
  [[noreturn]] void report(ErrorKind kind, const std::string& text);
  // What all others fail with, unless they have failed already. Does not throw it.
  void give_up(const std::string& text) { fail_together(ErrorKind::PeerLost, text); }
  void throw_if_failed();

  // Is told of the failure, once, in any thread; at once where there has been one. It does not call the
  // board.
  void on_failure(std::function<void(const Error&)> hear);

 private:
  using Clock = std::chrono::steady_clock;
  struct Word {
    bool waiting = false;
    int64_t number = 0;
    std::string text;
  };

  void look_after_pause();
  void keep_watch();
  Clock::time_point next_look() const;
  void look(std::unique_lock<std::mutex>& lock);
  bool waits_long(const Entry& entry) const;
  std::string own_word() const;
  void adopt_failure();
  void look_at_table(const std::string& word, const std::string& waiting);
  void time_out(const Entry& entry);
  void fail_together(ErrorKind kind, const std::string& text);
  static std::vector<size_t> to_blame(const Entry& entry, const std::vector<std::optional<Word>>& words);
  std::optional<Word> word_of(int rank);
  std::string who(int rank) const;

  const std::shared_ptr<Rendezvous> table_;  // shared: the ranks' threads may have it in common
  const BoardOptions options_;
  const std::function<void()> abandon_;

  std::mutex reporting_;  // held by whoever makes a failure known; taken before mutex_
  std::vector<std::function<void(const Error&)>> listeners_;  // guarded by reporting_

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> entries_;  // all below: guarded by mutex_
  std::string last_done_;
  Clock::time_point done_at_;
  int64_t number_ = 0;
  std::string told_;  // the word on the table
  Clock::time_point told_at_;
  Clock::time_point looks_at_;
  std::optional<Error> failure_;
  bool stopping_ = false;

  std::thread thread_;
};

// What a transport does besides whose ranks fail together by a board.
class OnBoard {
 public:
  virtual ~OnBoard() = default;
  // Where there are others.
  virtual FailureBoard& board() = 0;
};

}  // namespace tutti::comm
