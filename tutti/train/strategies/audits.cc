#include "tutti/train/strategies/audits.h"

#include <algorithm>
#include <csignal>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/hashes.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"
#include "tutti/comm/gather_all.h"
#include "tutti/lanes/lanes.h"
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
  constexpr int64_t kRange = -2;
  AuditedLane drawn{.lane = static_cast<int64_t>(below(static_cast<size_t>(lanes))),
                    .range = lane_seed(seed, step, kRange)};
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

std::string hashes_of(const std::vector<Recomputed>& results) {
  std::string again;
  std::string got;
  for (const Recomputed& result : results) {
    again += result.again;
    got += result.got.empty() ? std::string(result.again.size(), '\0') : result.got;
  }
  return again + got;
}

namespace {

// Judges one try. Adds to the verdict which ranks do not have the results `again`.
void judge_try(const std::vector<Recomputed>& results, const RecomputedByRank& by_rank,
               const std::string& again, std::set<int>& wrong, Verdict& verdict) {
  const auto world = static_cast<int>(by_rank.size());
  const size_t size = results.front().again.size();
  const std::string none(size, '\0');
  verdict.has_passed = true;
  const auto find = [&](const std::string& what) {
    verdict.has_passed = false;
    if (verdict.what.empty()) verdict.what = what;
  };
  for (size_t i = 0; i < results.size() && verdict.has_passed; ++i) {
    std::vector<int> differ;
    int have = 0;
    for (int rank = 0; rank < world; ++rank) {
      const std::string got = by_rank[static_cast<size_t>(rank)].substr(again.size() + i * size, size);
      if (got == none) continue;
      ++have;
      if (got != again.substr(i * size, size)) differ.push_back(rank);
    }
    if (differ.empty()) continue;
    find(results[i].name);
    const bool has_nobody = static_cast<int>(differ.size()) == have;
    if (has_nobody && results[i].maker >= 0) differ = {results[i].maker};
    if (has_nobody && results[i].maker < 0 && world > 1) verdict.is_clear = false;
    wrong.insert(differ.begin(), differ.end());
  }
  for (int rank = 0; rank < world; ++rank) {
    const std::string& theirs = by_rank[static_cast<size_t>(rank)];
    const auto at =
        static_cast<size_t>(std::mismatch(again.begin(), again.end(), theirs.begin()).first - again.begin());
    if (at == again.size()) continue;
    find(results[at / size].name);
    wrong.insert(rank);
  }
}

}  // namespace

Verdict judge(const std::vector<Recomputed>& results, const RecomputedByRank& first,
              const RecomputedByRank& second) {
  const RecomputedByRank& last = second.empty() ? first : second;
  const size_t size = results.size() * results.front().again.size();
  const auto agreeing = [&](const std::string& one) {
    return std::count_if(last.begin(), last.end(),
                         [&](const std::string& other) { return one.compare(0, size, other, 0, size) == 0; });
  };
  const auto most = std::max_element(last.begin(), last.end(),
                                     [&](const auto& a, const auto& b) { return agreeing(a) < agreeing(b); });
  Verdict verdict{.is_clear = 2 * agreeing(*most) > static_cast<std::ptrdiff_t>(last.size())};
  std::set<int> wrong;
  if (!first.empty()) judge_try(results, first, most->substr(0, size), wrong, verdict);
  if (!second.empty()) judge_try(results, second, most->substr(0, size), wrong, verdict);
  for (int rank = 0; rank < static_cast<int>(last.size()); ++rank) {
    const bool differs = last[static_cast<size_t>(rank)].compare(0, size, *most, 0, size) != 0;
    const bool is_suspect = wrong.count(rank) > 0 || (!verdict.is_clear && !verdict.has_passed);
    if (is_suspect)
      verdict.wrong.push_back(rank);
    else if (!differs)
      verdict.right.push_back(rank);
  }
  return verdict;
}

void Audits::set_workers(comm::Communicator& comm, const Parameters& parameters, int64_t lanes) {
  comm_ = &comm;
  parameters_ = &parameters;
  lanes_ = lanes;
  repeated_ = -1;
  first_try_.clear();
  first_sum_.clear();
  eviction_.reset();
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
    if (repeated_ != step) ++made_;
    if (verdict.has_passed) {
      for (const LaneResult& result : results) note_passed(Of::Lane, step, result.rank);
      return true;
    }
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
  conclude(Of::Lane, audited.lane, step, verdict);
  return true;
}

bool Audits::agree_on_sum(int64_t step, const std::vector<Recomputed>& mine) {
  RecomputedByRank results = comm::gather_all(*comm_, hashes_of(mine), "the hashes of an audited sum");
  const Verdict verdict = judge(mine, first_sum_, results);
  if (first_sum_.empty()) {
    if (verdict.has_passed) {
      note_all_passed(Of::Sum, step);
      return true;
    }
    if (may_repeat_) {
      say(fmt::format("at step {}, the results of {} differ: {}. The step is made again", step,
                      names_of(verdict.wrong), verdict.what));
      repeated_ = step;
      first_sum_ = std::move(results);
      return false;
    }
  }
  repeated_ = -1;
  first_sum_.clear();
  conclude(Of::Sum, std::nullopt, step, verdict);
  return true;
}

void Audits::agree_on_update(int64_t step, AuditedUpdate& update) {
  const std::vector<Recomputed> mine = update.results();
  Verdict verdict =
      judge(mine, {}, comm::gather_all(*comm_, hashes_of(mine), "the hashes of an audited update"));
  if (verdict.has_passed) return note_all_passed(Of::Update, step);
  // Alone, the worker is wrong, but its second result counts.
  verdict.has_passed = verdict.is_clear && (comm_->world() == 1 || !verdict.right.empty());
  if (verdict.has_passed) update.repair(verdict.right.empty() ? 0 : verdict.right.front());
  conclude(Of::Update, std::nullopt, step, verdict);
}

void Audits::evict_if_due() {
  if (!eviction_) return;
  const Eviction eviction = *std::exchange(eviction_, std::nullopt);
  if (eviction.rank == comm_->rank())
    throw Interrupted(SIGTERM, eviction.why + ". This worker leaves the others (--audit-action evict)");
  say(eviction.why + ". The others go on without it", eviction.rank == 0 ? 1 : 0);
  throw Error(ErrorKind::PeerLost, eviction.why);
}

// Does what --audit-action says. Returns if the step counts, as it was made again or repaired.
void Audits::conclude(Of what, std::optional<int64_t> lane, int64_t step, const Verdict& verdict) {
  const std::string& asked = context_.config().training.audit_action;
  const bool redoes = asked == "redo" && verdict.has_passed;
  const bool evicts = asked == "evict" && verdict.is_clear && verdict.wrong.size() == 1 &&
                      comm_->world() > 1 && (what != Of::Update || verdict.has_passed);
  found_.push_back({{"step", step},
                    {"lane", lane ? Json(*lane) : Json()},
                    {"tensor", tensor_of(verdict)},
                    {"ranks", verdict.wrong},
                    {"workers", Json::array()},
                    {"passed", Json::array()},
                    {"certain", verdict.is_clear},
                    {"action", redoes   ? "redo"
                               : evicts ? "evict"
                                        : "stop"}});
  for (const int rank : verdict.wrong) {
    const std::optional<int64_t> passed = passed_by(what, rank);
    found_.back()["workers"].push_back(who_.at(static_cast<size_t>(rank)));
    found_.back()["passed"].push_back(passed ? Json(*passed) : Json());
  }
  const std::string text = fmt::format("at step {}, {}", step, describe(what, lane, verdict));
  if (redoes)
    return say(text + (what == Of::Update ? ". It was repaired" : ". The step was made again without it"));
  if (evicts) {
    eviction_ = Eviction{verdict.wrong.front(), text};
    if (what != Of::Update) evict_if_due();
    return;
  }
  fail(ErrorKind::DataLoss, "{}. {} Start the job again {}; it goes on from its newest checkpoint", text,
       what == Of::Update ? "Nothing was saved since." : "This step has not changed the weights.",
       verdict.is_clear ? "without that machine" : "on other machines");
}

std::string Audits::tensor_of(const Verdict& verdict) const {
  return verdict.what.empty() ? first_difference(*parameters_, verdict.one, verdict.other) : verdict.what;
}

void Audits::note_all_passed(Of what, int64_t step) {
  for (int rank = 0; rank < comm_->world(); ++rank) note_passed(what, step, rank);
}

std::optional<int64_t> Audits::passed_by(Of what, int rank) const {
  const auto found = passed_.find({what, who_.at(static_cast<size_t>(rank))});
  return found == passed_.end() ? std::nullopt : std::optional(found->second);
}

// Says which weights a worker that computes wrongly may have changed before it was found.
std::string Audits::doubts_after(Of what, const Verdict& verdict) const {
  std::optional<int64_t> since = std::numeric_limits<int64_t>::max();
  for (const int rank : verdict.wrong) since = std::min(since, passed_by(what, rank));
  const std::string wrong = names_of(verdict.wrong);
  return since ? fmt::format("Steps since {}, when {} last passed such an audit, may be wrong", *since, wrong)
               : fmt::format("All steps since the start may be wrong: {} has passed no such audit", wrong);
}

std::string Audits::describe(Of what, std::optional<int64_t> lane, const Verdict& verdict) const {
  const std::string results = lane ? fmt::format("the results of lane {}", *lane) : "the results";
  const std::string wrong = names_of(verdict.wrong);
  const std::string tensor = tensor_of(verdict);
  const std::string_view hardware =
      lane ? "A processor or a memory" : "A processor, a memory or a connection";
  if (!verdict.is_clear)
    return fmt::format(
        "{} from {} differ, first in {}, and nobody can tell which are right. {} has changed numbers without "
        "an error",
        results, wrong, tensor, hardware);
  const std::string computed =
      lane ? fmt::format("lane {} was computed wrongly by {}, first {}", *lane, wrong, tensor)
           : fmt::format("{} is wrong at {}", tensor, wrong);
  const std::string others = !verdict.right.empty() ? names_of(verdict.right) + " got another result"
                             : lane                 ? "it got another result when it computed the lane again"
                                                    : "it got another result when it computed that again";
  return fmt::format("{}: {}. {} there has changed numbers without an error. {}", computed, others, hardware,
                     doubts_after(what, verdict));
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
