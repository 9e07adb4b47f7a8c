#pragma once

#include <cstdint>
#include <functional>

namespace tutti {

// Lets workers that share memory agree whether they have made a step, also if some of them die or stop in the
// middle of it: all that are left find that it is made, or that it is not. Each worker writes only its own
// memory, and reads the memory of the others only between the two points at which all meet:
//
//   update its own part, from the sums
//   1. all have updated           if this fails, nobody has taken anything: each takes its own part back
//   take the parts of the others
//   2. all have taken             if this fails, the step is made: it has all parts
//
// Meeting may fail on some workers and succeed on others. So each point has a counter in the shared memory,
// which a worker increases before it meets the others, and closes once it has failed to meet them. Nobody
// arrives at a closed counter, so all find the same number in it. Not thread-safe.
class StepCommit {
 public:
  // The counters begin with 0, are the same memory for all workers, and must outlive this.
  StepCommit(uint64_t& updated, uint64_t& taken, int world)
      : updated_(updated, world), taken_(taken, world) {}

  // Meets the others at both points, each time by `meet`, which may throw. Unless all have updated, calls
  // take_back() and throws that error, or PeerLost if the others have given up.
  void run(const std::function<void()>& meet, const std::function<void()>& take,
           const std::function<void()>& take_back);
  // Returns true if the others have gone on while this worker still took their parts: the parts may be
  // others.
  bool is_left_behind() const { return is_left_behind_; }

 private:
  class Point {
   public:
    Point(uint64_t& count, int world) : count_(count), world_(static_cast<uint64_t>(world)) {}
    // What this worker has written is seen by all who find that all have arrived. Returns false if the
    // counter is closed.
    bool arrive();
    // Returns true if all have arrived as often as this worker.
    bool close();

   private:
    uint64_t& count_;
    const uint64_t world_;
    uint64_t arrivals_ = 0;  // of this worker
  };

  Point updated_;
  Point taken_;
  bool is_left_behind_ = false;
};

}  // namespace tutti
