#include "tools/layer_times.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include <torch/torch.h>

#include "tutti/base/torch_compat.h"

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;
using Layer = std::function<torch::Tensor()>;

double seconds_of(const Layer& layer, std::optional<torch::ScalarType> precision) {
  const auto begin = Clock::now();
  const torch::Tensor output = [&] {
    const compat::AutocastScope scope(torch::kCPU, precision);
    return layer();
  }();
  output.sum().backward();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Alternates between both formats, so that other load affects both, and takes the fastest round of each. The
// first round also chooses and compiles the kernels.
LayerTimes time_layer(const std::string& name, const Layer& layer) {
  constexpr int kRounds = 20;
  constexpr std::chrono::milliseconds kMost{300};
  constexpr double kNone = std::numeric_limits<double>::infinity();
  LayerTimes times{.layer = name, .fp32 = kNone, .bf16 = kNone};
  const auto begin = Clock::now();
  for (int round = 0; round < kRounds && (round < 2 || Clock::now() - begin < kMost); ++round) {
    times.fp32 = std::min(times.fp32, seconds_of(layer, std::nullopt));
    times.bf16 = std::min(times.bf16, seconds_of(layer, torch::kBFloat16));
  }
  return times;
}

}  // namespace

std::vector<LayerTimes> time_layers() {
  torch::nn::Linear linear(512, 512);
  torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(32, 64, 3).padding(1));
  const torch::Tensor rows = torch::rand({128, 512}).requires_grad_(true);
  const torch::Tensor images = torch::rand({8, 32, 16, 16}).requires_grad_(true);
  return {time_layer("a linear layer (128 rows, 512 to 512)", [&] { return linear->forward(rows); }),
          time_layer("a convolution (8 images, 16x16, 32 to 64 channels)",
                     [&] { return convolution->forward(images); })};
}

}  // namespace tutti
