// Drawn digits must be worth learning: too hard for a linear model, but quickly learnt by a small
// convolutional network.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "examples/common/digits.h"
#include "tutti/data/batch_queue.h"

namespace example::digits_slow_test {
namespace {

namespace nn = torch::nn;
using tutti::data::BatchQueue;
using tutti::data::Digits;
using tutti::data::Feed;
using tutti::data::Sampler;

double accuracy(nn::Sequential& model, const Feed& feed) {
  const torch::NoGradGuard no_grad;
  const Sampler sampler(feed.size(), {.order = feed.order(), .batch = 500});
  BatchQueue queue(feed, sampler, {.end_step = sampler.steps_per_epoch()});
  int64_t right = 0;
  while (const auto batch = queue.next()) {
    right += model->forward((*batch)["image"]).argmax(1).eq((*batch)["label"]).sum().item<int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(feed.size());
}

void train(nn::Sequential& model, const Feed& feed, int64_t batch_size, int64_t steps) {
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  BatchQueue queue(feed, Sampler(feed.size(), {.order = feed.order(), .batch = batch_size}),
                   {.end_step = steps});
  while (const auto batch = queue.next()) {
    optimizer.zero_grad();
    nn::functional::cross_entropy(model->forward((*batch)["image"]), (*batch)["label"]).backward();
    optimizer.step();
  }
}

double accuracy_of_linear_model(int64_t steps) {
  torch::manual_seed(1);
  const Digits drawn = digits("");
  nn::Sequential linear(nn::Flatten(), nn::Linear(784, 10));
  train(linear, drawn.train().shuffle(), 100, steps);
  return accuracy(linear, drawn.test());
}

double accuracy_of_convolutional_network(int64_t steps) {
  torch::manual_seed(1);
  const Digits drawn = digits("");
  nn::Sequential network(nn::Conv2d(nn::Conv2dOptions(1, 32, 5).padding(2)), nn::ReLU(), nn::MaxPool2d(2),
                         nn::Conv2d(nn::Conv2dOptions(32, 64, 5).padding(2)), nn::ReLU(), nn::MaxPool2d(2),
                         nn::Flatten(), nn::Linear(3136, 500), nn::ReLU(), nn::Linear(500, 10));
  train(network, drawn.train().shuffle(), 50, steps);
  return accuracy(network, drawn.test().take(2000));
}

TEST(DrawnDigits, are_hard_for_a_linear_model_and_easy_for_a_convolutional_network) {
  EXPECT_LT(accuracy_of_linear_model(600), 0.85);
  EXPECT_GT(accuracy_of_convolutional_network(100), 0.88);
}

TEST(DrawnDigitsSoak, are_too_hard_for_a_linear_model) {
  const double reached = accuracy_of_linear_model(15 * 600);
  EXPECT_GT(reached, 0.70);
  EXPECT_LT(reached, 0.90);
}

TEST(DrawnDigitsSoak, are_soon_learnt_by_a_convolutional_network) {
  EXPECT_GT(accuracy_of_convolutional_network(600), 0.97);
}

}  // namespace
}  // namespace example::digits_slow_test
