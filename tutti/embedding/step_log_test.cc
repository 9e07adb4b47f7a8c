// Tests that the step of an owner that is lost can be completed from its record, wherever the owner was.
#include "tutti/embedding/step_log.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/embedding/growing_ids.h"

namespace tutti::embedding::step_log_test {
namespace {

struct Dies : std::runtime_error {
  Dies() : std::runtime_error("the owner dies") {}
};

torch::Tensor words(int64_t count) { return torch::zeros({count}, torch::kLong); }

// Rows of two arrays, some of which a step changes.
class Rows {
 public:
  static constexpr size_t kRows = 50;
  static constexpr size_t kInBlock = 4;

  Rows() : state_(words(StepLog::words_of_state(kWidth))), gradients_(words(4096)) {
    std::iota(values_.begin(), values_.end(), 0.0F);
    for (int64_t row = 1; row < static_cast<int64_t>(kRows); row += 2) changed_.push_back(row);
  }

  StepLog log() const { return StepLog(state_, gradients_); }
  size_t blocks() const { return (changed_.size() + kInBlock - 1) / kInBlock; }
  // Doubles the rows that the step changes. Before a row of the second array is changed, calls `before_row`.
  void update(
      StepLog& log, const std::function<void(size_t)>& before_row = [](size_t) {}) {
    for (size_t begin = 0; begin < changed_.size(); begin += kInBlock) {
      const auto rows = std::span(changed_).subspan(begin, std::min(kInBlock, changed_.size() - begin));
      log.change(arrays(), rows, [&] {
        for (size_t i = 0; i < rows.size(); ++i) {
          double_row(values_.data(), 3, rows[i]);
          before_row(begin + i);
          double_row(slots_.data(), 1, rows[i]);
        }
      });
    }
  }
  std::vector<float> all() const {
    std::vector<float> all = values_;
    all.insert(all.end(), slots_.begin(), slots_.end());
    return all;
  }

 private:
  static constexpr size_t kWidth = 4 * sizeof(float);
  static void double_row(float* values, int64_t width, int64_t row) {
    for (int64_t i = 0; i < width; ++i) values[row * width + i] *= 2;
  }
  std::vector<RowArray> arrays() {
    const auto bytes = [](std::vector<float>& of) {
      return static_cast<std::byte*>(static_cast<void*>(of.data()));
    };
    return {{bytes(values_), 3 * sizeof(float)}, {bytes(slots_), sizeof(float)}};
  }

  torch::Tensor state_;
  torch::Tensor gradients_;
  std::vector<float> values_ = std::vector<float>(3 * kRows);
  std::vector<float> slots_ = std::vector<float>(kRows, 1.0F);
  std::vector<int64_t> changed_;
};

TEST(StepLog, lets_another_process_complete_an_update) {
  Rows undisturbed;
  StepLog whole = undisturbed.log();
  whole.begin();
  whole.begin(1, 0);
  undisturbed.update(whole);
  for (size_t death = 0; death < Rows::kRows / 2; ++death) {
    Rows rows;
    StepLog of_owner = rows.log();
    of_owner.begin();
    of_owner.begin(1, 0);
    EXPECT_THROW(rows.update(of_owner,
                             [&](size_t row) {
                               if (row == death) throw Dies();
                             }),
                 Dies);
    // A first neighbour dies as well, a little later.
    StepLog of_first = rows.log();
    of_first.take_over();
    of_first.read_again();
    EXPECT_EQ(of_first.step(), 1);
    const size_t next_death = death + Rows::kInBlock;
    try {
      rows.update(of_first, [&](size_t row) {
        if (row == next_death) throw Dies();
      });
    } catch (const Dies&) {
    }
    StepLog of_second = rows.log();
    of_second.take_over();
    of_second.read_again();
    rows.update(of_second);
    EXPECT_EQ(rows.all(), undisturbed.all()) << death;
    of_second.read_again();
    rows.update(of_second);  // nothing is left to do
    EXPECT_EQ(rows.all(), undisturbed.all()) << death;
  }
}

TEST(StepLog, has_the_mean_gradients_and_the_slots_of_a_step) {
  StepLog of_owner(words(StepLog::words_of_state(8)), words(200));
  of_owner.begin();
  EXPECT_EQ(of_owner.step(), -1);
  of_owner.begin(5, 4);
  const RowSums fixed{
      .dim = 3, .sums = {{.row = 7}, {.row = 9}, {.row = 20}}, .values = {1, 2, 3, 4, 5, 6, 7, 8, 9}};
  const RowSums growing{
      .dim = 1, .sums = {{.row = 3, .lookups = 2}, {.row = 4, .lookups = 1}}, .values = {10, 11}};
  EXPECT_THAT(of_owner.write(fixed, false).values, ::testing::ElementsAreArray(fixed.values));
  const StepLog::Means written = of_owner.write(growing, true);
  std::fill(written.slots.begin(), written.slots.end(), 77);
  of_owner.read_again();
  const auto [sums, means] = of_owner.read(3, false);
  EXPECT_THAT(means.values, ::testing::ElementsAreArray(fixed.values));
  ASSERT_EQ(sums.sums.size(), 3U);
  EXPECT_EQ(sums.sums[2].row, 20);
  const auto [more_sums, more] = of_owner.read(1, true);
  EXPECT_THAT(more.values, ::testing::ElementsAreArray(growing.values));
  EXPECT_THAT(more.slots, ::testing::ElementsAre(77, 77));
  EXPECT_EQ(more_sums.sums[0].lookups, 2);
  EXPECT_EQ(of_owner.step(), 5);
  EXPECT_EQ(of_owner.averaged_steps(), 4);
}

// The memory of ids, which a second process finds in the order in which the first has allocated it.
class Memory {
 public:
  RowPlace first() {
    return {.allocate = [this](int64_t elements, torch::ScalarType type) {
      return allocated_.emplace_back(torch::zeros({elements}, type));
    }};
  }
  RowPlace second() const {
    return {.allocate = [this, next = std::make_shared<size_t>(0)](int64_t, torch::ScalarType) {
      return allocated_.at((*next)++);
    }};
  }

 private:
  std::vector<torch::Tensor> allocated_;
};

// Lookups of a step, of which some are new.
struct Step {
  explicit Step(int64_t step) : number(step) {
    std::mt19937_64 random(static_cast<uint64_t>(step));
    constexpr int64_t kIds = 30'000;
    const auto spread = [](int64_t id) { return id * ((int64_t{1} << 62) / kIds * 2); };
    for (int64_t id = 0; id < kIds; ++id) {
      if (random() % 500 != 0) continue;
      rows.push_back(spread(id));
      lookups.push_back(1 + static_cast<int64_t>(random() % 3));
    }
  }
  int64_t number;
  std::vector<int64_t> rows;
  std::vector<int64_t> lookups;
};

std::string state_of(const GrowingIds& ids) {
  std::map<int64_t, std::string> rows;
  for (const IdSlots* slots : {&ids.rows(), &ids.waiting()}) {
    for (int64_t slot = 0; slot < slots->slots(); ++slot) {
      if (slots->number_in(slot) == IdSlots::kNone) continue;
      EXPECT_EQ(slots->find(slots->number_in(slot)), slot);
      rows[slots->number_in(slot)] += fmt::format(" {} {}", slots->lookups(slot), slots->last_step(slot));
    }
  }
  std::string text = to_json(ids.counts()).dump();
  for (const auto& [row, entry] : rows) text += fmt::format(" {}:{}", row, entry);
  return text;
}

// Ids that are evicted and replaced: a change that was broken off anywhere is taken back, and made again.
TEST(StepLog, takes_back_changes_of_ids) {
  constexpr int64_t kSteps = 12;
  const std::vector<Growth> kinds = {
      {.most_rows = 840, .when_full = WhenFull::ReplaceOldest, .evict_unused_for = 3},
      {.most_rows = 840, .admit_after = 2, .evict_unused_for = 4},
      {.admit_after = 3, .evict_below = 4}};
  for (const Growth& growth : kinds) {
    GrowingIds undisturbed(growth);
    for (int64_t step = 0; step <= kSteps; ++step) {
      const Step now(step);
      undisturbed.count(now.rows, now.lookups, now.number);
      if (step % 5 == 0) undisturbed.evict(step);
    }
    for (int64_t changes = 0; changes < 300; changes += 7) {
      Memory memory;
      const torch::Tensor state = words(StepLog::words_of_state(8));
      const torch::Tensor room = words(StepLog::words_of_entries(5000));
      GrowingIds of_owner(growth, memory.first());
      StepLog log(state, room);
      log.begin();
      of_owner.keep_log(&log, 0);
      for (int64_t step = 0; step < kSteps; ++step) {
        const Step now(step);
        log.begin(step, 0);
        log.change_ids([&] { of_owner.count(now.rows, now.lookups, now.number); });
        if (step % 5 == 0) of_owner.evict(step);
      }
      // There is no room for the next change.
      const torch::Tensor small = words(StepLog::words_of_entries(changes));
      log.move_gradients(small);
      log.begin(kSteps, 0);
      const Step last(kSteps);
      try {
        log.change_ids([&] { of_owner.count(last.rows, last.lookups, last.number); });
      } catch (const Error&) {
      }
      GrowingIds ids(growth, memory.second());
      StepLog of_neighbour(state, small);
      of_neighbour.take_back(ids.arrays());
      ids.read_memory();
      of_neighbour.move_gradients(room);
      ids.keep_log(&of_neighbour, 0);
      of_neighbour.change_ids([&] { ids.count(last.rows, last.lookups, last.number); });
      if (kSteps % 5 == 0) ids.evict(kSteps);
      EXPECT_EQ(state_of(ids), state_of(undisturbed)) << changes;
    }
  }
}

}  // namespace
}  // namespace tutti::embedding::step_log_test
