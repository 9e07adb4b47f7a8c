#include "tutti/train/change.h"

#include <algorithm>

#include "tutti/transport/members.h"

namespace tutti {

int64_t place_of(int64_t step, bool is_told, int64_t hooks_told, int64_t fit) {
  constexpr int64_t kMostHooks = int64_t{1} << 12;
  constexpr int64_t kMostFits = int64_t{1} << 18;
  const int64_t told = is_told ? kMostHooks - 1 : std::min(hooks_told, kMostHooks - 2);
  return (step * kMostHooks + told) * kMostFits + std::min(fit, kMostFits - 1);
}

Farthest farthest_of(const std::vector<int64_t>& places) {
  const auto farthest = std::max_element(places.begin(), places.end());
  if (*farthest == kNowhere) fail(ErrorKind::DataLoss, "all workers that had the state of the run are lost");
  return {.rank = static_cast<int>(farthest - places.begin()),
          .place = *farthest,
          .all_are_there =
              std::all_of(places.begin(), places.end(), [&](int64_t place) { return place == *farthest; })};
}

void enter_epoch(std::optional<Error> why, bool can_change, const InEpoch& regroup,
                 const InEpoch& come_together) {
  constexpr int kMost = 100;  // if workers are lost again and again, something else is wrong
  for (int tries = 1;; ++tries) {
    regroup(why);
    try {
      return come_together(why);
    } catch (const Error& error) {
      if (!comm::is_loss(error) || tries == kMost || !can_change) throw;
      why = error;
    }
  }
}

}  // namespace tutti
