// Learns y = e^x with a master whose workers do not know the model beforehand. See README.md in this folder.
#include <fstream>
#include <tutti/tutti.h>

#include <torch/torch.h>

#include "examples/04_in_graph/curve.h"

namespace {

constexpr int64_t kPoints = 1000;

// The computation, as a program that can be sent to other tasks.
constexpr const char* kProgram = R"(
def predict(w1, b1, w2, b2, x):
    return torch.matmul(torch.sigmoid(torch.matmul(x, w1) + b1), w2) + b2

def loss(w1, b1, w2, b2, x, y):
    prediction = predict(w1, b1, w2, b2, x)
    return torch.mean((prediction - y) ** 2), prediction
)";

// The parameters of the computation.
struct Parameters : torch::nn::Module {
  torch::Tensor w1 = register_parameter("w1", torch::rand({1, 16}));
  torch::Tensor b1 = register_parameter("b1", torch::rand({16}));
  torch::Tensor w2 = register_parameter("w2", torch::rand({16, 1}));
  torch::Tensor b2 = register_parameter("b2", torch::rand({1}));
};

tutti::data::Feed exponential() {
  const torch::Tensor x = torch::linspace(-1, 1, kPoints).unsqueeze(1);
  return tutti::data::Feed(tutti::data::from_tensors({{"x", x}, {"y", x.exp()}}));
}

class KeepLosses final : public tutti::Hook {
 public:
  explicit KeepLosses(std::vector<double>& losses) : losses_(losses) {}
  void after_step(tutti::Training&, const tutti::StepResult& result) override {
    if (result.examples > 0) losses_.push_back(result.loss());
  }

 private:
  std::vector<double>& losses_;
};

void train(tutti::Context& ctx, double rate, std::vector<double>& losses, std::vector<double>& fitted) {
  const auto net = std::make_shared<Parameters>();
  tutti::Trainer trainer(ctx, tutti::script_model(net, tutti::Script::from_text(kProgram)),
                         torch::optim::SGDOptions(rate));
  trainer.add_hook(std::make_unique<KeepLosses>(losses));
  trainer.fit(exponential().shuffle());
  if (!ctx.is_chief()) return;
  const torch::Tensor values = trainer.predict(exponential()).to(torch::kFloat64).contiguous();
  fitted.assign(values.data_ptr<double>(), values.data_ptr<double>() + values.numel());
}

// Makes the same steps in three calls each, between which a program may do anything.
void train_by_hand(tutti::Context& ctx, double rate, std::vector<double>& losses) {
  const auto model = tutti::script_model(std::make_shared<Parameters>(), tutti::Script::from_text(kProgram));
  if (!ctx.is_chief()) {
    tutti::follow_master(ctx, model);
    return;
  }
  tutti::Master master(ctx, model, torch::optim::SGDOptions(rate));
  const auto feed = exponential().shuffle();
  const tutti::data::Sampler sampler(feed.size(), {.order = feed.order(),
                                                   .seed = ctx.config().training.seed,
                                                   .lanes = master.workers(),
                                                   .batch = ctx.config().training.batch});
  std::vector<int64_t> examples;
  for (int64_t step = 0; step < ctx.config().training.steps; ++step) {
    for (int worker = 0; worker < master.workers(); ++worker) {
      sampler.examples(step, worker, examples);
      master.gradients(worker, {feed.read(examples)});
    }
    const auto mean = master.average();
    master.apply();
    losses.push_back(mean.loss());
  }
  fmt::print("weights {}\n", master.parameters().sha256());
}

}  // namespace

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Learns y = e^x, alone or as a master that sends the computations to its workers.";
  program.defaults.training.batch = 50;
  program.defaults.training.steps = 600;
  double rate = 0.2;
  bool by_hand = false;
  std::string curve;
  std::string against;
  std::string picture;
  program.add_flags = [&](tutti::FlagSet& flags) {
    tutti::add_learning_rate(flags, rate);
    flags.add("--by-hand", by_hand, "drive the workers without a Trainer: gradients, average, apply");
    flags.add("--curve", curve, "file for the losses, one line for each step");
    flags.add("--against", against, "file written by --curve in another run, to compare with");
    flags.add("--picture", picture, "SVG file for a plot of both curves and of the learnt function");
    flags.scope(tutti::FlagScope::Local, {"--curve", "--against", "--picture"});
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    std::vector<double> losses;
    std::vector<double> fitted;
    if (by_hand) {
      train_by_hand(ctx, rate, losses);
    } else {
      train(ctx, rate, losses, fitted);
    }
    if (!ctx.is_chief()) return;
    if (!curve.empty()) example::write_curve(curve, losses);
    if (!against.empty()) {
      const std::vector<double> other = example::read_curve(against);
      fmt::print("{}\n", example::compare(losses, other));
      if (!picture.empty()) example::draw(picture, losses, other, fitted);
    }
  });
}
