// A month of a real cluster and of machines that may be taken away, drawn from a seed and replayed with real
// processes in some minutes: the weights have the bits of an undisturbed training, and 97 % of the time is
// spent on steps that count. docs/reliability.md says how that is counted. `./dev chaos month FIRST LAST`.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <queue>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/chaos/job.h"
#include "tests/together.h"
#include "tutti/base/text.h"

namespace tutti::testing::month_test {
namespace {

using std::chrono::steady_clock;

constexpr int kNodes = 4;  // with one worker each
constexpr double kHours = 30 * 24;
constexpr double kDefaultMinutes = 5;  // of a replay
constexpr int kTimeout = 3;            // seconds, of the replay
constexpr int kRealTimeout = 60;       // the default of --timeout, that a silent machine costs
constexpr double kCheckpoint = 10;     // seconds for which a checkpoint of a large model stops the training

enum class What { Dies, FallsSilent, IsTold, Returns };

// Something that happens to a node.
struct Change {
  double at = 0;  // hours
  int node = 0;
  What what = What::Dies;
  bool operator<(const Change& other) const { return at < other.at; }
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  double unit() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  int up_to(int most) { return static_cast<int>(random_() % static_cast<uint64_t>(most + 1)); }
  double waiting(double mean) { return -mean * std::log(1 - unit()); }
  double normal() { return std::sqrt(-2 * std::log(1 - unit())) * std::cos(2 * std::acos(-1.0) * unit()); }

 private:
  std::mt19937_64 random_;
};

// 400 servers of which 16 are spares, as InfiniteHBD-Trace has seen 400 fail: 584 faults in 348 days, 158 of
// them of GPUs, 40 of cables, 33 of fans and 30 of network cards; half of the repairs take 20.4 hours and 90
// % less than 312. Each fault hits one of the nodes. A spare takes the place of a server at once; if there is
// none, the node is away until the next repair is done.
std::vector<Change> faults_of_a_month(uint64_t seed) {
  constexpr double kBetweenFaults = 348.0 * 24 / 584;
  constexpr double kMedian = 20.4;
  const double spread = std::log(312 / kMedian) / 1.2816;  // the normal distribution has 90 % below that
  constexpr size_t kSpares = 16;
  Draw draw(seed);
  std::vector<Change> changes;
  std::priority_queue<double, std::vector<double>, std::greater<>> repairs;  // when they are done
  std::vector<double> away_until(kNodes, 0);
  // The month begins as others end: with servers in repair.
  for (double at = -kHours; at < kHours; at += draw.waiting(kBetweenFaults)) {
    const double repaired = at + kMedian * std::exp(spread * draw.normal());
    const int node = draw.up_to(kNodes - 1);
    const int cause = draw.up_to(583);
    while (!repairs.empty() && repairs.top() <= at) repairs.pop();
    double returns = at;
    repairs.push(repaired);
    if (repairs.size() > kSpares) returns = repairs.top();
    if (at < 0 || at < away_until[static_cast<size_t>(node)]) continue;
    const bool is_silent = cause < 40 + 30;
    const bool is_noticed = !is_silent && cause < 40 + 30 + 33;
    changes.push_back({at, node, is_silent ? What::FallsSilent : is_noticed ? What::IsTold : What::Dies});
    changes.push_back({returns, node, What::Returns});
    away_until[static_cast<size_t>(node)] = returns;
  }
  std::stable_sort(changes.begin(), changes.end());
  return changes;
}

// 16 machines that may be taken away, four to a node, with 284 changes of their number as in a trace of
// skypilot: it stays, falls or rises by some, and now and then all are gone. Half of the machines that are
// taken away are told so before.
std::vector<Change> spot_month(uint64_t seed) {
  constexpr int kMachines = 16;
  constexpr int kChanges = 284;
  Draw draw(seed);
  std::vector<Change> changes;
  int machines = kMachines;
  std::vector<bool> there(kNodes, true);
  for (double at = draw.waiting(kHours / kChanges); at < kHours; at += draw.waiting(kHours / kChanges)) {
    const int kind = draw.up_to(19);
    if (kind == 0) machines = 0;
    if (kind == 1) machines = kMachines;
    if (kind > 1) machines = std::clamp(machines + draw.up_to(8) - 4, 0, kMachines);
    const int nodes = (machines + 3) / 4;
    int now = static_cast<int>(std::count(there.begin(), there.end(), true));
    while (now != nodes) {
      const auto node = static_cast<size_t>(draw.up_to(kNodes - 1));
      if (there[node] != (now > nodes)) continue;
      there[node] = !there[node];
      now += there[node] ? 1 : -1;
      changes.push_back({at, static_cast<int>(node),
                         there[node]          ? What::Returns
                         : draw.up_to(1) == 0 ? What::IsTold
                                              : What::Dies});
    }
  }
  return changes;
}

double now() { return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count(); }

double minutes_of_replay() {
  const char* const text = std::getenv("TUTTI_TEST_MINUTES");
  return text == nullptr ? kDefaultMinutes : std::stod(text);
}

struct Seeds {
  int64_t begin = 0;
  int64_t end = 1;
};
Seeds asked_seeds() {
  const char* const text = std::getenv("TUTTI_TEST_CHAOS");
  if (text == nullptr) return {};
  const std::string range = text;
  const size_t dots = range.find("..");
  return {parse_int(range.substr(0, dots)).value(), parse_int(range.substr(dots + 2)).value()};
}

class MonthSoak : public ::testing::Test {
 protected:
  void replay(const std::string& name, const std::vector<Change>& changes);

 private:
  struct Lost {
    double seconds = 0;  // in gaps between finished steps, while there were nodes
    double longest = 0;
    int gaps = 0;
    int64_t steps = 0;
  };

  Flags program(const std::string& logdir) const;
  void start_job();
  void apply(const Change& change);
  // Looks after the job until then, as an operator would.
  void watch_until(double end);
  int rank_of(int node) const;
  void set_idle(bool idle);
  Lost measure() const;

  const TestFolder folder_;
  std::string name_;
  std::string steps_;
  std::vector<bool> there_;
  std::vector<int> ranks_;  // the nodes of the present start of the job, by rank
  std::unique_ptr<ChaosJob> job_;
  std::vector<std::pair<double, double>> idle_;  // when no node was there
  std::vector<std::pair<double, int>> silent_;   // when a silent node is gone for good
  int starts_ = 0;
};

Flags MonthSoak::program(const std::string& logdir) const {
  return {together_program(), "--threads", "1",       "--net",   "normed",   "--lanes", "8",
          "--batch",          "4",         "--steps", "1000000", "--logdir", logdir};
}

int MonthSoak::rank_of(int node) const {
  const auto at = std::find(ranks_.begin(), ranks_.end(), node);
  return at == ranks_.end() ? -1 : static_cast<int>(at - ranks_.begin());
}

void MonthSoak::set_idle(bool idle) {
  if (idle) idle_.emplace_back(now(), INFINITY);
  if (!idle && !idle_.empty() && std::isinf(idle_.back().second)) idle_.back().second = now();
}

// All nodes that are there take part.
void MonthSoak::start_job() {
  job_.reset();
  ranks_.clear();
  for (int node = 0; node < kNodes; ++node) {
    if (there_[static_cast<size_t>(node)]) ranks_.push_back(node);
  }
  set_idle(ranks_.empty());
  if (ranks_.empty()) return;
  ++starts_;
  JobSetting setting{.launch = {"-n", "1", "--min", "1", "--restarts", "1000"},
                     .program = with(program(folder_ / name_), {"--timeout", std::to_string(kTimeout),
                                                                "--comm", "tcp", "--checkpoint-every", "100",
                                                                "--note-steps", steps_, "--step-ms", "20"}),
                     .nodes = ranks_.size(),
                     .timeout = std::to_string(kTimeout)};
  job_ = std::make_unique<ChaosJob>(setting, fmt::format("month-{}", starts_));
}

void MonthSoak::apply(const Change& change) {
  const auto node = static_cast<size_t>(change.node);
  there_[node] = change.what == What::Returns;
  const int rank = rank_of(change.node);
  if (change.what == What::Returns) {
    std::erase_if(silent_, [&](const auto& silent) { return silent.second == change.node; });
    // A node that the present start does not know needs another start, for which the job saves and ends.
    if (rank >= 0 && job_) {
      job_->strike(job_->launcher(static_cast<size_t>(rank)), SIGKILL);
      eventually([&] { return job_->has_ended(static_cast<size_t>(rank)); });
      return job_->start(static_cast<size_t>(rank));
    }
    if (!job_) return start_job();
    job_->strike(job_->launcher(), SIGTERM);
    eventually([&] {
      job_->read();
      return job_->has_ended();
    });
    return start_job();
  }
  if (rank < 0 || !job_) return;
  const pid_t launcher = job_->launcher(static_cast<size_t>(rank));
  if (change.what == What::Dies) job_->strike(launcher, SIGKILL);
  if (change.what == What::IsTold) job_->strike(launcher, SIGTERM);
  if (change.what == What::FallsSilent) {
    job_->strike(launcher, SIGSTOP);
    for (const pid_t worker : job_->tasks("worker", rank)) job_->strike(worker, SIGSTOP);
    silent_.emplace_back(now() + 3 * kTimeout, change.node);
  }
}

void MonthSoak::watch_until(double end) {
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (!job_) continue;
    job_->read();
    for (const auto& [at, node] : silent_) {
      const int rank = rank_of(node);
      if (at < now() && rank >= 0) job_->strike(job_->launcher(static_cast<size_t>(rank)), SIGKILL);
    }
    std::erase_if(silent_, [](const auto& silent) { return silent.first < now(); });
    if (job_->has_ended()) start_job();
    for (size_t rank = 1; job_ && rank < ranks_.size(); ++rank) {
      if (there_[static_cast<size_t>(ranks_[rank])]) job_->start(rank);
    }
  } while (now() < end);
}

MonthSoak::Lost MonthSoak::measure() const {
  std::vector<std::pair<double, double>> finished;  // the first time of each step
  std::ifstream file(steps_);
  Lost lost;
  double time = 0;
  int64_t step = 0;
  for (int world = 0; file >> time >> step >> world;) {
    if (step <= lost.steps) continue;
    lost.steps = step;
    finished.emplace_back(time, 0);
  }
  std::vector<double> ordinary;
  for (size_t i = 1; i < finished.size(); ++i)
    ordinary.push_back(finished[i].second = finished[i].first - finished[i - 1].first);
  std::nth_element(ordinary.begin(), ordinary.begin() + static_cast<int64_t>(ordinary.size() / 2),
                   ordinary.end());
  const double median = ordinary[ordinary.size() / 2];
  for (const auto& [end, gap] : finished) {
    double without = gap;
    for (const auto& [from, to] : idle_)
      without -= std::max(0.0, std::min(end, to) - std::max(end - gap, from));
    if (without < 5 * median) continue;
    ++lost.gaps;
    lost.seconds += without - median;
    lost.longest = std::max(lost.longest, without);
  }
  return lost;
}

void MonthSoak::replay(const std::string& name, const std::vector<Change>& changes) {
  name_ = name;
  steps_ = folder_ / name + ".steps";
  there_.assign(kNodes, true);
  idle_.clear();
  silent_.clear();
  starts_ = 0;
  const double second_of_hour = minutes_of_replay() * 60 / kHours;
  start_job();
  const auto has_steps = [&] {
    return std::filesystem::exists(steps_) && std::filesystem::file_size(steps_) > 0;
  };
  ASSERT_TRUE(eventually(has_steps)) << job_->err();
  const double begin = now();
  std::map<What, int> count;
  double away = 0;  // hours of nodes
  std::vector<double> gone(kNodes, 0);
  for (const Change& change : changes) {
    watch_until(begin + change.at * second_of_hour);
    ++count[change.what];
    const auto node = static_cast<size_t>(change.node);
    if (change.what == What::Returns) away += change.at - gone[node];
    gone[node] = change.at;
    apply(change);
  }
  watch_until(begin + kHours * second_of_hour);
  for (size_t node = 0; node < kNodes; ++node) away += there_[node] ? 0 : kHours - gone[node];
  const int starts = starts_;
  set_idle(false);
  job_.reset();

  // One worker makes some more steps, from the newest checkpoint, and from the beginning.
  const Lost lost = measure();
  const Flags stop = {"--stop-after", std::to_string(lost.steps + 5)};
  const nlohmann::json last = report_of(with(program(folder_ / name), stop), folder_);
  const nlohmann::json alone = report_of(with(program(""), stop), folder_);
  for (const char* same : {"steps", "examples", "weights_sha256"})
    EXPECT_EQ(last.at(same), alone.at(same)) << same;

  // A restart costs half an interval between checkpoints, which is the best for so many restarts.
  double idle = 0;
  for (const auto& [from, to] : idle_) idle += (to - from) / second_of_hour;
  const double month = (kHours - idle) * 3600;
  const double between_restarts = month / std::max(1, starts - 1);
  const double interval = std::sqrt(2 * kCheckpoint * between_restarts);
  const double checkpoints = month / interval * kCheckpoint;
  const double again = (starts - 1) * interval / 2;
  const double silence = count[What::FallsSilent] * (kRealTimeout - kTimeout);
  const double effective = 1 - (lost.seconds + silence + checkpoints + again) / month;
  fmt::print(
      "{}: {} nodes died, {} fell silent, {} were told, {} came; {} steps, {} starts of the job, {} gaps of "
      "{:.1f} "
      "s in all, the longest {:.1f} s; {:.0f} % of the nodes' hours, {:.0f} h without any. Lost: {:.0f} s in "
      "gaps, "
      "{:.0f} s of silence, {:.0f} s in checkpoints, {:.0f} s of steps made again; effective {:.2f} %\n",
      name, count[What::Dies], count[What::FallsSilent], count[What::IsTold], count[What::Returns],
      lost.steps, starts, lost.gaps, lost.seconds, lost.longest, 100 * (1 - away / (kHours * kNodes)), idle,
      lost.seconds, silence, checkpoints, again, 100 * effective);
  std::fflush(stdout);
  EXPECT_GE(effective, 0.97);
}

TEST_F(MonthSoak, of_a_cluster_loses_little_and_no_bit) {
  const Seeds seeds = asked_seeds();
  for (int64_t seed = seeds.begin; seed < seeds.end && !HasFailure(); ++seed)
    replay(fmt::format("cluster-{}", seed), faults_of_a_month(static_cast<uint64_t>(seed)));
}

TEST_F(MonthSoak, of_machines_that_are_taken_away_loses_little_and_no_bit) {
  const Seeds seeds = asked_seeds();
  for (int64_t seed = seeds.begin; seed < seeds.end && !HasFailure(); ++seed)
    replay(fmt::format("spot-{}", seed), spot_month(static_cast<uint64_t>(seed)));
}

}  // namespace
}  // namespace tutti::testing::month_test
