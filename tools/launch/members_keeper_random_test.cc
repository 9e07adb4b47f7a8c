// Drives the keeper by events drawn from a seed, and checks after each what must hold in every history.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tools/launch/members_keeper.h"

namespace tutti::members_keeper_test {
namespace {

using comm::Call;
using comm::Member;
using comm::Members;
using std::chrono::milliseconds;
using Then = MembersKeeper::Then;

bool contains(const std::vector<Member>& members, const Member& member) {
  return std::find(members.begin(), members.end(), member) != members.end();
}

// A job as its processes see it: who lives, and in which epoch each member is.
class DrawnJob {
 public:
  explicit DrawnJob(uint64_t seed)
      : random_(seed),
        workers_(draw(1, 6)),
        min_(draw(1, workers_)),
        hosts_(draw_hosts()),
        first_(draw(0, 1) == 0 ? workers_ : draw(min_, workers_)),
        keeper_(workers_, min_, milliseconds(50), hosts_, first_) {
    for (int worker = 0; worker < first_; ++worker) living_[worker] = 0;
  }

  // One event, and its consequences.
  void step() {
    now_ += milliseconds(draw(0, 20));
    const int event = draw(0, 9);
    const int worker = draw(0, workers_ - 1);
    if (event == 0) kill(worker);
    if (event == 1) start_again(worker);
    if (event == 1 && draw(0, 3) == 0) bring_back(worker);
    if (event == 3 && draw(0, 3) == 0) begin();
    if (event == 2 && draw(0, 9) == 0) end_well(worker);
    if (event > 2) call(worker);
    if (draw(0, 3) > 0) keeper_.tick(now_);
    for (const Member& evicted : keeper_.take_evicted()) evict(evicted);
    check();
  }
  // All living workers answer. Then the job must go on, wait for workers, or end.
  void settle() {
    begin();
    for (int round = 0; round < 4; ++round) {
      for (int worker = 0; worker < workers_; ++worker) {
        if (doomed_.contains(worker)) kill(worker);
        start_again(worker);
        if (living_.contains(worker)) make_call(worker);
      }
      keeper_.tick(now_);
      check();
    }
    if (keeper_.ended()) return;
    const Members& newest = keeper_.epochs().back();
    EXPECT_FALSE(keeper_.is_changing() && newest.by_rank.empty());
    if (keeper_.finished()) return;
    for (const Member& member : newest.by_rank)
      EXPECT_TRUE(living_.contains(member.worker) && living_[member.worker] == member.life);
    EXPECT_EQ(newest.by_rank.size(), living_.size()) << "all who live are members";
  }

 private:
  int draw(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  std::vector<int> draw_hosts() {
    std::vector<int> hosts;
    const int most = draw(0, 3);
    for (int worker = 0; most > 0 && worker < workers_; ++worker) hosts.push_back(draw(0, most));
    return hosts;
  }
  void begin() {
    begun_ = true;
    keeper_.training_has_begun();
  }
  void kill(int worker) {
    if (!living_.contains(worker)) return;
    dead_.insert({worker, living_[worker]});
    living_.erase(worker);
    doomed_.erase(worker);
    const bool again = draw(0, 2) > 0;
    if (again) to_start_.insert(worker);
    keeper_.lost(worker, again ? Then::ComesBack : Then::StaysAway);
  }
  void start_again(int worker) {
    if (to_start_.erase(worker) > 0) living_[worker] = keeper_.life_of(worker);
  }
  // The launcher of its host comes again, or the job is to have more workers.
  void bring_back(int worker) {
    if (keeper_.returns(worker)) to_start_.insert(worker);
  }
  void end_well(int worker) {
    if (living_.erase(worker) == 0) return;
    doomed_.erase(worker);
    keeper_.ended_well(worker);
  }
  void call(int worker) {
    if (draw(0, 1) == 0) {
      if (living_.contains(worker)) make_call(worker);
      return;
    }
    // A message of an earlier life or epoch arrives late.
    const Call old{.epoch = static_cast<uint64_t>(draw(0, 3)),
                   .why = draw(0, 1) == 0 ? Call::Why::Lost : Call::Why::Joins};
    const Member earlier{worker, draw(0, 2)};
    const bool is_old_call = old.why == Call::Why::Lost && old.epoch < keeper_.epochs().back().epoch;
    if (is_old_call || earlier.life < keeper_.life_of(worker)) keeper_.called(earlier, old, now_);
  }
  void make_call(int worker) {
    const Member self{worker, living_[worker]};
    const Members& newest = keeper_.epochs().back();
    if (newest.rank_of(self)) {
      const auto why = std::vector{Call::Why::Lost, Call::Why::Late, Call::Why::Change}[random_() % 3];
      called_in_[newest.epoch].insert({self.worker, self.life});
      keeper_.called(self, {.epoch = newest.epoch, .why = why}, now_);
    } else if (self.life > 0) {
      asked_.insert({self.worker, self.life});
      keeper_.called(self, {.why = Call::Why::Joins}, now_);
    }
  }
  void evict(const Member& member) {
    EXPECT_TRUE(contains(keeper_.epochs().back().by_rank, member));
    EXPECT_TRUE(living_.contains(member.worker) && living_[member.worker] == member.life);
    EXPECT_TRUE(evicted_.insert({member.worker, member.life}).second) << "evicted twice";
    const auto& called = called_in_[keeper_.epochs().back().epoch];
    EXPECT_FALSE(called.empty()) << "evicted although nobody had called";
    EXPECT_FALSE(called.contains({member.worker, member.life})) << "evicted although it had called";
    doomed_.insert(member.worker);
  }
  void check() {
    for (; checked_ < keeper_.epochs().size(); ++checked_) {
      const Members& epoch = keeper_.epochs()[checked_];
      EXPECT_EQ(epoch.epoch, checked_);
      if (checked_ > 0) check(keeper_.epochs()[checked_ - 1], epoch);
    }
  }
  void check(const Members& before, const Members& after) {
    EXPECT_TRUE(before.end.empty()) << "an epoch after the end";
    EXPECT_EQ(after.by_rank.empty(), !after.end.empty());
    if (!after.end.empty()) return;
    const bool has_too_few = static_cast<int>(after.by_rank.size()) < min_;
    EXPECT_EQ(keeper_.has_too_few(), has_too_few);
    EXPECT_EQ(keeper_.finished(), has_too_few);
    const auto is_dead = [&](const Member& member) { return dead_.contains({member.worker, member.life}); };
    const auto has_called = [&](const Member& member) {
      return called_in_[before.epoch].contains({member.worker, member.life});
    };
    EXPECT_TRUE(std::any_of(before.by_rank.begin(), before.by_rank.end(), is_dead) ||
                std::all_of(before.by_rank.begin(), before.by_rank.end(), has_called))
        << "nobody was lost, and not all had left their step";
    EXPECT_TRUE(std::none_of(after.by_rank.begin(), after.by_rank.end(), is_dead));
    std::set<int> owners;
    for (const Member& member : after.by_rank) {
      EXPECT_TRUE(owners.insert(member.worker).second) << "one worker with two ranks";
      const bool asked = asked_.contains({member.worker, member.life});
      EXPECT_TRUE(begun_ || member.life == 0) << "a place before the training";
      EXPECT_FALSE(evicted_.contains({member.worker, member.life}));
      EXPECT_TRUE(before.rank_of(member) || asked) << "neither a member before nor asked for a place";
    }
    std::vector<Member> kept = before.by_rank;
    std::erase_if(kept, [&](const Member& member) { return !after.rank_of(member); });
    ASSERT_FALSE(kept.empty()) << "nobody who knows the state";
    if (hosts_.empty()) {
      EXPECT_TRUE(std::equal(kept.begin(), kept.end(), after.by_rank.begin()))
          << "the members of the epoch before come first, in their order";
    } else {
      check_hosts(kept, after);
    }
  }
  // The first member keeps its rank, and the members of a host are neighbours.
  void check_hosts(const std::vector<Member>& kept, const Members& after) {
    EXPECT_EQ(after.by_rank.front(), kept.front());
    std::set<int> seen;
    int last = -1;
    for (const Member& member : after.by_rank) {
      const int host = hosts_[static_cast<size_t>(member.worker)];
      EXPECT_TRUE(host == last || seen.insert(host).second) << "a host with a gap";
      last = host;
    }
  }

  std::mt19937_64 random_;
  const int workers_;
  const int min_;
  const std::vector<int> hosts_;
  const int first_;  // the number of workers with which the job begins
  MembersKeeper keeper_;
  MembersKeeper::Time now_ = {};
  std::map<int, int> living_;  // worker to life
  std::set<int> to_start_;
  std::set<int> doomed_;                // evicted, but not dead yet
  std::set<std::pair<int, int>> dead_;  // workers and lives
  std::map<uint64_t, std::set<std::pair<int, int>>> called_in_;
  std::set<std::pair<int, int>> asked_;
  std::set<std::pair<int, int>> evicted_;
  bool begun_ = false;
  size_t checked_ = 0;
};

TEST(KeeperRandom, keeps_its_promises_in_drawn_histories) {
  constexpr uint64_t kSeeds = 2000;
  constexpr int kSteps = 100;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    DrawnJob job(seed);
    for (int step = 0; step < kSteps; ++step) job.step();
    job.settle();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tutti::members_keeper_test
