#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"
#include "tutti/comm/communicator.h"

namespace tutti {

// Counts the calls that all workers of a run make together besides its steps, in the order of the program:
// the beginning and the end of the steps of each fit(), evaluations, and exports. A call ends with a barrier,
// so a worker that has passed it knows that all have made the call. When workers have come together in
// another epoch, agree() finds the calls that somebody has passed. The next one is made again by all, since
// the chief may be lost and have left undone what only it does. Only the beginning of a fit, of which hooks
// are told, is not made again if all that are left have made it. A worker that joins gets the outcomes of the
// calls, and uses them until its program has come as far as the others. If it has passed over fits, because
// somebody had begun a later one, all have made the calls before that one. Not thread-safe.
class Calls {
 public:
  // Returns true if all workers have made the call to which this one has come.
  bool is_over() const { return at_ < outcomes_.size(); }
  // Returns its outcome; requires is_over().
  const Json& outcome() const { return outcomes_.at(at_); }
  // This worker has made the call.
  void made(Json outcome) { outcomes_.push_back(std::move(outcome)); }
  // This worker goes on after the call, or after all calls that were made.
  void pass() { ++at_; }
  void pass_all() { at_ = outcomes_.size(); }

  // The outcomes of the calls of a fit: its steps begin, the checkpoint before them is saved, they end.
  static Json beginning_of(int64_t fit) { return {{kBegins, fit}}; }
  static Json first_save_of(int64_t fit) { return {{"saves", fit}}; }
  static Json end_of(int64_t fit) { return {{"ends", fit}}; }
  bool has_begun(int64_t fit) const { return find(beginning_of(fit)).has_value(); }
  bool has_saved_first(int64_t fit) const { return find(first_save_of(fit)).has_value(); }
  bool has_ended(int64_t fit) const { return find(end_of(fit)).has_value(); }
  // This worker goes on after the end of a fit, which the others have made. A worker that joins may call it
  // before it knows the outcomes.
  void pass_fit(int64_t fit);

  // Called by all workers of an epoch. One that joins, which knows no calls, gets them from the others.
  void agree(comm::Communicator& comm, bool joins);

 private:
  static constexpr const char* kBegins = "begins";

  std::optional<size_t> find(const Json& outcome) const;

  std::vector<Json> outcomes_;  // of the calls that were made
  size_t at_ = 0;               // the call to which the program of this worker has come
  std::optional<int64_t> passed_fit_;
};

}  // namespace tutti
