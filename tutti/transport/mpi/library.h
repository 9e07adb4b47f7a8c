#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mpi.h>
#include <mutex>
#include <utility>
#include <vector>

// MPI itself, its groups of ranks, and how to wait for it.
namespace tutti::comm::mpi {

// Throws PeerLost with MPI's text, and the place of the call, unless the code says success.
void check(int code, const char* file = __builtin_FILE(), int line = __builtin_LINE());

// Forbids to finalise MPI when the process ends. Does not initialise it.
void never_finalise() noexcept;

// MPI exists once per process, so this class has a static object, unlike all others.
class Library {
 public:
  // Initialises MPI, unless the program has done so.
  static Library& get();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Hold this around every call. It locks only if MPI supports just one thread at a time.
  std::unique_lock<std::mutex> lock() {
    return one_thread_ ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
  }
  // Keeps memory that MPI may still write to alive forever.
  void leave_to_mpi(std::shared_ptr<void> memory);
  // Call this if a message cannot be cancelled: it may still be written to memory that its owner is about to
  // free. MPI only writes during its calls, so MPI is not called any more.
  void stop();
  bool stopped() const { return stopped_; }
  void require_usable() const;

 private:
  Library();
  ~Library();

  std::mutex mutex_;
  bool one_thread_ = false;
  bool ours_ = false;  // initialised here
  std::atomic<bool> stopped_{false};
  std::vector<std::shared_ptr<void>> left_;
};

// Owns a communicator of MPI.
class Group {
 public:
  // Returns the group of these ranks of `world`. All of them have to call this.
  static Group make(MPI_Comm world, const std::vector<int>& ranks, int tag);

  explicit Group(MPI_Comm group) : group_(group) {}
  Group(Group&& other) noexcept : group_(std::exchange(other.group_, MPI_COMM_NULL)) {}
  Group(const Group&) = delete;
  ~Group();

  MPI_Comm get() const { return group_; }
  // Some messages may still be in progress, so the communicator will not be freed.
  void broken() { broken_ = true; }

 private:
  MPI_Comm group_;
  std::atomic<bool> broken_{false};
};

int rank_in(MPI_Comm group);
std::vector<int> ranks_of(MPI_Comm group);

// How a thread waits for others: at first it spins, so that short messages are fast; then it yields, since
// there may be more ranks than cores; then it sleeps.
class Backoff {
 public:
  void wait();
  void forget() { waited_ = 0; }

 private:
  int waited_ = 0;
};

}  // namespace tutti::comm::mpi
