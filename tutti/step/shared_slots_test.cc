#include "tutti/step/shared_slots.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/step/buckets.h"

namespace tutti::shared_slots_test {
namespace {

struct Death {};

// A meeting that may fail on some workers and succeed on others, as the sync() of a transport does.
class Meeting {
 public:
  Meeting(int world, uint64_t seed) : world_(world), random_(seed) {}

  bool draw(int one_in) {
    const std::lock_guard lock(mutex_);
    return random_() % static_cast<uint64_t>(one_in) == 0;
  }
  void breaks() {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
    changed_.notify_all();
  }
  void meet() {
    std::unique_lock lock(mutex_);
    const int round = arrived_++ / world_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_broken_ || arrived_ >= (round + 1) * world_; });
    // Some look at the failure first, others at those who have arrived.
    const bool all = arrived_ >= (round + 1) * world_;
    if (is_broken_ && (!all || random_() % 2 == 0)) fail(ErrorKind::PeerLost, "somebody is gone");
  }

 private:
  const int world_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  int arrived_ = 0;
  bool is_broken_ = false;
};

// Each worker adds 1 to its own number, and takes the numbers of the others.
struct Worker {
  std::vector<int> numbers;
  bool lives = true;
  bool is_left_behind = false;
  int steps = 0;
};

// A worker dies at a drawn place of a drawn step: those that are left have made the same steps, and have all
// numbers of the last one.
TEST(StepCommit, is_made_by_all_that_are_left_or_by_none) {
  constexpr int kRounds = 500;
  constexpr int kSteps = 3;
  std::set<int> seen;
  for (int round = 0; round < kRounds; ++round) {
    const int world = 2 + round % 3;
    Meeting meeting(world, static_cast<uint64_t>(round));
    uint64_t updated = 0;
    uint64_t taken = 0;
    std::vector<Worker> workers(static_cast<size_t>(world));
    for (Worker& worker : workers) worker.numbers.assign(static_cast<size_t>(world), 0);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, me = static_cast<size_t>(rank)] {
        Worker& own = workers[me];
        const auto place = [&](int one_in) {
          if (me != 0 && meeting.draw(one_in)) throw Death();
          if (meeting.draw(8)) std::this_thread::yield();
        };
        StepCommit commit(updated, taken, world);
        try {
          for (int step = 1; step <= kSteps; ++step) {
            meeting.meet();  // the sums
            place(20);
            ++std::atomic_ref<int>(own.numbers[me]);
            place(20);
            commit.run(
                [&] {
                  place(40);
                  meeting.meet();
                },
                [&] {
                  for (size_t other = 0; other < own.numbers.size(); ++other) {
                    if (other != me)
                      own.numbers[other] = std::atomic_ref<int>(workers[other].numbers[other]).load();
                  }
                  place(20);
                },
                [&] { --std::atomic_ref<int>(own.numbers[me]); });
            own.steps = step;
          }
        } catch (const Error&) {
          own.is_left_behind = commit.is_left_behind();
        } catch (const Death&) {
          own.lives = false;
        }
        meeting.breaks();
      });
    }
    for (std::thread& thread : threads) thread.join();
    int steps = -1;
    for (const Worker& worker : workers) {
      if (!worker.lives || worker.is_left_behind) continue;
      if (steps < 0) steps = worker.steps;
      EXPECT_EQ(worker.steps, steps) << "round " << round;
      EXPECT_EQ(worker.numbers, std::vector<int>(static_cast<size_t>(world), steps)) << "round " << round;
    }
    // If all that were not left behind have died as well, the training would resume from a checkpoint.
    if (steps >= 0) seen.insert(steps);
  }
  EXPECT_EQ(seen.size(), kSteps + 1U);
}

constexpr int64_t kWidth = 530;  // a worker updates the weights in several chunks
constexpr int64_t kLanes = 4;
constexpr int64_t kDies = 2;  // the step in which a worker does
constexpr int64_t kSteps = 4;

// The number of chunks that this thread updates before it dies in the middle of the next; < 0: it does not.
thread_local int chunks_to_live = -1;

OptimizerOptions mortal() {
  return ElementwiseOptimizer{
      .name = "mortal", .rate = 0.1, .slots = {"velocity"}, .update = [](const ElementwiseUpdate& u) {
        const bool dies = chunks_to_live == 0;
        if (chunks_to_live > 0) --chunks_to_live;
        u.slots[0].mul_(0.9).add_(u.grads);
        if (dies) u.values.narrow(0, 0, u.values.numel() / 2).zero_();
        if (dies) throw Death();
        u.values.sub_(u.slots[0] * u.rate);
      }};
}

struct After {
  torch::Tensor values;
  torch::Tensor buffers;
  Optimizer::State state;
};

// One of the workers of a training.
class Training {
 public:
  Training(comm::Communicator& comm, const OptimizerOptions& options)
      : comm_(comm),
        parameters_(*net_, {.allocate = shared_allocator(comm, torch::kCPU)}),
        optimizer_(sections_of(parameters_, comm.rank(), comm.world()), options),
        mean_(parameters_, comm, kLanes, {.scatter = true}) {}

  void sum(int64_t step) {
    mean_.begin_step(step);
    for (int64_t lane = mean_.lanes().begin; lane < mean_.lanes().end; ++lane) {
      const torch::Tensor x = torch::sin(torch::arange(2 * kWidth, torch::kFloat).view({2, kWidth}) * 0.7 +
                                         static_cast<double>(step * kLanes + lane));
      mean_.begin_lane();
      const torch::Tensor loss = net_->forward(x).square().mean();
      mean_.begin_backward(loss, 2);
      loss.backward(torch::full_like(loss, mean_.weight(2)));
      mean_.add();
    }
    mean_.finish();
  }
  void update() {
    if (comm_.world() == 1) return optimizer_.step();
    if (!slots_) slots_.emplace(comm_, parameters_, optimizer_);
    slots_->step(mean_);
  }
  // As a worker sees the state that is left, with all slots.
  After after() {
    mean_.break_off();
    Optimizer all(parameters_.blocks(), optimizer_.options());
    all.restore(slots_ ? slots_->state() : optimizer_.state());
    return {parameters_.values().clone(), parameters_.buffer_vectors()[0].clone(), all.state()};
  }
  void make_steps(int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      sum(step);
      update();
    }
  }

 private:
  static std::shared_ptr<torch::nn::SequentialImpl> make_net() {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    torch::manual_seed(1);
    return std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(kWidth, kWidth),
                                                       torch::nn::BatchNorm1d(kWidth));
  }

  comm::Communicator& comm_;
  const std::shared_ptr<torch::nn::SequentialImpl> net_ = make_net();
  Parameters parameters_;
  Optimizer optimizer_;
  GradientMean mean_;
  std::optional<SharedSlots> slots_;
};

After alone(const OptimizerOptions& options, int64_t steps) {
  After after;
  comm::testing::with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    Training training(comm, options);
    training.make_steps(steps);
    after = training.after();
  });
  return after;
}

void expect_same(const After& found, const After& expected) {
  EXPECT_TRUE(torch::equal(found.values, expected.values));
  EXPECT_TRUE(torch::equal(found.buffers, expected.buffers));
  EXPECT_EQ(found.state.steps, expected.state.steps);
  ASSERT_EQ(found.state.slots.size(), expected.state.slots.size());
  for (size_t i = 0; i < found.state.slots.size(); ++i) {
    EXPECT_EQ(found.state.slots[i].name, expected.state.slots[i].name);
    EXPECT_TRUE(torch::equal(found.state.slots[i].vector, expected.state.slots[i].vector));
  }
}

std::vector<OptimizerOptions> every_kind() {
  return {torch::optim::SGDOptions(0.1),     torch::optim::SGDOptions(0.1).momentum(0.9),
          torch::optim::AdamOptions(1e-2),   torch::optim::AdamWOptions(1e-2).amsgrad(true),
          torch::optim::AdagradOptions(0.1), torch::optim::RMSpropOptions(1e-2).momentum(0.5).centered(true),
          FtrlOptions{.rate = 0.05},         mortal()};
}

class SharedSlotsOver : public ::testing::TestWithParam<std::string> {};

TEST_P(SharedSlotsOver, change_no_bit) {
  for (const OptimizerOptions& options : every_kind()) {
    const After expected = alone(options, kSteps);
    for (const int world : {2, 3}) {
      comm::testing::with_ranks(GetParam(), world, [&](comm::Communicator& comm) {
        Training training(comm, options);
        training.make_steps(kSteps);
        expect_same(training.after(), expected);
        comm.barrier().wait();
      });
    }
  }
}

// In the first step as well as in a later one.
TEST_P(SharedSlotsOver, are_those_before_the_step_if_a_worker_dies_before_it_has_updated) {
  for (const OptimizerOptions& options : every_kind()) {
    for (const int64_t step : {int64_t{1}, kDies}) {
      const After expected = alone(options, step);
      comm::testing::with_ranks(GetParam(), 3, [&](comm::Communicator& comm) {
        Training training(comm, options);
        training.make_steps(step);
        training.sum(step);
        if (comm.rank() == 1) return comm.abandon("dies");
        EXPECT_THROW(training.update(), Error);
        expect_same(training.after(), expected);
      });
    }
  }
}

TEST_P(SharedSlotsOver, are_those_before_the_step_if_a_worker_dies_in_the_middle_of_its_update) {
  const After expected = alone(mortal(), kDies);
  for (const int chunks : {0, 1}) {
    for (const int victim : {0, 1}) {
      comm::testing::with_ranks(GetParam(), 2, [&](comm::Communicator& comm) {
        Training training(comm, mortal());
        training.make_steps(kDies);
        training.sum(kDies);
        if (comm.rank() == victim) {
          chunks_to_live = chunks;
          EXPECT_THROW(training.update(), Death);
          return comm.abandon("dies");
        }
        EXPECT_THROW(training.update(), Error);
        expect_same(training.after(), expected);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SharedSlotsOver, ::testing::Values("inproc", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tutti::shared_slots_test
