#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/agreement.h"
#include "tutti/base/error.h"
#include "tutti/transport/rendezvous.h"

// Who trains together, and how that changes while a job runs. `tutti run --min` keeps the list on a board
// that outlives every worker (tools/launch/members_keeper.h). On several hosts each launcher serves a board,
// and its workers learn there which launcher keeps the list (board/follow.h). The keys:
//
//   keeper             HOST:PORT of the board with the list, or "here", by each launcher on its own board
//   members/EPOCH      Members, written once, by the launcher
//   newest             the newest EPOCH that has begun, by the launcher
//   call/WORKER/LIFE   Call, by that worker, when it cannot go on or asks for a place
//   change             the epoch that the launcher wants to end after a step
//   entered            the newest epoch whose members are connected, by each of them
//   least              the number of members with which the job goes on, by the launcher
//   stop               set before the launcher sends a signal to all, so that nobody leaves alone
//   fixed              why the members cannot change, by one of them: no training would take a new one in
//   facts              the Agreement of the members, by each; a worker that joins must have the same lines
//   fit                the call of fit() that the members are in, by each, after `facts`; nobody joins before
//   plan/FIT           the Agreement of a fit, by the chief, which a worker that joins in it must have as
//   well refused/WORKER/LIFE  why this worker, which was to join, is not taken in: by the launcher or by the
//   worker
namespace tutti::comm {

// One process: a worker of the job, and how often its launcher had started that worker before.
struct Member {
  int worker = 0;
  int life = 0;

  bool operator==(const Member&) const = default;
};

// The workers that train together during one epoch, which is the time from one change to the next. Each epoch
// has a transport of its own, so that nothing that belongs to another can arrive. A value.
struct Members {
  uint64_t epoch = 0;
  std::vector<Member> by_rank = {};  // those of the epoch before first, in their order
  bool is_last = false;              // too few are left: the members save what they have, and end
  std::string end = {};              // not "": why nobody goes on; there are no members then

  // Returns nullopt if this process is not one of them.
  std::optional<int> rank_of(const Member& member) const;
};

// What a worker tells its launcher before it waits for the next epoch.
struct Call {
  enum class Why {
    Lost,    // another worker is gone
    Late,    // another worker has not come within --timeout
    Change,  // as the launcher wants
    Joins,   // it has been started again
  };
  uint64_t epoch = 0;  // that it has left; with Joins any
  Why why = Why::Lost;
  std::string text = {};   // the error
  std::string facts = {};  // with Joins: the Agreement of the worker; "": it has none
};

// To and from the texts on the board. The functions that read throw DataLoss.
std::string to_text(const Members& members);
Members members_of(const std::string& text);
std::string to_text(const Call& call);
Call call_of(const std::string& text);
std::string to_text(const Agreement& facts);
Agreement facts_of(const std::string& text);

std::string members_key(uint64_t epoch);
std::string call_key(const Member& member);
std::string plan_key(const std::string& fit);
std::string refused_key(const Member& member);
inline constexpr const char* kKeeperKey = "keeper";
inline constexpr const char* kHere = "here";
inline constexpr const char* kNewestKey = "newest";
inline constexpr const char* kChangeKey = "change";
inline constexpr const char* kFactsKey = "facts";
inline constexpr const char* kFitKey = "fit";
inline constexpr const char* kFixedKey = "fixed";
inline constexpr const char* kEnteredKey = "entered";
inline constexpr const char* kLeastKey = "least";
inline constexpr const char* kStopKey = "stop";

// Writes the members of the newest epoch.
void publish(Rendezvous& board, const Members& members);
// Returns true if a later epoch than this one has begun.
bool has_later(Rendezvous& board, uint64_t epoch);

// The part of a board at which the members of an epoch connect. While they do, calls throw PeerLost as soon
// as a later epoch has begun: somebody for whom they wait was lost. Thread-safe.
class EpochBoard final : public Rendezvous {
 public:
  EpochBoard(std::shared_ptr<Rendezvous> board, uint64_t epoch);

  // All are connected. From here on they notice by themselves who is lost.
  void connected() { connected_ = true; }

  void set(const std::string& key, const std::string& value) override { own_->set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> peek(const std::string& key) override;
  std::string set_once(const std::string& key, const std::string& value) override {
    return own_->set_once(key, value);
  }
  std::string hold(const std::string& key, const std::string& value) override {
    return own_->hold(key, value);
  }
  bool ended() const override { return own_->ended(); }

 private:
  const std::shared_ptr<Rendezvous> board_;
  const uint64_t epoch_;
  const std::shared_ptr<Rendezvous> own_;
  std::atomic<bool> connected_ = false;
};

// How somebody waits before the next look at a board.
using Sleep = std::function<void(std::chrono::milliseconds)>;
void sleep_in_this_thread(std::chrono::milliseconds time);

// Returns true if another task is gone or does not answer.
bool is_loss(const Error& error);

// The list as one worker sees it. Thread-compatible.
class MembersBoard {
 public:
  MembersBoard(std::shared_ptr<Rendezvous> board, const Member& self, Sleep sleep = sleep_in_this_thread)
      : board_(std::move(board)), self_(self), sleep_(std::move(sleep)) {}

  const Member& self() const { return self_; }
  const std::shared_ptr<Rendezvous>& board() const { return board_; }
  // Returns the members of an epoch that has begun.
  Members at(uint64_t epoch) const;
  // Makes the call and waits for the newest members after `call.epoch`, also of another launcher that takes
  // the place of the one that has kept the list. Throws PeerLost if this process is not among them any more,
  // and if the job ends; InvalidArgument if the others do not take it in, since its facts differ.
  Members await_next(const Call& call) const;
  // Returns true if the launcher wants this epoch to end after the present step, or if a later one has begun:
  // a member may have been given up that still answers the others, since its launcher was silent. Without the
  // board a change is due as well: another launcher begins an epoch.
  bool change_is_due(uint64_t epoch) const;
  // Says that the members of an epoch are connected.
  void set_entered(uint64_t epoch) const { board_->set(kEnteredKey, std::to_string(epoch)); }
  // The least number of members with which the job goes on.
  int least() const;
  // Returns true if the launcher ends the whole job.
  bool job_stops() const { return board_->peek(kStopKey).has_value(); }
  // The Agreement of this worker, which goes along with its calls for a place and with set_fit().
  void set_facts(const Agreement& facts) const { facts_ = to_text(facts); }
  const std::string& facts() const { return facts_; }
  // Which fit() the members are in; nullopt before the first. Another launcher is told as well.
  void set_fit(int64_t fit) const;
  std::optional<int64_t> fit() const;

 private:
  std::optional<Members> newest_after(uint64_t epoch) const;
  void tell_fit() const;
  void require_admission() const;

  const std::shared_ptr<Rendezvous> board_;
  const Member self_;
  const Sleep sleep_;
  mutable std::string facts_;
  mutable std::optional<int64_t> told_fit_;
};

}  // namespace tutti::comm
