#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/outcome.h"
#include "tutti/base/environment.h"

namespace tutti {

// The time from SIGTERM to SIGKILL after a task has failed.
inline constexpr std::chrono::milliseconds kFailureGrace{2000};
// The time from the signal to SIGKILL if tasks save a checkpoint before they end.
inline constexpr std::chrono::milliseconds kSavingGrace{30'000};

// A worker whose process has ended.
struct EndedWorker {
  int worker = 0;
  Outcome outcome = Outcome::exited(0);
  std::string text = {};  // "worker/2 (pid 12) was killed by SIGKILL (Killed) after 3.2 s"
  double seconds = 0;     // how long it has run

  bool operator==(const EndedWorker&) const = default;
};

// An instruction for the launcher of a worker.
struct WorkerOrder {
  enum class What {
    Start,   // after the pause
    Kill,    // it does not answer the other workers
    Leave,   // after its step, since there are to be fewer
    Fail,    // its end is a failure of the job
    Refuse,  // the others have taken in no worker of this launcher, which ends alone
  };
  What what = What::Start;
  int worker = 0;
  int life = 0;                   // with Start: the life that begins
  std::chrono::seconds pause{0};  // before a Start

  bool operator==(const WorkerOrder&) const = default;
};

// The end of a job with all its tasks on all hosts.
struct JobEnd {
  int exit_code = 0;
  int signal = 0;                      // by which the tasks are to be ended; 0: all workers have ended
  std::chrono::milliseconds grace{0};  // from the signal to SIGKILL
  bool interrupted = false;            // by a signal to the launcher: the job is not restarted
  bool comes_again = false;            // this launcher alone: it was on its way to the others, and tries anew
  int restarts = 0;                    // of single workers that count as restarts of the job

  bool operator==(const JobEnd&) const = default;
};

// Decides what becomes of the workers of a TaskGroup that are lost (`tutti run --min`). One launcher of a job
// is the SurvivalKeeper, which has the list of members and decides for all hosts; the launchers of other
// hosts are SurvivalGuests, which report to it and pass on its orders. Not thread-safe.
class Survival {
 public:
  // Prints a line for the user.
  using Say = std::function<void(const std::string& text)>;

  virtual ~Survival() = default;

  // The number of the first worker of the TaskGroup; the others follow.
  virtual int first_worker() const = 0;
  // Returns true if this worker of the TaskGroup is started with it, and not by an order.
  virtual bool begins_with(int worker) const = 0;
  // Adds what a worker needs to find the list of members, and its life.
  virtual void add_variables(int worker, std::map<std::string, std::string>& variables) const = 0;
  // How long workers wait for one another (--timeout).
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual bool has_other_hosts() const = 0;
  // How soon look() has to be called again if nothing happens here.
  virtual std::chrono::milliseconds look_again() const = 0;

  // The process of a worker of this TaskGroup has ended.
  virtual void ended(const EndedWorker& ended) = 0;
  // This worker, which was to be started again, is not.
  virtual void stays_away(int worker) = 0;
  // Lets the workers of this TaskGroup leave, by orders, if the workers of other hosts are enough. Returns
  // false if not, and in a launcher that can leave with its workers.
  virtual bool dismiss_own_workers() = 0;
  // This TaskGroup begins to end its tasks.
  virtual void stop(const JobEnd& end) = 0;
  // The time from SIGTERM to SIGKILL after a failure.
  virtual std::chrono::milliseconds failure_grace() const = 0;
  // Returns new orders for workers of this TaskGroup.
  virtual std::vector<WorkerOrder> look(const Say& say) = 0;

  // Returns true if nobody takes the place of a lost worker any more.
  virtual bool job_is_done() const = 0;
  // Returns true if no worker runs any more on any host, as far as this launcher has to know.
  virtual bool is_over() const = 0;
  // Returns how the whole job ends, once that is known.
  virtual std::optional<JobEnd> end() const = 0;
};

// Returns the seconds of TUTTI_TIMEOUT, or the default of --timeout.
std::chrono::milliseconds survival_timeout(const Environment& environment);

}  // namespace tutti
