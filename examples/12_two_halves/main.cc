// Learns y = e^x with both halves of the network on one task, on several tasks that share the examples, or
// with each half on a different task. See README.md in this folder.
#include <tutti/tutti.h>

#include <torch/torch.h>

namespace {

namespace nn = torch::nn;

constexpr int64_t kPoints = 1000;
constexpr int64_t kHidden = 16;

nn::Sequential front_half() { return nn::Sequential(nn::Linear(1, kHidden), nn::Sigmoid()); }
nn::Sequential back_half() { return nn::Sequential(nn::Linear(kHidden, 1)); }

struct Whole : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return back->forward(front->forward(x)); }

  nn::Sequential front = register_module("front", front_half());
  nn::Sequential back = register_module("back", back_half());
};

tutti::data::Feed exponential() {
  const torch::Tensor x = torch::linspace(-1, 1, kPoints).unsqueeze(1);
  return tutti::data::Feed(tutti::data::from_tensors({{"x", x}, {"y", x.exp()}}));
}

void print_hashes(const std::string& front, const std::string& back) {
  fmt::print("front {}\nback  {}\n", front, back);
}

void train_whole(tutti::Context& ctx, const tutti::OptimizerOptions& sgd) {
  const auto net = std::make_shared<Whole>();
  tutti::Trainer trainer(ctx, net, sgd, [](Whole& whole, const tutti::Batch& batch) {
    return torch::mse_loss(whole.forward(batch["x"]), batch["y"]);
  });
  trainer.fit(exponential().shuffle());
  if (ctx.is_chief())
    print_hashes(tutti::Parameters(*net->front).sha256(), tutti::Parameters(*net->back).sha256());
}

void serve_back_half(tutti::Context& ctx, const tutti::OptimizerOptions& sgd) {
  front_half();  // draws the same random numbers as a task with both halves
  tutti::ModuleServer server(ctx);
  server.add("back", back_half(), sgd);
  server.join();
}

// Makes the steps of the back half together with the steps of the front half.
class StepsOfBack final : public tutti::Hook {
 public:
  explicit StepsOfBack(const tutti::RemoteModule& back) : back_(back) {}
  void before_step(tutti::Training&) override { back_.zero_grad(); }
  void after_step(tutti::Training&, const tutti::StepResult&) override { back_.step(); }

 private:
  tutti::RemoteModule back_;
};

void train_front_half(tutti::Context& ctx, const tutti::Group& alone, const tutti::OptimizerOptions& sgd) {
  tutti::RemoteModule back(ctx, "/job:worker/task:1", "back");
  tutti::Trainer trainer(ctx, front_half(), sgd,
                         [back](nn::SequentialImpl& front, const tutti::Batch& batch) mutable {
                           return torch::mse_loss(back.forward(front.forward(batch["x"])), batch["y"]);
                         },
                         {.group = alone});
  trainer.state("back", tutti::remote_state(back));  // checkpoints have both halves
  trainer.add_hook(std::make_unique<StepsOfBack>(back));
  trainer.fit(exponential().shuffle());
  print_hashes(trainer.parameters().sha256(), back.sha256());
  back.end();
}

}  // namespace

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Learns y = e^x with the halves of the network on one task, or on two.";
  program.defaults.training.batch = 50;
  program.defaults.training.steps = 600;
  program.defaults.compute.threads = 1;
  double rate = 0.2;
  bool halves = false;
  program.add_flags = [&](tutti::FlagSet& flags) {
    tutti::add_learning_rate(flags, rate);
    flags.add("--halves", halves,
              "of two workers, the first trains the front half and the second the back half");
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const tutti::OptimizerOptions sgd = torch::optim::SGDOptions(rate);
    if (!halves) return train_whole(ctx, sgd);
    if (ctx.world() != 2)
      tutti::fail(
          tutti::ErrorKind::InvalidArgument, "{}",
          ctx.config().exports.dir.empty()
              ? "--halves needs two workers: tutti run -n 2 -- two_halves --halves"
              : "a run with --halves cannot be exported: train without --halves, which gives the same "
                "weights");
    if (ctx.config().training.lanes > 1)
      tutti::fail(
          tutti::ErrorKind::InvalidArgument,
          "--halves trains in one lane, since the other half adds up the gradients of all lanes as they are");
    const tutti::Group alone = tutti::connect(ctx).split(ctx.rank());
    ctx.rank() == 0 ? train_front_half(ctx, alone, sgd) : serve_back_half(ctx, sgd);
  });
}
