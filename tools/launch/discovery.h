#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/launch/child.h"
#include "tools/launch/host_slots.h"
#include "tools/launch/survival.h"

namespace tutti {

// Runs the command of `tutti run --discover` again and again, which prints the hosts of the job, HOST or
// HOST:SLOTS a line. Does not wait for it. Not thread-safe.
class Discovery {
 public:
  // From the end of one run to the next there are `every`; a run may take `patience`.
  explicit Discovery(std::string command, std::chrono::milliseconds every,
                     std::chrono::milliseconds patience = std::chrono::seconds(60));
  ~Discovery();
  Discovery(const Discovery&) = delete;
  Discovery& operator=(const Discovery&) = delete;

  // Returns the hosts if a run has ended well since the last call. A run that fails, prints no host or takes
  // too long changes nothing, and is said once until another one has ended well.
  std::optional<std::vector<HostSlots>> look(const Survival::Say& say);

 private:
  using Clock = std::chrono::steady_clock;

  bool read_some();
  void end();

  const std::string command_;
  const std::chrono::milliseconds every_;
  const std::chrono::milliseconds patience_;
  Child child_;                // without a pid between two runs
  std::string printed_;        // by this run
  std::string complained_;     // likewise, on standard error
  Clock::time_point at_ = {};  // the next run, or the end of the patience with this one
  bool has_said_ = false;
};

// The places of a job with a fixed number of workers, each of which is a range of workers, and the hosts that
// have them. Has no clock and does no I/O. Not thread-safe.
class HostPlaces {
 public:
  // The first hosts have places for all their slots, as far as `most` workers allow; the rest of the workers
  // are places of the size of the largest host.
  HostPlaces(const std::vector<HostSlots>& first, int most);
  HostPlaces() = default;

  struct Arrival {
    size_t place = 0;
    HostSlots host;  // with as many slots as it uses
  };
  struct Changes {
    std::vector<size_t> leave;
    std::vector<size_t> stay;  // that would leave now if they might
    std::vector<Arrival> come;
    std::vector<std::string> left_out;  // hosts for which there is no place
  };
  // Says whether the job can do without the workers of these places.
  using MayLeave = std::function<bool(const std::vector<size_t>& places)>;
  // Takes in a new list of hosts. A host comes back to its former place if that is free. Hosts that are not
  // listed leave, all or none of them, if they may. Who stays or is left out is told once.
  Changes update(const std::vector<HostSlots>& hosts, const MayLeave& may_leave = {});

  // The places with their names, "" without a host, and numbers of workers.
  std::vector<HostSlots> all() const;

 private:
  struct Place {
    std::string host;  // the last one
    int workers = 0;
    bool is_taken = false;
    bool is_kept = false;  // by a host that is not listed
  };
  void let_go(const std::vector<HostSlots>& hosts, const MayLeave& may_leave, Changes& changes);
  Place* place_for(const HostSlots& host);

  std::vector<Place> places_;
  std::set<std::string> without_place_;  // hosts of the last list
};

}  // namespace tutti
