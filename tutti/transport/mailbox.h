#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/transport/array.h"
#include "tutti/transport/transport.h"

namespace tutti::comm {

// No message can come, since all other ranks have left in good order. The ranks have not failed.
struct AllHaveLeft : Error {
  explicit AllHaveLeft(const std::string& text) : Error(ErrorKind::PeerLost, text) {}
};

// Messages that other ranks have sent to this one. A receiver takes those with its tag, in the order in which
// they were sent; it keeps others that come before for the receivers that will ask for them. Thread-safe, for
// any number of receivers that wait at the same time.
class Mailbox {
 public:
  explicit Mailbox(Transport& transport)
      : transport_(transport), boxes_(static_cast<size_t>(transport.world())) {}

  // Receives a message with Operation::tag from this rank.
  void take(const Array& values, int from, const Operation& operation);
  // Receives one from any rank, and returns that. Throws AllHaveLeft.
  int take_from_any(const Array& values, const Operation& operation);

 private:
  // A message that nobody has asked for yet.
  struct Kept {
    OperationLabel label;
    std::unique_ptr<std::byte[]> bytes;
  };
  // The messages from one rank. One receiver at a time reads from the connection.
  struct Box {
    std::deque<Kept> kept;
    bool is_read = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  Box& box(int from) { return boxes_[static_cast<size_t>(from)]; }
  bool take_kept(Lock& lock, const Array& values, int from, const Operation& operation);
  template <class Read>
  void reading(Lock& lock, int from, const Read& read);
  bool take_next(const OperationLabel& label, const Array& values, int from, const Operation& operation);
  void give_up_if_late(const Operation& operation) const;
  std::string known_of_others() const;

  Transport& transport_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Box> boxes_;  // by rank; guarded by mutex_
};

}  // namespace tutti::comm
