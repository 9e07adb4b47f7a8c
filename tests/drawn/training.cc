#include "tests/drawn/training.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <tutti/tutti.h>

#include <torch/torch.h>

namespace tutti::testing {
namespace {

namespace nn = torch::nn;

class DrawnNet : public nn::Module {
 public:
  explicit DrawnNet(const Draw& draw) {
    if (draw.input == "ids") {
      const auto table = register_module("table", nn::Embedding(7, draw.hidden));
      append([table](const torch::Tensor& x) { return table->forward(x).mean(1); });
    } else {
      append_linear("first", draw.width, draw.hidden);
    }
    for (size_t i = 0; i < draw.layers.size(); ++i) {
      append(draw.layers[i], draw.hidden);
      append(draw.operators[i], draw.hidden);
    }
    append_linear("last", draw.hidden, draw.classes);
  }

  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : layers_) x = layer(x);
    return x;
  }

 private:
  using Function = std::function<torch::Tensor(const torch::Tensor&)>;

  void append(Function function) { layers_.push_back(std::move(function)); }
  std::shared_ptr<nn::LinearImpl> append_linear(const std::string& name, int64_t in, int64_t out) {
    const auto linear = register_module(name, nn::Linear(in, out));
    append([linear](const torch::Tensor& x) { return linear->forward(x); });
    return linear;
  }

  void append(Layer layer, int64_t width) {
    const std::string name = "layer" + std::to_string(layers_.size());
    switch (layer) {
      case Layer::Linear:
        append_linear(name, width, width);
        break;
      case Layer::Tanh:
        append([](const torch::Tensor& x) { return torch::tanh(x); });
        break;
      case Layer::Dropout:
        append([this](const torch::Tensor& x) { return torch::dropout(x, 0.4, is_training()); });
        break;
      case Layer::Frozen:
        for (auto& parameter : append_linear(name, width, width)->parameters())
          parameter.set_requires_grad(false);
        break;
      case Layer::BatchNorm: {
        const auto norm = register_module(name, nn::BatchNorm1d(width));
        append([norm](const torch::Tensor& x) { return norm->forward(x); });
        break;
      }
      case Layer::LayerNorm: {
        const auto norm = register_module(name, nn::LayerNorm(nn::LayerNormOptions({width})));
        append([norm](const torch::Tensor& x) { return norm->forward(x); });
        break;
      }
      case Layer::Shared: {
        const auto linear = register_module(name, nn::Linear(width, width));
        append([linear](const torch::Tensor& x) { return linear->forward(torch::tanh(linear->forward(x))); });
        break;
      }
      case Layer::Double: {
        const auto linear = register_module(name, nn::Linear(width, width));
        linear->to(torch::kDouble);
        append([linear](const torch::Tensor& x) {
          return linear->forward(x.to(torch::kDouble)).to(torch::kFloat);
        });
        break;
      }
    }
  }

  // Appends the function of numbers between -1 and 1, [examples, width].
  void append_bounded(Function function) {
    append([function = std::move(function)](const torch::Tensor& x) {
      return function(torch::tanh(x.to(torch::kFloat))).to(torch::kFloat);
    });
  }

  void append(Operator operation, int64_t width) {
    using torch::Tensor;
    const std::string name = "operator" + std::to_string(layers_.size());
    switch (operation) {
      case Operator::None:
        break;
      case Operator::Gelu:
        append_bounded([](const Tensor& x) { return torch::gelu(x); });
        break;
      case Operator::Mish:
        append_bounded([](const Tensor& x) { return torch::mish(x) + torch::softplus(x) + torch::elu(x); });
        break;
      case Operator::Power:
        append_bounded([](const Tensor& x) { return torch::pow(x.abs() + 0.1, 1.3) + torch::expm1(x); });
        break;
      case Operator::Angle:
        append_bounded([](const Tensor& x) { return torch::atan2(torch::sin(x), x.flip(1) + 2); });
        break;
      case Operator::Softmax:
        append_bounded([](const Tensor& x) { return torch::softmax(x, 1) + torch::log_softmax(x, 1); });
        break;
      case Operator::LogSumExp:
        append_bounded([](const Tensor& x) { return x - torch::logsumexp(x, {1}, true); });
        break;
      case Operator::Cumsum:
        append_bounded([width](const Tensor& x) { return x.cumsum(1) / width; });
        break;
      case Operator::Moments:
        append_bounded([](const Tensor& x) {
          return (x - x.mean(1, true)) / (x.var(1, /*unbiased=*/false, /*keepdim=*/true) + 0.1).sqrt();
        });
        break;
      case Operator::Norm:
        append_bounded([](const Tensor& x) { return x / (x.norm(2, {1}, true) + 0.1); });
        break;
      case Operator::GroupNorm: {
        const auto norm = register_module(name, nn::GroupNorm(1, width));
        append_bounded([norm](const Tensor& x) { return norm->forward(x); });
        break;
      }
      case Operator::Convolution: {
        const auto convolution = register_module(name, nn::Conv1d(nn::Conv1dOptions(1, 3, 3).padding(1)));
        append_bounded([convolution](const Tensor& x) {
          return convolution->forward(x.unsqueeze(1)).to(torch::kFloat).mean(1);
        });
        break;
      }
      case Operator::AveragePool:
        append_bounded([](const Tensor& x) { return torch::avg_pool1d(x.unsqueeze(1), 3, 1, 1).squeeze(1); });
        break;
      case Operator::Resize:
        append_bounded([width](const Tensor& x) {
          const Tensor image = x.unsqueeze(1).unsqueeze(1).expand({-1, 1, 2, -1});
          return torch::upsample_bilinear2d(image, at::IntArrayRef({3, width}), false, {}, {}).mean({1, 2});
        });
        break;
      case Operator::Attention:  // of features to features
        append_bounded([](const Tensor& x) {
          const Tensor columns = x.unsqueeze(2);
          return torch::bmm(torch::softmax(torch::bmm(columns, columns.transpose(1, 2)), 2), columns)
              .squeeze(2);
        });
        break;
      case Operator::Recurrent: {
        const auto gru = register_module(name, nn::GRU(nn::GRUOptions(1, 2).batch_first(true)));
        append_bounded([gru](const Tensor& x) { return std::get<0>(gru->forward(x.unsqueeze(2))).mean(2); });
        break;
      }
      case Operator::IndexAdd:
        append_bounded([width](const Tensor& x) {
          return torch::zeros_like(x).index_add(1, torch::arange(width).div(2, "floor"), x);
        });
        break;
      case Operator::Remainder:
        append_bounded([](const Tensor& x) { return torch::remainder(x, 0.37) + torch::fmod(x, 0.7); });
        break;
    }
  }

  std::vector<Function> layers_;
};

data::Feed make_feed(const Draw& draw) {
  torch::manual_seed(draw.number);
  const torch::Tensor x = draw.input == "ids" ? torch::randint(7, {draw.examples, draw.width}, torch::kInt64)
                                              : torch::randn({draw.examples, draw.width});
  const torch::Tensor label = torch::randint(draw.classes, {draw.examples}, torch::kInt64);
  const data::Feed feed(data::from_tensors({{"x", x}, {"label", label}}));
  return draw.shuffled ? feed.shuffle() : feed;
}

OptimizerOptions optimizer_of(const Draw& draw) {
  if (draw.optimizer == "adam") return torch::optim::AdamOptions(0.02).amsgrad(true);
  if (draw.optimizer == "adamw") return torch::optim::AdamWOptions(0.02).weight_decay(0.1);
  if (draw.optimizer == "adagrad") return torch::optim::AdagradOptions(0.05);
  if (draw.optimizer == "rmsprop") return torch::optim::RMSpropOptions(0.01).momentum(0.5);
  torch::optim::SGDOptions sgd(0.1);
  if (draw.optimizer != "sgd") sgd.momentum(0.9).weight_decay(0.01);
  return sgd.nesterov(draw.optimizer == "nesterov");
}

class DrawnHook final : public Hook {
 public:
  explicit DrawnHook(const Draw& draw) : draw_(draw) {}

  void before_step(Training& training) override {
    if (!draw_.decays_weights) return;
    const torch::NoGradGuard no_grad;
    for (const auto& view : training.parameters.trained()) torch::Tensor(view.tensor).mul_(0.99);
  }
  void after_step(Training& training, const StepResult&) override {
    if (draw_.stop_after > 0 && training.step == draw_.stop_after) training.stop_reason = "it was drawn";
  }

 private:
  const Draw draw_;
};

// Counts forward passes and causes the accident at the right one.
class Fate {
 public:
  Fate(const Context& context, const Accident& accident)
      : accident_(accident),
        threatens_(!accident.mark.empty() && context.rank() == accident.rank &&
                   !std::filesystem::exists(accident.mark)) {}

  void pass() {
    if (!threatens_ || ++passes_ != accident_.pass) return;
    std::ofstream(accident_.mark) << "it has happened";
    std::raise(accident_.signal);
  }

 private:
  const Accident accident_;
  const bool threatens_;
  int64_t passes_ = 0;
};

LossOutput loss_of(DrawnNet& net, const Batch& batch) {
  const torch::Tensor prediction = net.forward(batch["x"]);
  return {torch::cross_entropy_loss(prediction.to(torch::kFloat), batch["label"]), prediction};
}

void train_by_trainer(const Context& context, const Draw& draw, std::shared_ptr<DrawnNet> net,
                      std::shared_ptr<Fate> fate) {
  const data::Feed feed = make_feed(draw);
  TrainerOptions options{.clip_norm = draw.clip_norm};
  if (draw.warm_up) options.learning_rate = schedules::warm_up(0.001, 5, schedules::constant(0.02));
  Trainer trainer(
      context, net, optimizer_of(draw),
      [fate](DrawnNet& net, const Batch& batch) {
        fate->pass();
        return loss_of(net, batch);
      },
      options);
  trainer.add_hook(std::make_unique<DrawnHook>(draw));
  for (int64_t fit = 0; fit < draw.fits; ++fit) trainer.fit(feed);
  if (!draw.evaluates) return;
  const auto cross_entropy = [](const torch::Tensor& prediction, const Batch& batch) {
    return torch::cross_entropy_loss(prediction.to(torch::kFloat), batch["label"], {}, at::Reduction::None);
  };
  trainer.evaluate(feed, {metrics::accuracy("label"), metrics::mean("loss", cross_entropy)});
}

void train_by_hand(const Context& context, const Draw& draw, std::shared_ptr<DrawnNet> net,
                   std::shared_ptr<Fate> fate) {
  const data::Feed feed = make_feed(draw);
  Parameters parameters(*net);
  DistributedOptimizer optimizer(context, parameters, optimizer_of(draw), {.clip_norm = draw.clip_norm});
  Loop loop(context, parameters, optimizer);
  loop.add_hook(std::make_unique<DrawnHook>(draw));
  const data::Sampler sampler(feed.size(), {.order = feed.order(),
                                            .seed = context.config().training.seed,
                                            .lanes = optimizer.all_lanes(),
                                            .batch = draw.batch,
                                            .drop_remainder = draw.drop_remainder});
  std::vector<int64_t> examples;
  while (loop.goes_on()) {
    for (int64_t lane = optimizer.lanes().begin; lane < optimizer.lanes().end; ++lane) {
      sampler.examples(loop.batch(), lane, examples);
      const Batch batch = feed.read(examples);
      optimizer.zero_grad();
      if (batch.size() == 0) {
        optimizer.add_lane(0);
        continue;
      }
      fate->pass();
      const LossOutput output = loss_of(*net, batch);
      loop.observe(lane, batch, output);
      optimizer.backward(output.loss, batch.size());
    }
    optimizer.step();
  }
}

}  // namespace

void train(const Context& context, const Draw& draw, const Accident& accident) {
  torch::manual_seed(draw.number);
  const auto net = std::make_shared<DrawnNet>(draw);
  const auto fate = std::make_shared<Fate>(context, accident);
  if (draw.own_loop) {
    train_by_hand(context, draw, net, fate);
  } else {
    train_by_trainer(context, draw, net, fate);
  }
}

}  // namespace tutti::testing
