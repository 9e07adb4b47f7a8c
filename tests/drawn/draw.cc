#include "tests/drawn/draw.h"

#include <algorithm>

#include <fmt/format.h>

namespace tutti::testing {
namespace {

const char* name_of(Layer layer) {
  switch (layer) {
    case Layer::Linear:
      return "linear";
    case Layer::Tanh:
      return "tanh";
    case Layer::BatchNorm:
      return "batch norm";
    case Layer::LayerNorm:
      return "layer norm";
    case Layer::Dropout:
      return "dropout";
    case Layer::Shared:
      return "shared linear";
    case Layer::Frozen:
      return "frozen linear";
    case Layer::Double:
      return "linear in float64";
  }
  return "?";
}

const char* name_of(Operator operation) {
  constexpr const char* kNames[] = {"nothing",    "gelu",      "mish",       "pow",         "atan2",
                                    "softmax",    "logsumexp", "cumsum",     "var",         "norm",
                                    "group norm", "conv1d",    "avg_pool1d", "interpolate", "attention",
                                    "gru",        "index_add", "remainder"};
  return kNames[static_cast<size_t>(operation)];
}

constexpr auto kOperators = static_cast<int64_t>(Operator::Remainder);

}  // namespace

Draw::Draw(uint64_t number) : number(number) {
  Dice dice(number);
  examples = dice.between(9, 60);
  input = dice.one_of<std::string>({"vector", "vector", "ids"});
  width = dice.between(1, 9);
  classes = dice.between(2, 4);
  shuffled = !dice.one_in(3);

  lanes = dice.between(1, 8);
  batch = dice.between(1, 5);
  // Ensures at least one step per epoch.
  while (lanes * batch > examples) --lanes;
  drop_remainder = !dice.one_in(3);
  precision = dice.one_in(4) ? "bf16" : "fp32";
  layout = dice.one_of<std::string>({"auto", "contiguous"});

  hidden = dice.between(1, 11);
  const int64_t depth = dice.between(1, 5);
  for (int64_t i = 0; i < depth; ++i) {
    const auto layer = static_cast<Layer>(dice.between(0, 7));
    // Batch norm needs two examples in each lane. LibTorch 1.13 has no layer norm of bfloat16 with weights in
    // float32, and its autocast does not support float64.
    if (layer == Layer::BatchNorm && (batch < 2 || !drop_remainder)) continue;
    if ((layer == Layer::Double || layer == Layer::LayerNorm) && precision == "bf16") continue;
    layers.push_back(layer);
  }

  optimizer =
      dice.one_of<std::string>({"sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop"});
  warm_up = dice.one_in(3);
  clip_norm = dice.one_in(3) ? 0.5 : 0;
  evaluates = dice.one_in(2);
  own_loop = dice.one_in(4);
  fits = own_loop ? 1 : dice.between(1, 3);
  steps = dice.between(2, 9);
  stop_after = dice.one_in(5) ? dice.between(1, steps) : 0;
  decays_weights = dice.one_in(6);
  kernels = "libtorch";
  operators.assign(layers.size(), Operator::None);
  if (dice.one_in(3)) *this = with_operators();
}

Draw Draw::with_operators() const {
  Draw draw = *this;
  Dice dice(number + (uint64_t{1} << 33));
  draw.kernels = "same";
  if (draw.layers.empty()) draw.layers.push_back(Layer::Linear);
  draw.operators.clear();
  for (size_t i = 0; i < draw.layers.size(); ++i) {
    const auto operation = static_cast<Operator>(dice.between(1, kOperators));
    // Autocast makes some operands of a recurrent layer short, and not all.
    const bool fits = operation != Operator::Recurrent || draw.precision != "bf16";
    draw.operators.push_back(fits ? operation : Operator::Gelu);
  }
  return draw;
}

std::vector<std::string> Draw::flags() const {
  return {"--lanes",
          std::to_string(lanes),
          "--batch",
          std::to_string(batch),
          "--steps",
          std::to_string(steps),
          "--precision",
          precision,
          "--layout",
          layout,
          "--threads",
          "1",
          "--device",
          "cpu",
          "--kernels",
          kernels,
          drop_remainder ? "--drop-remainder" : "--no-drop-remainder"};
}

std::string Draw::describe() const {
  std::string chain;
  for (size_t i = 0; i < layers.size(); ++i) {
    chain += fmt::format(", {}", name_of(layers[i]));
    if (operators[i] != Operator::None) chain += fmt::format(", {}", name_of(operators[i]));
  }
  return fmt::format(
      "draw {}: {} examples of {} {} ({}), {} classes{} (hidden {}); {}{}{}{}; {}{} of {} steps{}; lanes {}, "
      "batch {}{}, {}, {}, {} kernels",
      number, examples, width, input, shuffled ? "shuffled" : "in order", classes, chain, hidden, optimizer,
      warm_up ? ", warm-up" : "", clip_norm > 0 ? ", clipped" : "", decays_weights ? ", decay by a hook" : "",
      own_loop ? "own loop" : fmt::format("{} fits", fits), evaluates ? ", evaluated" : "", steps,
      stop_after > 0 ? fmt::format(", stopped by a hook after {}", stop_after) : "", lanes, batch,
      drop_remainder ? "" : ", remainder kept", precision, layout, kernels);
}

}  // namespace tutti::testing
