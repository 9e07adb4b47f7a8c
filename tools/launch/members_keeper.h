#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/transport/members.h"

namespace tutti {

// Decides who the members of a job are (comm/members.h) while workers are lost and come back. It has no
// clock, does no I/O and knows no processes: the caller passes in what has happened, then calls tick(), and
// carries out what the outputs say. The same inputs give the same outputs. Not thread-safe.
//
// Epoch 0 has the first workers in their first lives; the others stay away until they are started, which is
// their second life. A member is lost: the next epoch begins at once, with the
// members that are left, in their order, and after them the workers that have asked for a place. If these are
// fewer than `min`, it waits for workers that come back. If too few can come, a last epoch begins, in which
// those that are left come together once more to save what they have. Members cannot reach one another,
// although none is known to be lost: those that do not call in time are evicted. A worker asks for a place
// while all goes well: the members are asked to call after their step, and the next epoch begins when all
// have. Nobody gets a place before the training has begun: until then the members connect, and have no state
// to hand over.
class MembersKeeper {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Then { ComesBack, StaysAway };

  // `timeout` is the time that members have for their calls after the first of them has called. `hosts` has
  // the number of each worker's host; {}: all are on one. Members of a host get neighbouring ranks. The job
  // begins with the first `first` workers; nullopt: with all.
  MembersKeeper(int workers, int min, std::chrono::milliseconds timeout, std::vector<int> hosts = {},
                std::optional<int> first = {});
  // Takes the place of another keeper, with the newest members that it has decided: begins an epoch at once,
  // since all have to connect anew. `workers` has their present lives and whether they are there, or may come
  // back.
  struct Standing {
    int life = 0;
    bool is_there = true;
  };
  MembersKeeper(comm::Members newest, const std::vector<Standing>& workers, int min,
                std::chrono::milliseconds timeout, std::vector<int> hosts);

  // The process of this worker has ended without success. If it comes back, it is in its next life.
  void lost(int worker, Then then);
  // It has ended with success. If it is a member, the training is over, and no further epoch begins.
  void ended_well(int worker);
  // A worker that was to stay away is started after all, in its next life. Returns false if it does not stay
  // away, or if no further epoch begins.
  bool returns(int worker);
  void training_has_begun() { begun_ = true; }
  // No further epoch begins, since `why`. Members that need one, and workers that ask for a place, are told
  // this reason. A second reason is ignored.
  void finish(const std::string& why);
  // The newest epoch does not begin or does not go on here: the job ends, since `why`.
  void give_up(const std::string& why);
  // May be repeated. A call of an earlier epoch or life is ignored.
  void called(const comm::Member& member, const comm::Call& call, Time now);
  // This worker, which has asked for a place, gets none. It ends.
  void refused(const comm::Member& member) { std::erase(joiners_, member); }
  // Decides, after any number of other inputs.
  void tick(Time now);

  // All epochs since this keeper has begun. If ended(), the last one has no members.
  const std::vector<comm::Members>& epochs() const { return epochs_; }
  bool ended() const { return !newest().end.empty(); }
  bool finished() const { return !finished_.empty(); }
  // Returns true if fewer than `min` are left for good: the members of the newest epoch, if it has any, only
  // save what they have.
  bool has_too_few() const { return has_too_few_; }
  // Returns why no further epoch begins; "" if one may begin.
  const std::string& why_over() const { return finished() ? finished_ : newest().end; }
  // Members to be killed, each of them once. They stay members until they are lost.
  std::vector<comm::Member> take_evicted();
  // The epoch that its members are to leave after their step (comm::kChangeKey).
  std::optional<uint64_t> wanted_change() const;
  // Returns true if somebody waits for the next epoch, so that calls are expected.
  bool is_changing() const;
  // Returns true if this worker is in the newest epoch in its present life.
  bool is_member(int worker) const;
  // Returns true if it was in the last epoch that had members, in its present life.
  bool trained_last(int worker) const;
  bool is_there(int worker) const { return at(worker).state != State::Gone; }
  bool comes_back(int worker) const { return at(worker).state == State::ComesBack; }
  // Returns true unless its present life is the first one.
  bool has_run_before(int worker) const { return life_of(worker) > (worker < first_ ? 0 : 1); }
  bool is_evicted(int worker) const { return evicted_.contains(worker); }
  int life_of(int worker) const { return at(worker).life; }
  // The number of members that are left, without evicted ones.
  int left() const { return static_cast<int>(members_left().size()); }
  int most() const { return static_cast<int>(workers_.size()); }
  // The number of workers that have ever been started.
  int started() const;
  // The workers whose calls matter: members, and workers that come back.
  std::vector<comm::Member> possible_callers() const;

 private:
  enum class State { Runs, ComesBack, EndedWell, Gone };
  struct Worker {
    int life = 0;
    State state = State::Runs;
  };

  const comm::Members& newest() const { return epochs_.back(); }
  const Worker& at(int worker) const { return workers_.at(static_cast<size_t>(worker)); }
  bool lives(const comm::Member& member) const;
  std::vector<comm::Member> members_left() const;
  bool somebody_is_lost() const;
  bool all_have_called() const;
  bool somebody_can_join() const { return begun_ && !joiners_.empty(); }
  int most_possible() const;
  void begin_next();
  void end(const std::string& why);
  void evict_silent();

  void join_hosts(std::vector<comm::Member>& members) const;

  const int min_;
  const std::chrono::milliseconds timeout_;
  const std::vector<int> hosts_;
  const int first_;  // the number of workers with which the job has begun
  std::vector<Worker> workers_;
  std::vector<comm::Members> epochs_;
  std::vector<comm::Member> joiners_;  // workers that have asked for a place, in the order of their calls
  std::set<int> called_;               // members that have called in the newest epoch
  std::optional<Time> call_by_;        // when members that have not called are evicted
  std::set<int> evicted_;              // workers that were evicted and are not lost yet
  std::vector<comm::Member> new_evicted_;
  bool begun_ = false;          // the training
  bool connects_anew_ = false;  // the members have to connect in another epoch
  bool has_too_few_ = false;    // for good
  std::string finished_;        // not "": why no further epoch begins
};

}  // namespace tutti
