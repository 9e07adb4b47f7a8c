#include "tutti/train/strategies/audits.h"

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/hashes.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"
#include "tutti/comm/gather_all.h"
#include "tutti/params/lanes.h"
#include "tutti/step/lane_hashes.h"

namespace tutti {

bool AuditedLane::is_audited_by(int rank) const {
  return std::find(auditors.begin(), auditors.end(), rank) != auditors.end();
}

AuditedLane draw_audit(int64_t seed, int64_t step, int64_t lanes, const std::vector<std::string>& hosts,
                       size_t auditors) {
  constexpr int64_t kNoLane = -1;  // so that the numbers are not those of any lane
  uint64_t bits = lane_seed(seed, step, kNoLane);
  const auto below = [&bits](size_t limit) {
    bits = mix_bits(bits + kGoldenBits);
    return static_cast<size_t>(bits % limit);
  };
  AuditedLane drawn{.lane = static_cast<int64_t>(below(static_cast<size_t>(lanes)))};
  std::vector<int>& others = drawn.auditors;
  const std::vector<LaneRange> ranges = lanes_of_all(static_cast<int>(hosts.size()), lanes);
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    const LaneRange& range = ranges[static_cast<size_t>(rank)];
    const bool owns = range.begin <= drawn.lane && drawn.lane < range.end;
    if (owns) drawn.owner = rank;
    if (!owns || hosts.size() == 1) others.push_back(rank);
  }
  for (size_t i = others.size(); i > 1; --i) std::swap(others[i - 1], others[below(i)]);
  std::stable_partition(others.begin(), others.end(), [&](int rank) {
    return hosts[static_cast<size_t>(rank)] != hosts[static_cast<size_t>(drawn.owner)];
  });
  others.resize(std::min(others.size(), auditors));
  return drawn;
}

Verdict judge(std::span<const LaneResult> first, std::span<const LaneResult> second) {
  const std::span<const LaneResult> last = second.empty() ? first : second;
  const auto agreeing = [&](const LaneResult& result) {
    return std::count_if(last.begin(), last.end(),
                         [&](const LaneResult& each) { return each.hashes == result.hashes; });
  };
  const auto most = std::max_element(last.begin(), last.end(),
                                     [&](const auto& a, const auto& b) { return agreeing(a) < agreeing(b); });
  const auto size = static_cast<std::ptrdiff_t>(last.size());
  Verdict verdict{.is_clear = 2 * agreeing(*most) > size, .has_passed = agreeing(*most) == size};
  verdict.one = verdict.other = most->hashes;
  std::set<int> right;
  std::set<int> wrong;
  for (const std::span<const LaneResult> results : {first, second}) {
    for (const LaneResult& result : results) {
      const bool differs = result.hashes != verdict.one;
      (differs || !verdict.is_clear ? wrong : right).insert(result.rank);
      if (differs) verdict.other = result.hashes;
    }
  }
  verdict.wrong.assign(wrong.begin(), wrong.end());
  std::set_difference(right.begin(), right.end(), wrong.begin(), wrong.end(),
                      std::back_inserter(verdict.right));
  return verdict;
}

void Audits::set_workers(comm::Communicator& comm, const Parameters& parameters, int64_t lanes) {
  comm_ = &comm;
  parameters_ = &parameters;
  lanes_ = lanes;
  repeated_ = -1;
  first_try_.clear();
  who_.clear();
  hosts_.clear();
  const std::string own =
      fmt::format("{} on {}\n{}", context_.task().short_name(), host_name(), host_identity());
  for (const std::string& text : comm::gather_all(comm, own, "the host of each worker")) {
    const std::vector<std::string> lines = split(text, '\n');
    who_.push_back(lines.at(0));
    hosts_.push_back(lines.at(1));
  }
  const bool joins = comm.epochs() != nullptr && comm.epochs()->is_joining();
  if (comm.world() == 1 && !joins)
    context_.log().info(
        "--audit {}: the only worker computes lanes a second time itself, which finds faults that pass, but "
        "not a processor that is always wrong in the same way",
        context_.config().training.audit);
}

std::optional<AuditedLane> Audits::at(int64_t step) const {
  const int64_t every = context_.config().training.audit;
  if (comm_ == nullptr || every == 0 || (step + 1) % every != 0) return std::nullopt;
  return draw_audit(context_.config().training.seed, step, lanes_, hosts_, step == repeated_ ? 2 : 1);
}

// A lane without examples has no results. A program of its own may have no examples of another worker's lane.
std::vector<LaneResult> Audits::results_of(const AuditedLane& audited,
                                           const GradientMean::LaneHashes& mine) const {
  std::vector<LaneResult> results;
  if (comm_->world() == 1) {
    results = {{0, mine.own}, {0, mine.copy}};
  } else {
    const auto all = comm::gather_all(*comm_, mine.own + mine.copy, "the hashes of an audited lane");
    results.push_back({audited.owner, all.at(static_cast<size_t>(audited.owner))});
    for (const int rank : audited.auditors) results.push_back({rank, all.at(static_cast<size_t>(rank))});
  }
  std::erase_if(results, [](const LaneResult& result) { return result.hashes.empty(); });
  return results;
}

bool Audits::agree(const AuditedLane& audited, int64_t step, const GradientMean::LaneHashes& mine) {
  std::vector<LaneResult> results = results_of(audited, mine);
  if (first_try_.empty() && results.size() < 2) return true;
  const Verdict verdict = judge(first_try_, results);
  if (first_try_.empty()) {
    ++made_;
    if (verdict.has_passed) return true;
    if (may_repeat_) {
      say(fmt::format("at step {}, the results of lane {} from {} differ: ", step, audited.lane,
                      names_of(verdict.wrong)) +
          "the step is made again to find out which are wrong");
      repeated_ = step;
      first_try_ = std::move(results);
      return false;
    }
  }
  repeated_ = -1;
  first_try_.clear();
  return conclude(audited, step, verdict);
}

// Does what --audit-action says. Returns true if the step counts, as it was made again.
bool Audits::conclude(const AuditedLane& audited, int64_t step, const Verdict& verdict) {
  const std::string& asked = context_.config().training.audit_action;
  const bool redoes = asked == "redo" && verdict.has_passed;
  const bool evicts = asked == "evict" && verdict.is_clear && verdict.wrong.size() == 1 && comm_->world() > 1;
  found_.push_back({{"step", step},
                    {"lane", audited.lane},
                    {"tensor", first_difference(*parameters_, verdict.one, verdict.other)},
                    {"workers", Json::array()},
                    {"certain", verdict.is_clear},
                    {"action", redoes   ? "redo"
                               : evicts ? "evict"
                                        : "stop"}});
  for (const int rank : verdict.wrong) found_.back()["workers"].push_back(who_.at(static_cast<size_t>(rank)));
  const std::string text = fmt::format("at step {}, {}", step, describe(audited.lane, verdict));
  if (redoes) {
    say(text + ". The step was made again without it");
    return true;
  }
  if (!evicts)
    fail(ErrorKind::DataLoss,
         "{}. This step has not changed the weights. Start the job again {}; it goes on from its newest "
         "checkpoint",
         text, verdict.is_clear ? "without that machine" : "on other machines");
  if (verdict.wrong.front() == comm_->rank())
    throw Interrupted(SIGTERM, text + ". This worker leaves the others (--audit-action evict)");
  say(text + ". The others go on without it", verdict.wrong.front() == 0 ? 1 : 0);
  throw Error(ErrorKind::PeerLost, text);
}

std::string Audits::describe(int64_t lane, const Verdict& verdict) const {
  const std::string tensor = first_difference(*parameters_, verdict.one, verdict.other);
  if (!verdict.is_clear)
    return fmt::format(
        "the results of lane {} from {} differ, first in {}, and nobody can tell which are right. "
        "A processor or a memory has changed numbers without an error",
        lane, names_of(verdict.wrong), tensor);
  return fmt::format(
      "lane {} was computed wrongly by {}, first {}: {}. A processor or a memory there has changed "
      "numbers without an error",
      lane, names_of(verdict.wrong), tensor,
      verdict.right.empty() ? "it got another result when it computed the lane again"
                            : names_of(verdict.right) + " got another result");
}

std::string Audits::names_of(const std::vector<int>& ranks) const {
  std::vector<std::string> names;
  for (const int rank : ranks)
    names.push_back(fmt::format("rank {} ({})", rank, who_.at(static_cast<size_t>(rank))));
  return fmt::format("{}", fmt::join(names, " and "));
}

void Audits::say(const std::string& text, int rank) const {
  if (comm_->rank() == rank) context_.log().warning("{}", text);
}

Json Audits::report() const {
  if (made_ == 0) return {};
  return {{"made", made_}, {"found", found_}};
}

}  // namespace tutti
