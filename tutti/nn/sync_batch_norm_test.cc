#include "tutti/nn/sync_batch_norm.h"

#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/base/torch_compat.h"
#include "tutti/comm/test_ranks.h"

namespace tutti::nn::sync_batch_norm_test {
namespace {

using comm::testing::errors_of_ranks;
using comm::testing::with_ranks;
using ::testing::HasSubstr;
using torch::Tensor;
using torch::nn::BatchNormOptions;

constexpr int64_t kChannels = 3;

// Returns a pointer without ownership: the communicator belongs to the test.
// Returns the torch::nn::BatchNorm for this number of dimensions.
std::shared_ptr<torch::nn::Module> plain_norm(int64_t dims, const BatchNormOptions& options) {
  if (dims <= 3) return torch::nn::BatchNorm1d(options).ptr();
  if (dims == 4) return torch::nn::BatchNorm2d(options).ptr();
  return torch::nn::BatchNorm3d(options).ptr();
}

Tensor run_plain(torch::nn::Module& norm, const Tensor& x) {
  if (auto* one = norm.as<torch::nn::BatchNorm1d>()) return one->forward(x);
  if (auto* two = norm.as<torch::nn::BatchNorm2d>()) return two->forward(x);
  return norm.as<torch::nn::BatchNorm3d>()->forward(x);
}

// Sets weights other than 1 and 0, the same in every module.
void fill_weights(torch::nn::Module& norm) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : norm.named_parameters())
    parameter.value().copy_(torch::linspace(0.5, 1.5, kChannels) * (parameter.key() == "bias" ? -1 : 1));
}

// Shape [examples, channels, 2, 3, 2], cut to `dims` dimensions; channels differ in mean and spread.
Tensor make_input(int64_t examples, int64_t dims, torch::ScalarType type) {
  std::vector<int64_t> sizes = {examples, kChannels, 2, 3, 2};
  sizes.resize(static_cast<size_t>(dims));
  std::vector<int64_t> channels(sizes.size(), 1);
  channels[1] = kChannels;
  const Tensor spread = torch::tensor({0.1, 1.0, 5.0}, torch::kFloat64).view(channels);
  const Tensor mean = torch::tensor({3.0, 0.0, -20.0}, torch::kFloat64).view(channels);
  return (torch::randn(sizes, torch::kFloat64) * spread + mean).to(type);
}

// A loss whose gradient differs for all outputs.
Tensor loss_of(const Tensor& y, const Tensor& target) { return ((y - target) * y * y).sum(); }

struct Step {
  std::vector<Tensor> inputs;   // one per rank
  std::vector<Tensor> targets;  // one per rank
};

std::vector<Step> make_steps(int world, int64_t dims, torch::ScalarType type) {
  torch::manual_seed(11);
  std::vector<Step> steps(3);
  for (size_t s = 0; s < steps.size(); ++s) {
    for (int rank = 0; rank < world; ++rank) {
      // With several workers, the first one has no examples in the last step.
      const bool none = s == 2 && rank == 0 && world > 1;
      steps[s].inputs.push_back(make_input(none ? 0 : 2 + (rank + static_cast<int>(s)) % 3, dims, type));
      steps[s].targets.push_back(torch::randn(steps[s].inputs.back().sizes(), type));
    }
  }
  return steps;
}

// The results of one rank at one step.
struct Outcome {
  Tensor y;
  Tensor dx;
  std::vector<Tensor> grads;    // of weight and bias
  std::vector<Tensor> buffers;  // after the step
};

Outcome make_outcome(const torch::nn::Module& norm, const Tensor& y, const Tensor& x) {
  Outcome outcome{y.detach(), x.grad().clone(), {}, {}};
  for (const Tensor& parameter : norm.parameters()) outcome.grads.push_back(parameter.grad().clone());
  for (const Tensor& buffer : norm.buffers()) outcome.buffers.push_back(buffer.clone());
  return outcome;
}

void zero_grad(const torch::nn::Module& norm) {
  for (const Tensor& parameter : norm.parameters()) parameter.mutable_grad() = Tensor();
}

std::vector<Outcome> run_together(int world, size_t rank, comm::Communicator& comm,
                                  const BatchNormOptions& options, const std::vector<Step>& steps,
                                  torch::MemoryFormat format) {
  SyncBatchNorm norm(options);
  fill_weights(*norm);
  norm->to(steps[0].inputs[0].scalar_type());
  if (world > 1) norm->use(comm::testing::borrowed(comm));
  std::vector<Outcome> outcomes;
  for (const Step& step : steps) {
    zero_grad(*norm);
    const Tensor x = step.inputs[rank].clone(format).requires_grad_();
    const Tensor y = norm(x);
    loss_of(y, step.targets[rank].contiguous(format)).backward();
    EXPECT_TRUE(x.numel() == 0 || (y.is_contiguous(format) && x.grad().is_contiguous(format)));
    outcomes.push_back(make_outcome(*norm, y, x));
  }
  return outcomes;
}

std::vector<Outcome> run_alone(int64_t dims, const BatchNormOptions& options,
                               const std::vector<Step>& steps) {
  const auto norm = plain_norm(dims, options);
  fill_weights(*norm);
  norm->to(steps[0].inputs[0].scalar_type());
  std::vector<Outcome> outcomes;
  for (const Step& step : steps) {
    zero_grad(*norm);
    const Tensor x = torch::cat(step.inputs).requires_grad_();
    const Tensor y = run_plain(*norm, x);
    loss_of(y, torch::cat(step.targets)).backward();
    outcomes.push_back(make_outcome(*norm, y, x));
  }
  return outcomes;
}

void expect_near(const Tensor& actual, const Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  if (expected.numel() == 0) return;
  const double scale = expected.to(torch::kFloat64).abs().max().item<double>() + 1;
  const double difference = (actual - expected).to(torch::kFloat64).abs().max().item<double>();
  EXPECT_LE(difference, tolerance * scale) << what;
}

void expect_as_alone(int world, int64_t dims, torch::ScalarType type, const BatchNormOptions& options,
                     torch::MemoryFormat format = torch::MemoryFormat::Contiguous) {
  const auto steps = make_steps(world, dims, type);
  const std::vector<Outcome> alone = run_alone(dims, options, steps);
  std::vector<std::vector<Outcome>> ranks(static_cast<size_t>(world));
  with_ranks("inproc", world, [&](comm::Communicator& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    ranks[me] = run_together(world, me, comm, options, steps, format);
  });
  const double tolerance = type == torch::kFloat64 ? 1e-12 : 2e-5;
  for (size_t s = 0; s < steps.size(); ++s) {
    const std::string what = fmt::format("{} dimensions, {} workers, step {}", dims, world, s);
    std::vector<Tensor> y;
    std::vector<Tensor> dx;
    for (const auto& outcomes : ranks) {
      ASSERT_EQ(outcomes.size(), steps.size()) << what;
      y.push_back(outcomes[s].y);
      dx.push_back(outcomes[s].dx);
      for (size_t b = 0; b < outcomes[s].buffers.size(); ++b) {
        EXPECT_TRUE(outcomes[s].buffers[b].equal(ranks[0][s].buffers[b])) << "not the same bits: " << what;
        expect_near(outcomes[s].buffers[b], alone[s].buffers[b], tolerance, what + ", a buffer");
      }
    }
    expect_near(torch::cat(y), alone[s].y, tolerance, what + ", y");
    expect_near(torch::cat(dx), alone[s].dx, tolerance, what + ", dx");
    for (size_t p = 0; p < alone[s].grads.size(); ++p) {
      Tensor sum = torch::zeros_like(alone[s].grads[p]);
      for (const auto& outcomes : ranks) sum += outcomes[s].grads[p];
      expect_near(sum, alone[s].grads[p], tolerance, what + ", a parameter");
    }
  }
}

class SyncBatchNormOver : public ::testing::TestWithParam<int> {};

TEST_P(SyncBatchNormOver, is_batch_norm_of_the_examples_of_all_workers) {
  for (const auto type : {torch::kFloat64, torch::kFloat32}) {
    for (const int64_t dims : {2, 3, 4, 5}) expect_as_alone(GetParam(), dims, type, kChannels);
  }
}

TEST_P(SyncBatchNormOver, takes_all_options_of_batch_norm) {
  expect_as_alone(GetParam(), 4, torch::kFloat64, BatchNormOptions(kChannels).eps(0.3).momentum(0.7));
  expect_as_alone(GetParam(), 4, torch::kFloat64, BatchNormOptions(kChannels).momentum(c10::nullopt));
  expect_as_alone(GetParam(), 3, torch::kFloat64, BatchNormOptions(kChannels).track_running_stats(false));
}

// Without weight and bias the gradient flows through the input only.
TEST_P(SyncBatchNormOver, has_a_gradient_without_weight_and_bias) {
  expect_as_alone(GetParam(), 4, torch::kFloat64, BatchNormOptions(kChannels).affine(false));
}

TEST_P(SyncBatchNormOver, gradients_agree_with_finite_differences) {
  const int world = GetParam();
  const Step step = make_steps(world, 3, torch::kFloat64)[1];
  const auto run = [&](const std::vector<Tensor>& inputs, std::vector<Tensor>* gradients) {
    std::vector<double> losses(inputs.size());
    with_ranks("inproc", world, [&](comm::Communicator& comm) {
      const auto me = static_cast<size_t>(comm.rank());
      SyncBatchNorm norm(kChannels);
      fill_weights(*norm);
      norm->to(torch::kFloat64);
      norm->use(comm::testing::borrowed(comm));
      const Tensor x = inputs[me].clone().requires_grad_();
      const Tensor loss = loss_of(norm(x), step.targets[me]);
      losses[me] = loss.item<double>();
      if (gradients == nullptr) return;
      loss.backward();
      (*gradients)[me] = x.grad();
    });
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum;
  };
  std::vector<Tensor> gradients(step.inputs.size());
  run(step.inputs, &gradients);
  constexpr double kDelta = 1e-6;
  for (size_t rank = 0; rank < step.inputs.size(); ++rank) {
    for (const int64_t element : {int64_t{0}, int64_t{3}, step.inputs[rank].numel() - 1}) {
      const auto loss_at = [&](double delta) {
        std::vector<Tensor> inputs = step.inputs;
        inputs[rank] = inputs[rank].clone();
        inputs[rank].view(-1)[element] += delta;
        return run(inputs, nullptr);
      };
      const double expected = (loss_at(kDelta) - loss_at(-kDelta)) / (2 * kDelta);
      EXPECT_NEAR(gradients[rank].view(-1)[element].item<double>(), expected, 1e-5 * (1 + std::abs(expected)))
          << "rank " << rank << ", element " << element;
    }
  }
}

TEST_P(SyncBatchNormOver, channels_last_stays_so_and_gives_the_same) {
  expect_as_alone(GetParam(), 4, torch::kFloat64, kChannels, torch::MemoryFormat::ChannelsLast);
}

// This happens after a convolution under autocast: the input has half precision, the parameters do not.
TEST_P(SyncBatchNormOver, makes_statistics_of_half_precision_in_float32) {
  const int world = GetParam();
  const Step step = make_steps(world, 4, torch::kFloat32)[0];
  Step lower;
  for (const Tensor& input : step.inputs) lower.inputs.push_back(input.to(torch::kBFloat16));
  torch::nn::BatchNorm2d exact(kChannels);
  const Tensor all = torch::cat(lower.inputs).to(torch::kFloat32).requires_grad_();
  const Tensor y_exact = exact(all);
  (y_exact * y_exact * torch::cat(step.targets)).sum().backward();
  std::vector<Tensor> y(lower.inputs.size());
  std::vector<Tensor> dx(lower.inputs.size());
  with_ranks("inproc", world, [&](comm::Communicator& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    SyncBatchNorm norm(kChannels);
    norm->use(comm::testing::borrowed(comm));
    const Tensor x = lower.inputs[me].clone().requires_grad_();
    const Tensor result = [&] {
      const compat::AutocastScope scope(torch::kCPU, torch::kBFloat16);
      return norm(x);
    }();
    (result.to(torch::kFloat32) * result.to(torch::kFloat32) * step.targets[me]).sum().backward();
    y[me] = result.detach();
    dx[me] = x.grad();
    EXPECT_EQ(norm->weight.grad().scalar_type(), torch::kFloat32);
    // Much closer than half precision would allow.
    expect_near(norm->running_mean, exact->running_mean, 1e-6, "mean");
    expect_near(norm->running_var, exact->running_var, 1e-6, "variance");
  });
  expect_near(torch::cat(y), y_exact.to(torch::kBFloat16), 0.01, "y");
  expect_near(torch::cat(dx), all.grad().to(torch::kBFloat16), 0.03, "dx");
}

TEST_P(SyncBatchNormOver, does_without_a_gradient_of_the_input) {
  const Step step = make_steps(GetParam(), 4, torch::kFloat64)[0];
  std::vector<Tensor> gradients(step.inputs.size());
  with_ranks("inproc", GetParam(), [&](comm::Communicator& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    SyncBatchNorm norm(kChannels);
    fill_weights(*norm);
    norm->to(torch::kFloat64);
    norm->use(comm::testing::borrowed(comm));
    loss_of(norm(step.inputs[me]), step.targets[me]).backward();
    gradients[me] = norm->weight.grad();
  });
  expect_near(torch::stack(gradients).sum(0), run_alone(4, kChannels, {step})[0].grads[0], 1e-12, "weight");
}

INSTANTIATE_TEST_SUITE_P(Worlds, SyncBatchNormOver, ::testing::Values(1, 2, 3, 4));

TEST(SyncBatchNorm, alone_or_in_evaluation_it_has_the_bits_of_batch_norm) {
  const Step step = make_steps(2, 4, torch::kFloat32)[0];
  with_ranks("inproc", 2, [&](comm::Communicator& comm) {
    SyncBatchNorm together(kChannels);
    SyncBatchNorm alone(kChannels);
    torch::nn::BatchNorm2d plain(kChannels);
    together->use(comm::testing::borrowed(comm));
    const auto me = static_cast<size_t>(comm.rank());
    for (const bool training : {true, false}) {
      alone->train(training);
      plain->train(training);
      const Tensor expected = plain(step.inputs[me]);
      EXPECT_TRUE(alone(step.inputs[me]).equal(expected));
      for (size_t b = 0; b < 3; ++b) EXPECT_TRUE(alone->buffers()[b].equal(plain->buffers()[b]));
    }
    const torch::NoGradGuard no_grad;
    for (size_t b = 0; b < 3; ++b) together->buffers()[b].copy_(plain->buffers()[b]);
    together->eval();
    // The other ranks do not take part.
    if (comm.rank() != 0) return;
    EXPECT_TRUE(together(step.inputs[me]).equal(plain(step.inputs[me])));
  });
}

TEST(SyncBatchNorm, has_the_tensors_of_batch_norm) {
  for (const bool affine : {true, false}) {
    const auto options = BatchNormOptions(kChannels).affine(affine);
    const SyncBatchNorm norm(options);
    const torch::nn::BatchNorm2d plain(options);
    EXPECT_EQ(norm->named_parameters().keys(), plain->named_parameters().keys());
    EXPECT_EQ(norm->named_buffers().keys(), plain->named_buffers().keys());
    for (const auto& parameter : plain->named_parameters())
      EXPECT_TRUE(norm->named_parameters()[parameter.key()].equal(parameter.value())) << parameter.key();
    for (const auto& buffer : plain->named_buffers()) {
      EXPECT_TRUE(norm->named_buffers()[buffer.key()].equal(buffer.value())) << buffer.key();
      EXPECT_EQ(norm->named_buffers()[buffer.key()].scalar_type(), buffer.value().scalar_type());
    }
  }
}

TEST(SyncBatchNorm, says_what_it_is) {
  std::ostringstream text;
  text << *SyncBatchNorm(BatchNormOptions(4).momentum(c10::nullopt));
  EXPECT_EQ(text.str(),
            "tutti::nn::SyncBatchNorm(4, eps=1e-05, momentum=none, affine=true, track_running_stats=true)");
}

TEST(SyncBatchNorm, a_clone_works_in_the_same_group) {
  const Step step = make_steps(2, 2, torch::kFloat32)[0];
  with_ranks("inproc", 2, [&](comm::Communicator& comm) {
    SyncBatchNorm norm(kChannels);
    norm->use(comm::testing::borrowed(comm));
    const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(norm->clone());
    const auto me = static_cast<size_t>(comm.rank());
    EXPECT_TRUE(copy->forward(step.inputs[me]).equal(norm(step.inputs[me])));
    EXPECT_TRUE(copy->running_mean.equal(norm->running_mean));
  });
}

std::vector<std::string> errors_with(const std::vector<Tensor>& inputs) {
  return errors_of_ranks("inproc", static_cast<int>(inputs.size()), std::chrono::seconds(60),
                         [&](comm::Communicator& comm) {
                           SyncBatchNorm norm(kChannels);
                           norm->use(comm::testing::borrowed(comm));
                           norm(inputs[static_cast<size_t>(comm.rank())]);
                         });
}

TEST(SyncBatchNorm, too_few_values_are_an_error_on_all_workers) {
  for (const std::string& error : errors_with({torch::empty({0, 3}), torch::empty({0, 3, 4, 4})}))
    EXPECT_THAT(error, HasSubstr("all 2 workers together have 0 values per channel"));
  for (const std::string& error : errors_with({torch::empty({0, 3}), torch::rand({1, 3})}))
    EXPECT_THAT(error, HasSubstr("1 values per channel"));
  for (const std::string& error : errors_with({torch::rand({1, 3}), torch::rand({1, 3})}))
    EXPECT_EQ(error, "");
}

TEST(SyncBatchNorm, an_input_that_does_not_fit_is_an_error_with_its_sizes) {
  SyncBatchNorm norm(kChannels);
  for (const Tensor& input : {torch::rand({3}), torch::rand({2, 4, 5}), torch::rand({1, 3, 1, 1, 1, 1})}) {
    try {
      norm(input);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("[{}]", fmt::join(input.sizes(), ","))));
    }
  }
}

TEST(SyncBatchNorm, a_worker_that_does_not_call_is_missed_by_name) {
  const auto errors =
      errors_of_ranks("inproc", 2, std::chrono::milliseconds(300), [&](comm::Communicator& comm) {
        SyncBatchNorm norm(kChannels);
        norm->use(comm::testing::borrowed(comm));
        if (comm.rank() == 0) norm(torch::rand({4, 3}));
        if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
      });
  EXPECT_THAT(errors[0],
              HasSubstr("the forward of SyncBatchNorm, which all workers must call equally often"));
  EXPECT_THAT(errors[0], HasSubstr("worker/1"));
}

TEST(SyncBatchNorm, a_second_derivative_is_refused) {
  const auto errors = errors_of_ranks("inproc", 2, std::chrono::seconds(60), [&](comm::Communicator& comm) {
    SyncBatchNorm norm(kChannels);
    norm->use(comm::testing::borrowed(comm));
    norm(torch::rand({4, 3}).requires_grad_()).square().sum().backward({}, c10::nullopt, true);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("no second derivative"));
}

// A graph may outlive its module.
TEST(SyncBatchNorm, backward_works_after_the_module_is_gone) {
  with_ranks("inproc", 2, [&](comm::Communicator& comm) {
    const Tensor x = torch::rand({4, 3}).requires_grad_();
    Tensor y;
    {
      SyncBatchNorm norm(kChannels);
      norm->use(comm.split(0));
      y = norm(x);
    }
    y.square().sum().backward();
    EXPECT_TRUE(x.grad().defined());
  });
}

}  // namespace
}  // namespace tutti::nn::sync_batch_norm_test
