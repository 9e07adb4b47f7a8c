// Trains two nets in turn, as in a GAN: a generator learns to turn noise into points of a ring, a
// discriminator to distinguish them from real points of the ring. One loop keeps one checkpoint of both.
#include <numbers>
#include <tutti/tutti.h>

#include <torch/torch.h>

namespace nn = torch::nn;

namespace {

nn::Sequential small_net(int64_t outputs) {
  return nn::Sequential{nn::Linear(2, 32), nn::Tanh(), nn::Linear(32, 32), nn::Tanh(),
                        nn::Linear(32, outputs)};
}

// The random numbers depend only on seed, step and lane, so a resumed run draws the same ones.
struct Draw {
  Draw(int64_t seed, int64_t step, int64_t lane)
      : random(at::make_generator<at::CPUGeneratorImpl>(
            static_cast<uint64_t>(seed * 1'000'003 + step * 1'009 + lane))) {}
  torch::Tensor noise(int64_t rows) { return torch::randn({rows, 2}, random); }
  torch::Tensor ring(int64_t rows) {
    const torch::Tensor angle = torch::rand({rows}, random) * (2 * std::numbers::pi);
    return torch::stack({angle.cos(), angle.sin()}, 1);
  }
  at::Generator random;
};

torch::Tensor says(nn::Sequential& net, const torch::Tensor& points, double label) {
  const torch::Tensor logits = net->forward(points);
  return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, label));
}

}  // namespace

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Trains a generator of points on a ring against a discriminator.";
  program.defaults.training.batch = 64;
  program.defaults.training.steps = 2000;
  double rate = 1e-3;
  program.add_flags = [&](tutti::FlagSet& flags) { tutti::add_learning_rate(flags, rate); };

  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    nn::Sequential g = small_net(2);
    nn::Sequential d = small_net(1);
    tutti::Parameters params_g(*g);
    tutti::Parameters params_d(*d);
    // One connection, and a separate group for each optimiser.
    const tutti::Group all = tutti::connect(ctx);
    const auto adam = torch::optim::AdamOptions(rate).betas({0.5, 0.9});
    tutti::DistributedOptimizer opt_g(ctx, params_g, adam, {.group = all.split(0)});
    tutti::DistributedOptimizer opt_d(ctx, params_d, adam,
                                      {.group = all.split(0), .seed = ctx.config().training.seed + 1});
    tutti::Loop loop(ctx, {{"g", params_g, opt_g}, {"d", params_d, opt_d}});

    const int64_t batch = ctx.config().training.batch;
    while (loop.goes_on()) {
      for (int64_t lane = opt_d.lanes().begin; lane < opt_d.lanes().end; ++lane) {
        Draw draw(ctx.config().training.seed, loop.step(), lane);
        opt_d.zero_grad();
        const torch::Tensor made = g->forward(draw.noise(batch)).detach();
        opt_d.backward(says(d, draw.ring(batch), 1) + says(d, made, 0), batch);
      }
      opt_d.step();
      for (int64_t lane = opt_g.lanes().begin; lane < opt_g.lanes().end; ++lane) {
        Draw draw(ctx.config().training.seed, loop.step(), lane);
        opt_g.zero_grad();
        opt_g.backward(says(d, g->forward(draw.noise(batch)), 1), batch);
      }
      opt_g.step();  // this step counts for the loop
    }

    const torch::NoGradGuard no_grad;
    const torch::Tensor distance = g->forward(Draw(ctx.config().training.seed, -1, 0).noise(1000)).norm(2, 1);
    if (ctx.is_chief())
      fmt::print("distance from the centre {:.3f} ± {:.3f}\nweights {} {}\n", distance.mean().item<double>(),
                 distance.std().item<double>(), params_g.sha256(), params_d.sha256());
  });
}
