#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mpi.h>
#include <string>
#include <utility>
#include <vector>

#include "tutti/transport/failures.h"
#include "tutti/transport/transport.h"

namespace tutti::comm::mpi {

// Returns true if a message from this rank has come that nobody has begun to receive.
bool has_come(MPI_Comm group, int from);

// Messages in progress, in chunks of at most kChunk bytes.
class Messages {
 public:
  // `who` returns the name of a rank for error messages; it must outlive this object. All messages have this
  // tag: what both ends have to agree on. `other_tag` returns the error text if a peer sends another one.
  using OtherTag = std::function<std::string(int peer, int tag)>;
  Messages(MPI_Comm group, const std::function<std::string(int rank)>& who, int tag, OtherTag other_tag)
      : group_(group), who_(who), tag_(tag), other_tag_(std::move(other_tag)) {}

  void send(ConstBytes bytes, int to);
  void recv(Bytes bytes, int from);
  // Starts MPI's own all-reduce over all ranks of the group, in place.
  void add_all(const Array& values, MPI_Datatype type, const std::vector<int>& peers);

  // Waits until all requests have completed, and tells the watch of each peer that has none left. Returns
  // false if `give_up` becomes true.
  bool finish(Failures::Watch& watch, const std::atomic<bool>& give_up);

  // Cancels what can still be cancelled. Waits up to kLastBytes for messages that have begun to arrive, so
  // that nothing is written to the caller's memory afterwards. MPI gives no guarantee about sends that are
  // never received; after a failure the job ends anyway.
  void cancel() noexcept;

 private:
  enum class Way { In, Out };
  struct Posted {
    int peer;
    int expected;  // bytes
  };

  template <class Post>
  void post(size_t size, int peer, Way way, const Post& one);
  int test(std::vector<int>& done);
  void look_at(const Posted& posted, const MPI_Status& status, int code) const;
  [[noreturn]] void fail_other_size(const Posted& posted, const std::string& sent) const;
  static bool is_receive(const Posted& posted);
  bool receiving();

  static constexpr std::chrono::milliseconds kLastBytes{1000};
  static constexpr int kEverybody = -1;
  static constexpr int kAnySize = -1;

  const MPI_Comm group_;
  const std::function<std::string(int rank)>& who_;
  const int tag_;
  const OtherTag other_tag_;
  std::vector<int> everybody_;  // all ranks but this one; set by add_all()
  std::vector<MPI_Request> requests_;
  std::vector<Posted> posts_;         // the message of each request
  std::vector<MPI_Status> statuses_;  // buffer for MPI_Testsome
  std::map<int, int> open_;           // number of open requests by peer
};

}  // namespace tutti::comm::mpi
