// The program of ratings_test: reads ratings from tables of integers, lists of integers and categories, and
// trains embeddings of them.
#include <memory>
#include <tutti/tutti.h>

#include <torch/torch.h>

#include "tests/misfortune.h"

namespace ratings_program {
namespace {

namespace data = tutti::data;

struct Net : torch::nn::Module {
  Net(int64_t users, int64_t buckets)
      : user(register_module("user", tutti::nn::Embedding(users, 1))),
        seen(register_module("seen", tutti::nn::EmbeddingBag(users, 1))),
        city(register_module("city", tutti::nn::Embedding(buckets + 1, 4, sharded()))),
        dense(register_module("dense", torch::nn::Linear(1 + 2 + 8 + 2, 1))) {}

  static tutti::nn::EmbeddingOptions sharded() { return {.replicate_up_to = 0}; }

  torch::Tensor forward(const tutti::Batch& batch) {
    return dense(torch::cat({user(batch["user"]).flatten(1), seen(batch["seen"]).flatten(1),
                             city(batch["city"]).flatten(1), batch["numbers"]},
                            1))
        .squeeze(1);
  }

  tutti::nn::Embedding user;
  tutti::nn::EmbeddingBag seen;
  tutti::nn::Embedding city;
  torch::nn::Linear dense;
};

}  // namespace

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Trains embeddings of tables of integers, for ratings_test.";
  int64_t users = 1000;
  int64_t buckets = 50;
  std::string misfortune;
  int64_t await_world = 0;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--users", users, "the rows of the embeddings of users");
    flags.add("--buckets", buckets, "the buckets of cities");
    flags.add("--misfortune", misfortune, "what befalls which worker at which step");
    flags.add("--await-world", await_world, "how many workers are awaited before the last step");
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const data::TextFormat bare = {.header = false, .ids = data::Ids::RowNumbers};
    const data::Schema schema = {
        {"stars", {"ratings.txt", bare, data::float32(), {"1"}}},
        {"user", {"ratings.txt", bare, data::int64(), {"2"}}},
        {"numbers", {"ratings.txt", bare, data::float32(), data::numbered(3, 4)}},
        {"city", {"ratings.txt", bare, data::categories(buckets, {.missing = buckets}), {"6", "5"}}},
        {"seen", {"seen.csv", data::ragged(data::int64()), {"liked", "saved"}}},
    };
    const auto loss = [](Net& net, const tutti::Batch& batch) -> tutti::LossOutput {
      return {torch::mse_loss(net.forward(batch), batch["stars"].squeeze(1)), {}};
    };
    tutti::Trainer trainer(ctx, tutti::make_trainable(std::make_shared<Net>(users, buckets), loss),
                           torch::optim::SGDOptions(0.05));
    trainer.add_hook(std::make_unique<tutti::testing::Misfortune>(misfortune));
    trainer.add_hook(std::make_unique<tutti::testing::AwaitWorld>(await_world));
    trainer.fit(data::distributed_feed(ctx, ctx.config().data.path, schema).shuffle());
  });
}

}  // namespace ratings_program
