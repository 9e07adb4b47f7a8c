#include "tutti/embedding/connected_rows.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/embedding/embedding.h"

namespace tutti::embedding::connected_rows_test {
namespace {

using comm::testing::with_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLanes = 4;
constexpr int64_t kBatch = 5;

// Two sharded tables, one of which has two columns, lists of ids, and one small table.
struct Net : torch::nn::Module {
  explicit Net(Placement placement = Placement::Mod)
      : user(register_module("user", nn::Embedding(50, 3, options({"user", "friend"}, placement)))),
        items(register_module("items", nn::EmbeddingBag(31, 2, nn::Pooling::Mean, options({}, placement)))),
        day(register_module("day", nn::Embedding(7, 2))) {}

  static nn::EmbeddingOptions options(std::vector<std::string> columns, Placement placement) {
    return {.columns = std::move(columns), .placement = placement, .replicate_up_to = 0};
  }

  torch::Tensor forward(const Batch& batch) {
    const torch::Tensor both = user(batch["user"]) * user(batch["friend"]);
    return both.sum(1) + items(batch["items"]).square().sum(1) + day(batch["day"]).sum(1);
  }

  nn::Embedding user;
  nn::EmbeddingBag items;
  nn::Embedding day;
};

// The batch of a lane at a step; some lanes are empty.
Batch batch_of(int64_t step, int64_t lane) {
  std::mt19937_64 random(static_cast<uint64_t>(1000 * step + lane));  // ranks are threads here
  const int64_t size = (step + lane) % 5 == 0 ? 0 : kBatch;
  const auto draw = [&](int64_t from, int64_t to, std::vector<int64_t> shape) {
    torch::Tensor ids = torch::empty(shape, torch::kLong);
    auto* id = static_cast<int64_t*>(ids.data_ptr());
    for (int64_t i = 0; i < ids.numel(); ++i)
      id[i] = from + static_cast<int64_t>(random() % static_cast<uint64_t>(to - from));
    return ids;
  };
  return Batch({{"user", draw(0, 50, {size})},
                {"friend", draw(0, 50, {size}).to(torch::kInt)},
                {"items", draw(-1, 31, {size, 4})},
                {"day", draw(0, 7, {size})}});
}

struct Training {
  Net& net;
  Tables& tables;
  ConnectedRows& rows;
  comm::Communicator& comm;
};

// With `ahead`, each step announces the batches of the next one.
void train(const Training& training, int64_t begin, int64_t end, double largest_norm = 0,
           bool ahead = false) {
  const auto& [net, tables, rows, comm] = training;
  const LaneRange range = lanes_of(comm.rank(), comm.world(), kLanes);
  for (int64_t step = begin; step < end; ++step) {
    int64_t examples = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) examples += batch_of(step, lane).size();
    const auto batches_of = [&](int64_t of_step) {
      std::vector<Batch> batches;
      for (int64_t lane = range.begin; lane < range.end; ++lane) batches.push_back(batch_of(of_step, lane));
      return batches;
    };
    const std::vector<Batch> batches = batches_of(step);
    if (ahead && step > begin && tables.looks_ahead())
      tables.fetch_ahead();
    else
      tables.fetch(batches);
    if (ahead && step + 1 < end && tables.looks_ahead()) tables.look_ahead(batches_of(step + 1));
    for (size_t i = 0; i < batches.size(); ++i) {
      if (batches[i].size() == 0) continue;
      tables.begin_lane(i);
      net.forward(batches[i]).sum().backward();
      tables.end_lane();
    }
    rows.receive(examples, step);
    rows.begin_step(step);
    const double norm = std::sqrt(rows.squares());
    rows.update(0.1, largest_norm > 0 && norm > largest_norm ? largest_norm / norm : 1, step + 1);
  }
}

// The rows by id, which only the test's world of one can list at once.
std::string rows_after(const std::string& transport, int world, const OptimizerOptions& optimizer,
                       Placement placement = Placement::Mod, double largest_norm = 0, bool ahead = false) {
  std::vector<std::string> sums(static_cast<size_t>(world));
  with_ranks(transport, world, [&](comm::Communicator& comm) {
    Net net(placement);
    Tables tables(net);
    ConnectedRows rows(tables, comm, 7, kLanes, optimizer);
    train({net, tables, rows, comm}, 0, 6, largest_norm, ahead);
    sums[static_cast<size_t>(comm.rank())] = rows.checksum();
  });
  for (const std::string& sum : sums) EXPECT_EQ(sum, sums[0]);
  return sums[0];
}

const OptimizerOptions kAdagrad = torch::optim::AdagradOptions(0.1);

TEST(Tables, have_the_same_bits_on_any_number_of_workers) {
  for (const OptimizerOptions& optimizer : {OptimizerOptions(torch::optim::SGDOptions(0.1)),
                                            OptimizerOptions(torch::optim::SGDOptions(0.1).momentum(0.9)),
                                            kAdagrad, OptimizerOptions(torch::optim::AdamOptions(0.1))}) {
    const std::string alone = rows_after("inproc", 1, optimizer);
    for (const int world : {2, 3, 4, 6}) EXPECT_EQ(rows_after("plain", world, optimizer), alone) << world;
    for (const int world : {2, 3, 4}) EXPECT_EQ(rows_after("shm", world, optimizer), alone) << world;
  }
}

TEST(Tables, have_the_same_bits_with_any_placement) {
  const std::string alone = rows_after("inproc", 1, kAdagrad);
  for (const Placement placement : {Placement::Block, Placement::Hash}) {
    for (const char* transport : {"plain", "shm"})
      EXPECT_EQ(rows_after(transport, 3, kAdagrad, placement), alone) << name_of(placement);
  }
}

TEST(Tables, are_clipped_alike_on_any_number_of_workers) {
  const std::string alone = rows_after("inproc", 1, kAdagrad, Placement::Mod, 1e-3);
  EXPECT_NE(alone, rows_after("inproc", 1, kAdagrad));
  for (const int world : {2, 3, 4})
    EXPECT_EQ(rows_after("plain", world, kAdagrad, Placement::Mod, 1e-3), alone);
}

TEST(Tables, have_the_same_bits_if_requests_are_announced) {
  const std::string alone = rows_after("inproc", 1, kAdagrad);
  for (const char* transport : {"plain", "shm"}) {
    for (const int world : {1, 2, 3, 4})
      EXPECT_EQ(rows_after(transport, world, kAdagrad, Placement::Mod, 0, true), alone) << transport << world;
  }
}

// The same model with ordinary parameters, trained by torch::optim on the whole batch. Adagrad leaves rows
// without a gradient as they are.
TEST(Tables, are_trained_like_ordinary_parameters) {
  with_ranks("shm", 2, [&](comm::Communicator& comm) {
    Net net;
    Tables tables(net);
    ConnectedRows sharded(tables, comm, 7, kLanes, kAdagrad);
    const auto all_rows = [&](nn::EmbeddingImpl& of, int64_t rows) {
      const torch::NoGradGuard no_grad;
      return of.forward(torch::arange(rows)).clone();
    };
    torch::Tensor user = all_rows(*net.user, 50).requires_grad_(true);
    torch::Tensor items = all_rows(*net.items, 31).requires_grad_(true);
    torch::optim::Adagrad adagrad({user, items}, torch::optim::AdagradOptions(0.1));
    comm.barrier().wait();  // all have read the initial rows
    train({net, tables, sharded, comm}, 0, 6);
    for (int64_t step = 0; step < 6; ++step) {
      torch::Tensor loss = torch::zeros({});
      int64_t examples = 0;
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const Batch batch = batch_of(step, lane);
        examples += batch.size();
        if (batch.size() == 0) continue;
        const torch::Tensor is_item = batch["items"].ge(0).unsqueeze(2);
        const torch::Tensor of_items = torch::embedding(items, batch["items"].clamp_min(0)) * is_item;
        const torch::Tensor mean = of_items.sum(1) / is_item.sum(1).clamp_min(1);
        loss = loss +
               (torch::embedding(user, batch["user"]) * torch::embedding(user, batch["friend"])).sum() +
               mean.square().sum();
      }
      adagrad.zero_grad();
      (loss / examples).backward();
      adagrad.step();
    }
    EXPECT_LT((all_rows(*net.user, 50) - user).abs().max().item<double>(), 1e-5);
    EXPECT_LT((all_rows(*net.items, 31) - items).abs().max().item<double>(), 1e-5);
  });
}

TEST(Tables, continue_on_another_number_of_workers) {
  const OptimizerOptions adam = torch::optim::AdamOptions(0.1);
  const std::string straight = rows_after("inproc", 1, adam);
  for (const int before : {1, 4, 3}) {
    store::Snapshot saved;
    with_ranks("plain", before, [&](comm::Communicator& comm) {
      Net net(Placement::Block);
      Tables tables(net);
      ConnectedRows rows(tables, comm, 7, kLanes, adam);
      train({net, tables, rows, comm}, 0, 3);
      const auto all = rows.gather(saved_rows(rows.rows(), RowShard::Which::All));
      const Json facts = rows.facts();
      if (comm.rank() != 0) return;
      for (const auto& [name, tensor] : all) saved.tensors.push_back({name, tensor.clone()});
      saved.values = facts;
    });
    for (const int world : {1, 2, 3, 8}) {
      with_ranks(world == 2 ? "shm" : "plain", world, [&](comm::Communicator& comm) {
        Net net;
        Tables tables(net);
        ConnectedRows rows(tables, comm, 99, kLanes, adam);
        rows.restore(comm.rank() == 0 ? saved : store::Snapshot(), {}, RowParts::All);
        train({net, tables, rows, comm}, 3, 6);
        EXPECT_EQ(rows.checksum(), straight) << before << " to " << world;
      });
    }
  }
}

TEST(Tables, refuse_a_gradient_that_is_no_number_before_rows_change) {
  with_ranks("plain", 1, [&](comm::Communicator& comm) {
    Net net;
    Tables tables(net);
    ConnectedRows rows(tables, comm, 7, kLanes, kAdagrad);
    rows.refuse_gradients_that_are_not_finite();
    const std::string before = rows.checksum();
    std::vector<Batch> batches;
    for (int64_t lane = 0; lane < kLanes; ++lane) batches.push_back(batch_of(1, lane));
    tables.fetch(batches);
    for (size_t i = 0; i < batches.size(); ++i) {
      if (batches[i].size() == 0) continue;
      tables.begin_lane(i);
      (net.forward(batches[i]).sum() * std::nan("")).backward();
      tables.end_lane();
    }
    expect_error(ErrorKind::InvalidArgument, HasSubstr("is not finite on rank 0 at step 1"),
                 [&] { rows.receive(5, 1); });
    EXPECT_EQ(rows.checksum(), before);
  });
}

// --- Moving averages

constexpr double kDecay = 0.7;

Tables averaged_tables(const Net& net) {
  Tables tables(net);
  tables.keep_average(kDecay);
  return tables;
}

// Returns the rows of all workers, in the order of the ids, at rank 0.
store::NamedTensors joined_weights(Tables& tables, const ConnectedRows& rows, RowValues values) {
  tables.look_up_values(values);
  const store::Snapshot all = rows.gather_weights();
  tables.look_up_values(RowValues::Last);
  if (all.tensors.empty()) return {};
  store::NamedTensors joined = joined_rows(SavedRows(all), nullptr);
  for (auto& [name, tensor] : joined) tensor = tensor.clone();
  return joined;
}

void expect_equal(const store::NamedTensors& found, const store::NamedTensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(found[i].tensor.equal(expected[i].tensor)) << found[i].name;
}

// The formula in double precision, on all rows after every step, as for an ordinary parameter.
TEST(RowAverages, are_those_of_the_values_of_all_rows_after_all_steps) {
  for (const OptimizerOptions& optimizer :
       {kAdagrad, OptimizerOptions(torch::optim::AdamOptions(0.1).weight_decay(0.1))}) {
    store::NamedTensors alone;
    for (const int world : {1, 2, 3}) {
      with_ranks(world == 2 ? "shm" : "plain", world, [&](comm::Communicator& comm) {
        Net net;
        Tables tables = averaged_tables(net);
        ConnectedRows rows(tables, comm, 7, kLanes, optimizer);
        const auto initial = joined_weights(tables, rows, RowValues::Last);
        expect_equal(joined_weights(tables, rows, RowValues::Average), initial);
        std::vector<torch::Tensor> sums;
        double weights = 0;
        for (int64_t step = 0; step < 12; ++step) {
          step == 7 ? rows.skip_step() : train({net, tables, rows, comm}, step, step + 1);
          weights = weights * kDecay + 1;
          const auto now = joined_weights(tables, rows, RowValues::Last);
          const auto average = joined_weights(tables, rows, RowValues::Average);
          for (size_t i = 0; i < now.size(); ++i) {
            const torch::Tensor value = now[i].tensor.to(torch::kDouble);
            if (step == 0) sums.push_back(torch::zeros_like(value));
            sums[i] = sums[i] * kDecay + value;
            EXPECT_LT((average[i].tensor - sums[i] / weights).abs().max().item<double>(), 1e-6) << step;
          }
        }
        const auto last = joined_weights(tables, rows, RowValues::Average);
        if (comm.rank() != 0) return;
        if (world == 1) alone = last;
        expect_equal(last, alone);
      });
    }
  }
}

// Lookups fetch them, also if the rows themselves can be read where they are.
TEST(RowAverages, are_looked_up_by_forward_passes) {
  for (const int world : {1, 2}) {
    with_ranks("shm", world, [&](comm::Communicator& comm) {
      Net net;
      Tables tables = averaged_tables(net);
      ConnectedRows rows(tables, comm, 7, kLanes, kAdagrad);
      train({net, tables, rows, comm}, 0, 5);
      const torch::NoGradGuard no_grad;
      const std::vector<Batch> batches = {batch_of(1, 0)};
      const auto looked_up = [&](RowValues values) {
        tables.look_up_values(values);
        EXPECT_EQ(tables.are_direct(), values == RowValues::Last);
        tables.fetch(batches);
        tables.begin_lane(0);
        const torch::Tensor found = net.user(batches[0]["user"]).clone();
        tables.end_lane();
        if (tables.can_read_alone()) {
          EXPECT_TRUE(net.user(batches[0]["user"]).equal(found));
        } else {
          expect_error(ErrorKind::InvalidArgument, HasSubstr("let all workers make this call"),
                       [&] { net.user(batches[0]["user"]); });
        }
        tables.look_up_values(RowValues::Last);
        return found;
      };
      const torch::Tensor average = looked_up(RowValues::Average);
      EXPECT_FALSE(looked_up(RowValues::Last).equal(average));
      const auto all = joined_weights(tables, rows, RowValues::Average);
      if (comm.rank() != 0) return;
      const auto user =
          std::find_if(all.begin(), all.end(), [](const auto& t) { return t.name == "user.weight"; });
      EXPECT_TRUE(average.equal(user->tensor.index_select(0, batches[0]["user"])));
    });
  }
}

// The second checkpoint has only the rows that have changed since the first one.
TEST(RowAverages, continue_on_another_number_of_workers_with_the_same_bits) {
  store::NamedTensors straight;
  store::Snapshot all;
  store::Snapshot changes;
  const auto copy = [](const store::NamedTensors& tensors, const Json& facts) {
    store::Snapshot part{.values = facts};
    for (const auto& [name, tensor] : tensors) part.tensors.push_back({name, tensor.clone()});
    return part;
  };
  with_ranks("plain", 3, [&](comm::Communicator& comm) {
    Net net(Placement::Block);
    Tables tables = averaged_tables(net);
    ConnectedRows rows(tables, comm, 7, kLanes, kAdagrad);
    const auto save = [&](store::Snapshot& to, RowShard::Which which) {
      const auto gathered = rows.gather(saved_rows(rows.rows(), which));
      const Json facts = rows.facts();
      if (comm.rank() == 0) to = copy(gathered, facts);
    };
    train({net, tables, rows, comm}, 0, 2);
    save(all, RowShard::Which::All);
    for (RowShard& shard : rows.rows().shards()) shard.mark_saved();
    train({net, tables, rows, comm}, 2, 4);
    save(changes, RowShard::Which::Changed);
    train({net, tables, rows, comm}, 4, 8);
    const auto last = joined_weights(tables, rows, RowValues::Average);
    if (comm.rank() == 0) straight = last;
  });
  EXPECT_EQ(changes.values.at("user").at("average"), (Json{{"decay", kDecay}, {"steps", 4}}));
  for (const int world : {1, 2}) {
    with_ranks("shm", world, [&](comm::Communicator& comm) {
      Net net;
      Tables tables = averaged_tables(net);
      ConnectedRows rows(tables, comm, 99, kLanes, kAdagrad);
      const bool mine = comm.rank() == 0;
      rows.restore(mine ? all : store::Snapshot(), mine ? std::optional(changes) : std::nullopt,
                   RowParts::All);
      train({net, tables, rows, comm}, 4, 8);
      const auto last = joined_weights(tables, rows, RowValues::Average);
      if (mine) expect_equal(last, straight);
    });
  }
}

// They begin with the next step if the checkpoint has none, and are left out if nobody wants them.
TEST(RowAverages, may_be_missing_in_a_checkpoint_or_not_wanted) {
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    const auto trained = [&](double decay, const std::optional<store::Snapshot>& from, RowParts parts) {
      Net net;
      Tables tables(net);
      tables.keep_average(decay);
      ConnectedRows rows(tables, comm, 7, kLanes, kAdagrad);
      if (from) rows.restore(*from, {}, parts);
      train({net, tables, rows, comm}, 0, 1);
      const auto last = joined_weights(tables, rows, RowValues::Last);
      const bool is_new =
          from && (decay == 0 || parts == RowParts::Weights || !from->values.at("user").contains("average"));
      if (is_new) expect_equal(joined_weights(tables, rows, RowValues::Average), last);
      store::Snapshot saved{.values = rows.facts()};
      for (const auto& [name, tensor] : saved_rows(rows.rows(), RowShard::Which::All))
        saved.tensors.push_back({name, tensor.clone()});
      return saved;
    };
    const store::Snapshot with = trained(kDecay, {}, RowParts::All);
    const store::Snapshot without = trained(0, {}, RowParts::All);
    EXPECT_FALSE(without.values.at("user").contains("average"));
    trained(0, with, RowParts::All);
    trained(kDecay, without, RowParts::All);
    trained(kDecay, with, RowParts::Weights);
    EXPECT_EQ(trained(kDecay, with, RowParts::All).values.at("user").at("average").at("steps"), 2);
    store::Snapshot damaged = with;
    for (auto& [name, tensor] : damaged.tensors) {
      if (name == "user.average[1of1]") tensor = tensor.narrow(1, 0, 2).contiguous();
    }
    expect_error(ErrorKind::InvalidArgument, HasSubstr("the moving average of the table 'user'"),
                 [&] { trained(kDecay, damaged, RowParts::All); });
  });
}

TEST(Tables, of_a_checkpoint_that_does_not_fit_are_refused) {
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    Net net;
    Tables tables(net);
    ConnectedRows rows(tables, comm, 7, kLanes, kAdagrad);
    const auto state = saved_rows(rows.rows(), RowShard::Which::All);
    const Json facts = rows.facts();
    const auto refused = [&](store::NamedTensors other, const Json& of, const char* text) {
      try {
        rows.restore({std::move(other), of}, {}, RowParts::All);
        ADD_FAILURE() << text;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
    };
    auto fewer = state;
    fewer.pop_back();
    refused(fewer, facts, "0 of the 31 rows of 'items.weight/sum'");
    auto renamed = state;
    renamed[0].name = "users.weight[1of1]";
    refused(renamed, facts, "rows that are called 'users.weight'");
    renamed[0].name = "user.weight";
    refused(renamed, facts, "expected the name of a table");
    renamed[0].name = "user.weight[2of1]";
    refused(renamed, facts, "expected the name of a table");
    auto cut = state;
    cut[0].tensor = cut[0].tensor.narrow(0, 0, 10);
    refused(cut, facts, "for 50 rows");
    Json other = facts;
    other["user"]["rows"] = 51;
    refused(state, other, "for 51 rows");
    other["user"]["rows"] = 50;
    other["user"]["dim"] = 4;
    refused(state, other, "has 50 rows of 4, but in the model it has 50 of 3");
    other["user"]["rows"] = "many";
    refused(state, other, "should be a whole number");
  });
}

TEST(Tables, report_bad_ids_by_table_id_and_example) {
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    struct One : torch::nn::Module {
      explicit One(BadIds bad)
          : user(register_module(
                "user", nn::Embedding(10, 2, nn::EmbeddingOptions{.bad_ids = bad, .replicate_up_to = 0}))) {}
      nn::Embedding user;
    };
    const auto looked_up = [&](BadIds bad, const torch::Tensor& ids) {
      One net(bad);
      Tables tables(net);
      ConnectedRows sharded(tables, comm, 1, 1, kAdagrad);
      const std::vector<Batch> batches = {Batch({{"user", ids}})};
      tables.fetch(batches);
      tables.begin_lane(0);
      const torch::Tensor rows = net.user(batches[0]["user"]);
      const torch::NoGradGuard no_grad;
      tables.end_lane();
      return std::pair(rows.detach(), net.user(torch::arange(10)));
    };
    const torch::Tensor ids = torch::tensor({3, -1, 10}, torch::kLong);
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr("'user' has 10 rows"), HasSubstr("id -1 in example 1")),
                 [&] { looked_up(BadIds::Error, ids); });
    const auto [clamped, all] = looked_up(BadIds::Clamp, ids);
    EXPECT_TRUE(clamped[1].equal(all[0]));
    EXPECT_TRUE(clamped[2].equal(all[9]));
    const auto [dropped, same] = looked_up(BadIds::Drop, ids);
    EXPECT_TRUE(dropped[0].equal(same[3]));
    EXPECT_EQ(dropped[1].abs().sum().item<double>(), 0);
    EXPECT_TRUE(looked_up(BadIds::Error, torch::tensor({3.0, 4.0})).first[1].equal(same[4]))
        << "whole floats";
    expect_error(ErrorKind::InvalidArgument, HasSubstr("whole numbers"),
                 [&] { looked_up(BadIds::Error, torch::tensor({3.5})); });
    expect_error(ErrorKind::InvalidArgument, HasSubstr("whole numbers"),
                 [&] { looked_up(BadIds::Error, torch::tensor({3e9F})); });
    One net(BadIds::Error);
    Tables tables(net);
    ConnectedRows sharded(tables, comm, 1, 1, kAdagrad);
    const std::vector<Batch> without = {Batch({{"usr", ids}, {"label", ids}})};
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr("of the column 'user', which the batch does not have"),
                       HasSubstr("The batch has: usr, label")),
                 [&] { tables.fetch(without); });
  });
}

TEST(Tables, say_what_forward_must_not_do) {
  with_ranks("inproc", 1, [&](comm::Communicator& comm) {
    Net net;
    Tables tables(net);
    ConnectedRows rows(tables, comm, 7, 1, kAdagrad);
    expect_error(ErrorKind::InvalidArgument, HasSubstr("only be trained by a Trainer"),
                 [&] { net.forward(batch_of(1, 0)); });
    const std::vector<Batch> batches = {batch_of(1, 0)};
    tables.fetch(batches);
    tables.begin_lane(0);
    expect_error(ErrorKind::InvalidArgument, HasSubstr("EmbeddingOptions::columns"),
                 [&] { net.user(torch::arange(50)); });
    // Other lookups of ids in the columns are allowed, and count.
    const torch::Tensor again = net.user(batches[0]["user"].flip(0));
    EXPECT_TRUE(again.flip(0).equal(net.user(batches[0]["user"])));
    again.sum().backward();
    tables.end_lane();
    rows.receive(5, 0);
    rows.begin_step(0);
    EXPECT_GT(rows.squares(), 0);
    expect_error(
        ErrorKind::InvalidArgument, HasSubstr("the column 'items', which the batch does not have"), [&] {
          const std::vector<Batch> without = {Batch(
              {{"user", torch::zeros({1}, torch::kLong)}, {"friend", torch::zeros({1}, torch::kLong)}})};
          tables.fetch(without);
        });
  });
}

TEST(EmbeddingBag, pools_lists_like_torch) {
  torch::manual_seed(5);
  const torch::Tensor ids = torch::tensor({{4, 2, -1}, {-1, -1, -1}, {0, 0, 9}}, torch::kLong);
  const torch::Tensor weights = torch::rand({3, 3});
  for (const int64_t replicate : {0, 1000}) {
    for (const nn::Pooling pooling : {nn::Pooling::Sum, nn::Pooling::Mean, nn::Pooling::Max}) {
      nn::EmbeddingBag bag(10, 2, pooling, nn::EmbeddingOptions{.replicate_up_to = replicate});
      const torch::NoGradGuard no_grad;
      const torch::Tensor pooled = bag(ids);
      const torch::Tensor rows = static_cast<nn::EmbeddingImpl&>(*bag).forward(torch::arange(10));
      const auto list = [&](std::vector<int64_t> of) {
        const torch::Tensor taken = rows.index_select(0, torch::tensor(of, torch::kLong));
        if (pooling == nn::Pooling::Sum) return taken.sum(0);
        return pooling == nn::Pooling::Mean ? taken.mean(0) : std::get<0>(taken.max(0));
      };
      EXPECT_TRUE(pooled[0].allclose(list({4, 2})));
      EXPECT_EQ(pooled[1].abs().sum().item<double>(), 0);
      EXPECT_TRUE(pooled[2].allclose(list({0, 0, 9})));
      if (pooling == nn::Pooling::Sum)
        EXPECT_TRUE(bag(ids, weights)[0].allclose(rows[4] * weights[0][0] + rows[2] * weights[0][1]));
      else
        expect_error(ErrorKind::InvalidArgument, HasSubstr("Pooling::Sum"), [&] { bag(ids, weights); });
      // Lists in the last of more dimensions, as a ragged table with several columns has them.
      EXPECT_TRUE(bag(torch::stack({ids, ids.flip(0)}, 1)).equal(torch::stack({pooled, pooled.flip(0)}, 1)));
      EXPECT_EQ(bag(ids.unsqueeze(1).narrow(2, 0, 0)).sizes().vec(), (std::vector<int64_t>{3, 1, 2}));
    }
  }
}

}  // namespace
}  // namespace tutti::embedding::connected_rows_test
