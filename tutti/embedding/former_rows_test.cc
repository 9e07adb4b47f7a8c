// Tests copies of rows, and rows that go on without their owners.
#include "tutti/embedding/former_rows.h"

#include <algorithm>
#include <random>
#include <stdexcept>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/comm/gather_all.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/embedding/connected_rows.h"
#include "tutti/embedding/embedding.h"

namespace tutti::embedding::former_rows_test {
namespace {

using comm::testing::with_ranks;
using ::testing::ElementsAre;

TEST(HoldersOfCopies, are_on_another_host_and_share_the_copies) {
  using Hosts = std::vector<std::string>;
  EXPECT_THAT(holders_of_copies(Hosts{"a"}), ElementsAre(kNobody));
  EXPECT_THAT(holders_of_copies(Hosts{"a", "a", "a"}), ElementsAre(1, 2, 0));
  EXPECT_THAT(holders_of_copies(Hosts{"a", "a", "b", "b"}), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(holders_of_copies(Hosts{"a", "a", "a", "b"}), ElementsAre(3, 3, 3, 0));
  EXPECT_THAT(holders_of_copies(Hosts{"a", "b", "a", "b"}), ElementsAre(1, 2, 3, 0));
}

constexpr int64_t kLanes = 4;
constexpr int64_t kSteps = 12;
constexpr double kLargestNorm = 0.05;

// A fixed table, one that grows without limit, and one that is always full.
struct Net : torch::nn::Module {
  Net()
      : fixed(register_module("fixed", nn::Embedding(37, 3, options(false)))),
        growing(register_module("growing", nn::Embedding(0, 2, options(true)))),
        full(register_module("full", nn::Embedding(840, 2, full_options()))) {}

  static nn::EmbeddingOptions options(bool dynamic) {
    nn::EmbeddingOptions all{.columns = {"id"}, .placement = Placement::Hash, .dynamic = dynamic};
    all.replicate_up_to = 0;
    if (dynamic) {
      all.placement = Placement::Mod;
      all.admit_after = 2;
      all.evict_unused_for = 3;
    }
    return all;
  }
  static nn::EmbeddingOptions full_options() {
    nn::EmbeddingOptions all = options(true);
    all.admit_after = 1;
    all.columns = {"far"};
    all.when_full = WhenFull::ReplaceOldest;
    return all;
  }

  nn::Embedding fixed;
  nn::Embedding growing;
  nn::Embedding full;
};

// Skewed ids; some lanes are empty.
Batch batch_of(int64_t step, int64_t lane) {
  std::mt19937_64 random(static_cast<uint64_t>(1000 * step + lane));
  const int64_t size = (step + lane) % 5 == 0 ? 0 : 40;
  const torch::Tensor id = torch::empty({size}, torch::kLong);
  const torch::Tensor far = torch::empty({size}, torch::kLong);
  for (int64_t i = 0; i < size; ++i) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    id[i] = static_cast<int64_t>(37 * u * u * u);
    far[i] = static_cast<int64_t>(random() % 3000);
  }
  return Batch({{"id", id}, {"far", far}});
}

// One rank's part of a training, up to the exchange of the gradients of a step, or to its end.
class Worker {
 public:
  Worker(comm::Communicator& comm, const OptimizerOptions& optimizer, const std::vector<std::string>& hosts)
      : comm_(comm), optimizer_(optimizer), tables_(net_) {
    tables_.keep_average(0.7);
    rows_.emplace(tables_, comm, 7, kLanes, optimizer,
                  hosts.empty() ? std::vector<int>() : holders_of_copies(hosts));
    rows_->held().set_whole();
  }

  ConnectedRows& rows() { return *rows_; }
  // Returns the number of examples.
  int64_t receive(int64_t step) {
    int64_t examples = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) examples += batch_of(step, lane).size();
    std::vector<Batch> batches;
    const LaneRange own = lanes_of(comm_.rank(), comm_.world(), kLanes);
    for (int64_t lane = own.begin; lane < own.end; ++lane) batches.push_back(batch_of(step, lane));
    tables_.fetch(batches);
    for (size_t i = 0; i < batches.size(); ++i) {
      if (batches[i].size() == 0) continue;
      tables_.begin_lane(i);
      (net_.fixed(batches[i]["id"]).pow(2).sum() + net_.growing(batches[i]["id"]).sum() +
       net_.full(batches[i]["far"]).pow(3).sum())
          .backward();
      tables_.end_lane();
    }
    rows_->receive(examples, step);
    return examples;
  }
  void make(int64_t step) {
    receive(step);
    rows_->begin_step(step);
    rows_->update(0.1, factor_of(rows_->squares()), step + 1);
    end_step(rows_->held(), step);
  }
  static double factor_of(double squares) { return std::min(1.0, kLargestNorm / std::sqrt(squares)); }
  static void end_step(HeldRows& held, int64_t step) {
    if (step % 4 == 3) held.evict(step + 1);
  }
  void train(int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) make(step);
  }
  std::unique_ptr<HeldRows> release() { return rows_->release(); }

 private:
  Net net_;
  comm::Communicator& comm_;
  const OptimizerOptions optimizer_;
  Tables tables_;
  std::optional<ConnectedRows> rows_;
};

// Everything that the owners keep, as numbers that do not depend on who owns what.
std::string state_of(ConnectedRows& rows) {
  std::string text = rows.checksum() + Json(rows.rows().averaged_steps()).dump();
  for (const auto& [table, counts] : rows.counts()) text += table + to_json(counts).dump();
  return text;
}

std::string checksum_of(const OwnedRows& rows) {
  return joined_checksum(std::vector<std::vector<uint64_t>>(1, rows.checksum()));
}

std::vector<std::string> one_host(int world) { return std::vector<std::string>(static_cast<size_t>(world)); }

const std::vector<OptimizerOptions> kOptimizers = {
    torch::optim::SGDOptions(0.1), torch::optim::SGDOptions(0.1).momentum(0.9),
    torch::optim::AdagradOptions(0.1), torch::optim::AdamOptions(0.1), FtrlOptions{.rate = 0.1, .l1 = 0.01}};

std::string undisturbed(const OptimizerOptions& optimizer) {
  std::string state;
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    Worker worker(comm, optimizer, {});
    worker.train(0, kSteps);
    state = state_of(worker.rows());
  });
  return state;
}

TEST(Copies, have_the_bits_of_the_rows) {
  for (const OptimizerOptions& optimizer : kOptimizers) {
    for (const char* transport : {"plain", "aabb"}) {
      with_ranks(transport, 4, [&](comm::Communicator& comm) {
        Worker worker(comm, optimizer, {"a", "a", "b", "b"});
        worker.train(0, kSteps);
        const auto all = comm::gather_all(comm, checksum_of(worker.rows().rows()), "a checksum");
        const HeldRows& held = worker.rows().held();
        ASSERT_EQ(held.all().size(), 2U);
        const OwnedRows& copy = held.all().back();
        EXPECT_EQ(copy.owner(), (comm.rank() + 2) % 4);
        EXPECT_EQ(checksum_of(copy), all[static_cast<size_t>(copy.owner())]);
        EXPECT_EQ(state_of(worker.rows()), undisturbed(optimizer));
      });
    }
  }
}

// The rows that ranks held when some of them were lost. Those that are left, and new ones, train on.
struct Change {
  std::vector<std::unique_ptr<HeldRows>> rows;  // by former rank; null: lost
  int come = 0;
};

// Returns the state in the end; "" if the rows are lost.
std::string go_on(const std::string& transport, Change change, const OptimizerOptions& optimizer,
                  int64_t step, const std::function<void(comm::Communicator&, FormerRows&)>& complete = {}) {
  std::vector<std::unique_ptr<HeldRows>> left;
  for (auto& rows : change.rows)
    if (rows) left.push_back(std::move(rows));
  left.resize(left.size() + static_cast<size_t>(change.come));
  std::string state;
  with_ranks(transport, static_cast<int>(left.size()), [&](comm::Communicator& comm) {
    FormerRows former;
    auto& mine = left[static_cast<size_t>(comm.rank())];
    if (mine) former.keep(3, std::move(mine));
    if (!former.find(comm)) return;
    if (complete) complete(comm, former);
    Worker worker(comm, optimizer, one_host(comm.world()));
    former.hand_over(comm, worker.rows().held());
    comm.barrier().wait();
    former.drop();
    worker.train(step, kSteps);
    const std::string mine_in_the_end = state_of(worker.rows());
    if (comm.rank() == 0) state = mine_in_the_end;
  });
  return state;
}

Change trained(const std::string& transport, int world, const OptimizerOptions& optimizer, int64_t steps,
               const std::vector<int>& lost) {
  Change change;
  change.rows.resize(static_cast<size_t>(world));
  with_ranks(transport, world, [&](comm::Communicator& comm) {
    Worker worker(comm, optimizer, one_host(world));
    worker.train(0, steps);
    comm.barrier().wait();
    if (std::find(lost.begin(), lost.end(), comm.rank()) == lost.end())
      change.rows[static_cast<size_t>(comm.rank())] = worker.release();
  });
  return change;
}

TEST(FormerRows, go_on_with_the_same_bits_without_any_owner_and_with_others) {
  for (const OptimizerOptions& optimizer : kOptimizers) {
    const std::string expected = undisturbed(optimizer);
    for (const char* transport : {"plain", "shm"}) {
      for (int lost = 0; lost < 3; ++lost) {
        for (const int come : {0, 1, 2}) {
          Change change = trained(transport, 3, optimizer, 7, {lost});
          change.come = come;
          EXPECT_EQ(go_on(transport, std::move(change), optimizer, 7), expected) << lost << " " << come;
        }
      }
    }
  }
}

TEST(FormerRows, are_lost_with_an_owner_and_the_holder_of_its_copy) {
  const OptimizerOptions adam = torch::optim::AdamOptions(0.1);
  const std::string expected = undisturbed(adam);
  EXPECT_EQ(go_on("plain", trained("plain", 4, adam, 5, {0, 2}), adam, 5), expected);
  EXPECT_EQ(go_on("plain", trained("plain", 4, adam, 5, {3, 1}), adam, 5), expected);
  EXPECT_EQ(go_on("plain", trained("plain", 4, adam, 5, {}), adam, 5), expected);
  EXPECT_EQ(go_on("plain", trained("plain", 2, adam, 5, {1}), adam, 5), expected);
  EXPECT_EQ(go_on("plain", trained("plain", 4, adam, 5, {0, 1}), adam, 5), "");
  EXPECT_EQ(go_on("plain", trained("plain", 4, adam, 5, {3, 0}), adam, 5), "");
}

TEST(FormerRows, are_not_lost_while_one_worker_with_the_shared_memory_is_left) {
  const OptimizerOptions adam = torch::optim::AdamOptions(0.1);
  const std::string expected = undisturbed(adam);
  EXPECT_EQ(go_on("shm", trained("shm", 4, adam, 5, {0, 1}), adam, 5), expected);
  EXPECT_EQ(go_on("shm", trained("shm", 4, adam, 5, {0, 2, 3}), adam, 5), expected);
  EXPECT_EQ(go_on("inproc", trained("inproc", 3, adam, 6, {1, 2}), adam, 6), expected);
}

// Adagrad, by an optimiser that fails when `updates_left` more tables have been updated.
thread_local int updates_left = -1;
OptimizerOptions failing_adagrad() {
  return ElementwiseOptimizer{
      .name = "failing", .rate = 0.1, .slots = {"sum"}, .update = [](const ElementwiseUpdate& u) {
        if (updates_left == 0) throw std::runtime_error("the worker dies");
        if (updates_left > 0) --updates_left;
        u.slots[0].add_(u.grads * u.grads);
        u.values.sub_(u.grads / (u.slots[0].sqrt() + 0.1), u.rate);
      }};
}

// How far a worker has come with a step whose gradients all have received.
enum class Done { Nothing, Ids, OneTable, TwoTables, All };

// The last worker is lost. The first ones have not begun the step, or have made it.
void expect_completed(const std::string& transport, int world, Done others, Done of_lost) {
  SCOPED_TRACE(
      fmt::format("{} {} {} {}", transport, world, static_cast<int>(others), static_cast<int>(of_lost)));
  constexpr int64_t kStep = 7;
  const OptimizerOptions optimizer = failing_adagrad();
  const std::string expected = undisturbed(optimizer);
  Change change;
  change.rows.resize(static_cast<size_t>(world));
  with_ranks(transport, world, [&](comm::Communicator& comm) {
    Worker worker(comm, optimizer, one_host(world));
    worker.train(0, kStep);
    worker.receive(kStep);
    const bool is_lost = comm.rank() == world - 1;
    // The norm needs all workers, so all begin the step if one makes it.
    if (of_lost > Done::Ids || others > Done::Ids) {
      worker.rows().begin_step(kStep);
      const double squares = worker.rows().squares();
      const Done done = is_lost ? of_lost : others;
      if (done == Done::OneTable || done == Done::TwoTables) updates_left = done == Done::OneTable ? 1 : 2;
      try {
        if (done > Done::Ids) worker.rows().held().update(Worker::factor_of(squares), 1, kStep + 1);
      } catch (const std::runtime_error&) {
      }
      updates_left = -1;
    } else if (is_lost && of_lost == Done::Ids) {
      worker.rows().begin_step(kStep);
    }
    comm.barrier().wait();
    if (!is_lost) change.rows[static_cast<size_t>(comm.rank())] = worker.release();
  });
  const bool have_begun = of_lost > Done::Ids || others > Done::Ids;
  const auto complete = [&](comm::Communicator& comm, FormerRows& former) {
    HeldRows& rows = *former.mine();
    rows.resume_adopted(kStep + 1);
    if (others == Done::All) {
      rows.complete_adopted(kStep + 1);
    } else {
      ASSERT_TRUE(rows.has_received());
      if (!have_begun) rows.begin_step(kStep);
      const double squares = sum_of_all(comm, rows.squares(former.given())).value();
      rows.update(Worker::factor_of(squares), 1, kStep + 1);
    }
    Worker::end_step(rows, kStep);
  };
  EXPECT_EQ(go_on(transport, std::move(change), optimizer, kStep + 1, complete), expected);
}

TEST(FormerRows, complete_a_step_for_which_all_have_received_the_gradients) {
  for (const char* transport : {"plain", "shm"}) {
    for (const Done others : {Done::Nothing, Done::All}) {
      for (const Done of_lost : {Done::Nothing, Done::Ids, Done::OneTable, Done::TwoTables, Done::All})
        expect_completed(transport, 3, others, of_lost);
    }
    expect_completed(transport, 2, Done::Nothing, Done::TwoTables);
    expect_completed(transport, 4, Done::All, Done::OneTable);
  }
}

// A worker is lost while rows are handed over: some have all of theirs, others have not.
TEST(FormerRows, are_the_newest_of_which_all_are_there) {
  const OptimizerOptions adam = torch::optim::AdamOptions(0.1);
  const std::string expected = undisturbed(adam);
  for (const auto& drawn : std::vector<std::pair<std::string, bool>>{
           {"plain", false}, {"plain", true}, {"shm", false}, {"shm", true}}) {
    const std::string& transport = drawn.first;
    const bool first_has_dropped = drawn.second;
    Change before = trained(transport, 4, adam, 5, {3});
    std::vector<FormerRows> former(3);
    with_ranks(transport, 3, [&](comm::Communicator& comm) {
      FormerRows& mine = former[static_cast<size_t>(comm.rank())];
      mine.keep(3, std::move(before.rows[static_cast<size_t>(comm.rank())]));
      ASSERT_TRUE(mine.find(comm));
      Worker worker(comm, adam, one_host(3));
      mine.hand_over(comm, worker.rows().held());
      comm.barrier().wait();
      // The second rank is lost before the last one has its rows, or after all have theirs.
      if (first_has_dropped && comm.rank() == 0) mine.drop();
      if (first_has_dropped || comm.rank() == 0)
        mine.keep(4, worker.release());
      else
        worker.rows().held().reset();
    });
    std::string state;
    with_ranks(transport, 2, [&](comm::Communicator& comm) {
      FormerRows& mine = former[comm.rank() == 0 ? 0 : 2];
      ASSERT_TRUE(mine.find(comm));
      EXPECT_EQ(mine.mine()->world(), first_has_dropped ? 3 : 4);
      Worker worker(comm, adam, one_host(2));
      mine.hand_over(comm, worker.rows().held());
      comm.barrier().wait();
      worker.train(5, kSteps);
      const std::string own = state_of(worker.rows());
      if (comm.rank() == 0) state = own;
    });
    EXPECT_EQ(state, expected);
  }
}

}  // namespace
}  // namespace tutti::embedding::former_rows_test
