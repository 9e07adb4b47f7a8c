#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/base/error.h"
#include "tutti/transport/members.h"

namespace tutti::comm {

// The words of MemberEpochs::change() for a worker that was lost, one that has left as planned, a new one,
// and no change of the workers.
inline constexpr const char* kIsGone = "is gone";
inline constexpr const char* kHasLeft = "has left";
inline constexpr const char* kHasCome = "has come";
inline constexpr const char* kSameWorkers = "the same workers connect again";

// The way of one worker from epoch to epoch. Knows no transports: the caller connects the members.
// Thread-compatible.
class MemberEpochs {
 public:
  // Connects the members of an epoch. Throws PeerLost or Timeout if one of them is lost or late.
  using Connect = std::function<void(const Members& members, const std::shared_ptr<EpochBoard>& board)>;

  explicit MemberEpochs(MembersBoard list);

  const MembersBoard& list() const { return list_; }
  // The members of the epoch in which this worker is.
  const Members& members() const { return members_; }
  // Those of the last epoch before it in which this worker was connected.
  const Members& before() const { return before_; }
  // Says who of them is missing, and who is new: "worker/2 is gone, worker/1 has come"; "" if this worker was
  // connected in no epoch before.
  std::string change() const;
  // Returns true in a worker that was started again, until it is connected to the others.
  bool is_joining() const { return joining_; }
  // Enters the epoch with which the job begins. A worker that joins calls enter_next() instead.
  void enter_first(const Connect& connect);
  // Leaves the epoch, because of this error or, without one, because a change is due or this worker joins,
  // and enters the next one. Throws as MembersBoard::await_next().
  void enter_next(const std::optional<Error>& why, const Connect& connect);

 private:
  void enter(Members members, const Connect& connect);
  Call call(const std::optional<Error>& why) const;

  const MembersBoard list_;
  Members members_;
  Members before_;
  bool is_planned_ = true;  // the change from these to the present members
  bool joining_;
};

}  // namespace tutti::comm
