// Predicts how many stars a user gives a movie, by factorising the matrix of ratings. See README.md in this
// folder.
#include <tutti/tutti.h>

#include <torch/torch.h>

#include "examples/11_movies/ratings.h"

namespace {

// The row of a user or a movie has a bias, and then the vector.
struct Net : torch::nn::Module {
  Net(const example::Ratings& ratings, int64_t dim) {
    const tutti::nn::EmbeddingOptions sharded{.replicate_up_to = 0};  // (1)
    user = register_module("user", tutti::nn::Embedding(ratings.users, 1 + dim, sharded));
    movie = register_module("movie", tutti::nn::Embedding(ratings.movies, 1 + dim, sharded));
    mean = register_parameter("mean", torch::full({1}, 3.5));
  }

  torch::Tensor forward(const tutti::Batch& batch) {
    const torch::Tensor u = user(batch["user"]);
    const torch::Tensor m = movie(batch["movie"]);
    const torch::Tensor match = (u.slice(1, 1) * m.slice(1, 1)).sum(1);
    return mean + u.select(1, 0) + m.select(1, 0) + match;
  }

  tutti::nn::Embedding user{nullptr};
  tutti::nn::Embedding movie{nullptr};
  torch::Tensor mean;
};

}  // namespace

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Predicts ratings of movies by factorising their matrix.";
  program.defaults.training.lanes = 2;
  program.defaults.training.batch = 500;
  program.defaults.training.epochs = 10;
  program.defaults.compute.threads = 1;
  int64_t dim = 32;
  double rate = 0.03;
  double decay = 3e-4;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--dim", dim, "the numbers of a user and of a movie, besides their biases");
    flags.at_least("--dim", 1);
    tutti::add_learning_rate(flags, rate);
    flags.add("--decay", decay, "weight decay");
    flags.scope(tutti::FlagScope::Model, {"--dim"});
  };

  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const example::Ratings ratings = example::ratings(ctx.config().data.path);  // (2)
    const auto net = std::make_shared<Net>(ratings, dim);
    const auto loss = [](Net& model, const tutti::Batch& batch) -> tutti::LossOutput {
      const torch::Tensor stars = model.forward(batch);
      return {torch::mse_loss(stars, batch["stars"]), stars};
    };
    tutti::Trainable model = tutti::make_trainable(net, loss);
    model.predict = [net](const tutti::Batch& batch) { return net->forward(batch).clamp(1, 5); };
    tutti::Trainer trainer(ctx, model, torch::optim::AdagradOptions(rate).weight_decay(decay));
    trainer.fit(ratings.train.shuffle());
    const auto values =
        trainer.evaluate(ratings.test, {tutti::metrics::rmse("stars"), tutti::metrics::auc("liked")});
    if (!ctx.is_chief()) return;
    const auto auc = values.find("auc");  // it has no value if all test ratings are good, or none
    fmt::print("test: RMSE {:.4f}, AUC of at least 4 stars {}\n", values.at("rmse"),
               auc == values.end() ? "unknown" : fmt::format("{:.4f}", auc->second));
  });
}
