#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tutti::comm {

// How the ranks change while their job runs: from one epoch to the next (`tutti run --min`).
class Epochs {
 public:
  virtual ~Epochs() = default;
  // The number of the present epoch.
  virtual uint64_t number() const = 0;
  // True in a worker that was started again, which is alone until its first reconfigure().
  virtual bool is_joining() const = 0;
  // Returns true if the launcher wants the epoch to end after the present step. Asks it now and then.
  virtual bool change_is_due() = 0;
  // The least number of ranks with which the job goes on.
  virtual int least() const = 0;
  // Says who is gone and who has come since the epoch before: "worker/2 is gone".
  virtual std::string change() const = 0;
  // Returns true if the launcher has sent a signal to all workers, and not somebody to this one.
  virtual bool job_stops() const = 0;
  // Tells workers that join later which call of fit() the members are in; nullopt: none yet. Nobody joins
  // before.
  virtual void set_fit(int64_t fit) = 0;
  virtual std::optional<int64_t> fit() const = 0;
  // Returns true if too few ranks are left: they save what they have, and end.
  virtual bool is_last() const = 0;
};

}  // namespace tutti::comm
