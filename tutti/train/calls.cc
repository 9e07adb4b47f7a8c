#include "tutti/train/calls.h"

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"

namespace tutti {
namespace {

std::string to_bytes(const Json& json) {  // in CBOR, which keeps the bits of numbers, also of NaN
  const std::vector<uint8_t> bytes = Json::to_cbor(json);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::optional<size_t> Calls::find(const Json& outcome) const {
  const auto found = std::find(outcomes_.rbegin(), outcomes_.rend(), outcome);
  if (found == outcomes_.rend()) return std::nullopt;
  return static_cast<size_t>(outcomes_.rend() - found) - 1;
}

void Calls::pass_fit(int64_t fit) {
  passed_fit_ = fit;
  if (const auto end = find(end_of(fit))) at_ = std::max(at_, *end + 1);
}

void Calls::agree(comm::Communicator& comm, bool joins) {
  const int64_t own = joins ? -1 : static_cast<int64_t>(at_);
  const std::vector<int64_t> all = comm::gather_all(comm, own, "the calls of each worker");
  const int64_t has_made = joins || is_over() ? 1 : 0;
  const std::vector<int64_t> made = comm::gather_all(comm, has_made, "who has made the last of them");
  const int64_t passed = joins ? passed_fit_.value_or(-1) : -1;
  const std::vector<int64_t> fits = comm::gather_all(comm, passed, "the fits that joining workers pass over");
  const int64_t begun = *std::max_element(fits.begin(), fits.end()) + 1;
  const auto most = std::max_element(all.begin(), all.end());
  if (*most < 0) fail(ErrorKind::DataLoss, "all workers that had the state of the run are lost");
  // A worker begins a call only when all have made the one before, so all have made the first `*most` calls.
  auto over = static_cast<size_t>(*most);
  const auto is_at_next = [&](int64_t calls) { return calls < 0 || calls == *most; };
  const bool all_have_made_next = std::all_of(all.begin(), all.end(), is_at_next) &&
                                  std::all_of(made.begin(), made.end(), [](int64_t one) { return one != 0; });
  if (all_have_made_next && (joins || outcomes_.at(over).contains(kBegins))) ++over;
  // Somebody who may be lost since had begun this fit, so all that are left have made the calls before it.
  if (begun > 0 && !joins) over = std::max(over, find(beginning_of(begun)).value_or(outcomes_.size()));
  outcomes_.resize(std::min(outcomes_.size(), over));
  if (std::all_of(all.begin(), all.end(), [](int64_t calls) { return calls >= 0; })) return;
  const auto leader = most - all.begin();
  const std::string told = comm.rank() == leader ? to_bytes(outcomes_) : std::string();
  const auto texts = comm::gather_all(comm, told, "the outcomes of their calls");
  if (!joins) return;
  outcomes_ = Json::from_cbor(texts.at(static_cast<size_t>(leader))).get<std::vector<Json>>();
  if (passed_fit_) pass_fit(*passed_fit_);
}

}  // namespace tutti
