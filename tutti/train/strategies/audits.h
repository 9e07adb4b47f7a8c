#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/params/parameters.h"
#include "tutti/step/audited_range.h"
#include "tutti/step/gradient_mean.h"

namespace tutti {

// The lane that is computed more than once at a step (--audit).
struct AuditedLane {
  int64_t lane = 0;
  int owner = 0;                   // the rank that has the lane, and whose results are used
  std::vector<int> auditors = {};  // the ranks that compute it as well
  uint64_t range = 0;              // random bits that choose the range whose sum is audited (draw_range)

  bool is_audited_by(int rank) const;
};

// Draws a lane and its auditors from seed and step. `hosts` has the host of each rank. Ranks on other hosts
// than the owner's come first; a rank that is alone audits itself. There may be fewer auditors than asked
// for.
AuditedLane draw_audit(int64_t seed, int64_t step, int64_t lanes, const std::vector<std::string>& hosts,
                       size_t auditors);

// The hashes that one rank has computed for the lane (hashes_of_lane()).
struct LaneResult {
  int rank = 0;
  std::string hashes = {};
};

struct Verdict {
  // The results that most of the last computations have in common are right; without a majority nobody knows,
  // and all are suspects.
  bool is_clear = false;
  bool has_passed = false;  // the last computations agree
  std::vector<int> wrong = {};
  std::vector<int> right = {};
  // A right and a wrong result, or two that differ.
  std::string one = {};
  std::string other = {};
  std::string what = {};  // the first result that differs; "" if it is to be found in `one` and `other`
};
// Judges by the results of the first try, which differ, and of the second one. Empty: there was none.
Verdict judge(std::span<const LaneResult> first, std::span<const LaneResult> second);

// The results of all ranks, by rank: the hashes of `again` of all results, then those of `got`.
using RecomputedByRank = std::vector<std::string>;
std::string hashes_of(const std::vector<Recomputed>& results);
// Judges results that every rank has computed again. Names and makers are the same on all ranks. If no rank
// has the right result, its maker is wrong; otherwise whoever has not got it.
Verdict judge(const std::vector<Recomputed>& results, const RecomputedByRank& first,
              const RecomputedByRank& second);

// The audits of a training. At every step that is audited, the workers compare what owner and auditor have
// computed, before anything is added; then a range of the sums, which all have added again, before it changes
// a weight; and then the update of that range. If lane or sum differ, the step is made again, with a second
// auditor for the lane, and whoever differs from the majority is wrong. An update that differs is repaired.
// Every worker makes the same calls. Not thread-safe.
class Audits {
 public:
  // The context must outlive this.
  explicit Audits(const Context& context) : context_(context) {}

  // Sets the workers, who all call this, and again when they have changed. Both must outlive this.
  void set_workers(comm::Communicator& comm, const Parameters& parameters, int64_t lanes);
  // A step may be made again. Otherwise the first difference ends the training.
  void may_repeat_steps() { may_repeat_ = true; }
  // Returns the lane to be audited at this step, if any.
  std::optional<AuditedLane> at(int64_t step) const;
  // Compares the results of a lane. Returns false if the step has to be made again. Throws DataLoss if the
  // training ends. With --audit-action evict, throws Interrupted on the worker that is wrong, and on the
  // others PeerLost, as if that worker were gone.
  bool agree(const AuditedLane& audited, int64_t step, const GradientMean::LaneHashes& mine);
  // Likewise for results that all have computed again.
  bool agree_on_sum(int64_t step, const std::vector<Recomputed>& mine);
  // Compares an update that was made, and repairs it. Throws DataLoss if the training ends. A worker is
  // evicted by the next call of evict_if_due(), in the next step.
  void agree_on_update(int64_t step, AuditedUpdate& update);
  void evict_if_due();
  // The number of audits and the differences found; null if there were no audits.
  Json report() const;

 private:
  std::vector<LaneResult> results_of(const AuditedLane& audited, const GradientMean::LaneHashes& mine) const;
  std::string names_of(const std::vector<int>& ranks) const;
  enum class Of { Lane, Sum, Update };
  std::string tensor_of(const Verdict& verdict) const;
  std::string describe(std::optional<int64_t> lane, const Verdict& verdict) const;
  void conclude(Of what, std::optional<int64_t> lane, int64_t step, const Verdict& verdict);
  void say(const std::string& text, int rank = 0) const;

  const Context& context_;
  comm::Communicator* comm_ = nullptr;  // null until there are workers, like the parameters
  const Parameters* parameters_ = nullptr;
  int64_t lanes_ = 0;
  std::vector<std::string> who_;    // by rank: "worker/1 on node7"
  std::vector<std::string> hosts_;  // by rank
  bool may_repeat_ = false;
  int64_t repeated_ = -1;  // the step that is made again; -1: none
  std::vector<LaneResult> first_try_;
  RecomputedByRank first_sum_;  // the same for the sum
  // The worker that is wrong, and why it leaves the others.
  struct Eviction {
    int rank = 0;
    std::string why = {};
  };
  std::optional<Eviction> eviction_;
  int64_t made_ = 0;
  Json found_ = Json::array();
};

}  // namespace tutti
