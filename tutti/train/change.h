#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tutti/base/error.h"

// The decisions of a training whose workers change (`tutti run --min`). They do no I/O and need no LibTorch.
namespace tutti {

inline constexpr int64_t kNowhere = -1;  // the place of a worker that has no state of the run
inline constexpr int64_t kUnbegun = -2;  // the place of a worker for which the run has not begun

// Orders the workers by what they have done: `step` steps, then how many hooks were told of the last one, and
// then the fit() in which they are, since one may have left a fit that another one has not.
int64_t place_of(int64_t step, bool is_told, int64_t hooks_told, int64_t fit);

// The result of farthest_of().
struct Farthest {
  int rank = 0;  // the first one that has got there
  int64_t place = 0;
  bool all_are_there = false;
};

// Returns the worker whose state the others take over, from the places of all ranks. The place is kUnbegun if
// the run has begun for nobody. Throws DataLoss if it has, but nobody has the state.
Farthest farthest_of(const std::vector<int64_t>& places);

// Enters the next epoch by `regroup`, because of `why`, and does there what brings all its workers together:
// again if one is lost meanwhile. If the workers cannot change, it is tried once.
using InEpoch = std::function<void(const std::optional<Error>& why)>;
void enter_epoch(std::optional<Error> why, bool can_change, const InEpoch& regroup,
                 const InEpoch& come_together);

}  // namespace tutti
