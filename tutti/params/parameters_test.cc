#include "tutti/params/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/base/hashes.h"

namespace tutti::parameters_test {
namespace {

using testing::HasSubstr;

struct Varied : torch::nn::Module {
  Varied() {
    conv = register_module("conv", torch::nn::Conv2d(1, 3, 5));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
    head = register_module("head", torch::nn::Linear(3, 2));
  }
  torch::Tensor forward(torch::Tensor x) { return head(norm(conv(x)).mean({2, 3})); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};

std::vector<std::string> names(std::span<const Parameters::View> views) {
  std::vector<std::string> result;
  for (const auto& view : views) result.push_back(view.name);
  return result;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(Parameters, are_views_into_one_vector_in_the_order_of_creation) {
  Varied net;
  const torch::Tensor before = net.head->weight.detach().clone();
  Parameters parameters(net);
  EXPECT_EQ(names(parameters.trained()), (std::vector<std::string>{"conv.weight", "conv.bias", "norm.weight",
                                                                   "norm.bias", "head.weight", "head.bias"}));
  EXPECT_TRUE(net.head->weight.equal(before));
  parameters.values().fill_(7);
  EXPECT_TRUE(net.head->weight.equal(torch::full_like(before, 7)));
  EXPECT_EQ(parameters.size(), 75 + 3 + 3 + 3 + 6 + 2);
  for (const auto& view : parameters.trained()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.tensor.data_ptr()) % 64, 0U) << view.name;
    EXPECT_EQ(view.tensor.data_ptr(), parameters.values()[view.offset].data_ptr());
  }
}

TEST(Parameters, gradients_add_up_in_the_vector) {
  Varied net;
  Parameters parameters(net);
  const torch::Tensor x = torch::rand({4, 1, 8, 8});
  net.forward(x).sum().backward();
  const torch::Tensor once = parameters.grads().clone();
  EXPECT_GT(once.abs().sum().item<double>(), 0);
  net.forward(x).sum().backward();
  EXPECT_TRUE(torch::allclose(parameters.grads(), once * 2));
  parameters.zero_grads();
  EXPECT_EQ(net.head->weight.grad().abs().sum().item<double>(), 0);
}

TEST(Parameters, gradients_equal_those_of_the_module_alone) {
  torch::manual_seed(3);
  Varied alone;
  torch::manual_seed(3);
  Varied net;
  Parameters parameters(net);
  const torch::Tensor x = torch::rand({4, 1, 8, 8});
  alone.forward(x).pow(2).sum().backward();
  net.forward(x).pow(2).sum().backward();
  for (const auto& view : parameters.trained()) {
    EXPECT_TRUE(view.grad.equal(alone.named_parameters()[view.name].grad())) << view.name;
  }
}

TEST(Parameters, gradients_that_the_program_replaced_or_dropped_come_back) {
  Varied net;
  Parameters parameters(net);
  parameters.grads().fill_(5);
  net.head->weight.mutable_grad() = torch::ones({2, 3});
  net.head->bias.mutable_grad() = torch::Tensor();
  parameters.collect_grads();
  EXPECT_EQ(parameters.trained()[4].grad.sum().item<float>(), 6);
  EXPECT_EQ(parameters.trained()[5].grad.sum().item<float>(), 0);
  EXPECT_EQ(parameters.trained()[0].grad.sum().item<float>(), 75 * 5);
  EXPECT_EQ(net.head->weight.grad().data_ptr(), parameters.trained()[4].grad.data_ptr());
}

TEST(Parameters, a_sparse_gradient_adds_up_in_the_vector) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  Parameters parameters(*table);
  table(torch::tensor({1, 1, 3})).sum().backward();
  parameters.collect_grads();
  EXPECT_TRUE(parameters.trained()[0].grad.equal(
      torch::tensor({{0., 0.}, {2., 2.}, {0., 0.}, {1., 1.}, {0., 0.}}, torch::kFloat32)));
}

TEST(Parameters, a_sparse_gradient_takes_the_place_of_one_that_was_dropped) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(3, 1).sparse(true));
  Parameters parameters(*table);
  parameters.grads().fill_(5);
  table->weight.mutable_grad() = torch::Tensor();
  table(torch::tensor({1, 1, 2})).sum().backward();
  ASSERT_TRUE(table->weight.grad().is_sparse());
  parameters.collect_grads();
  EXPECT_TRUE(parameters.trained()[0].grad.equal(torch::tensor({{0.F}, {2.F}, {1.F}})));
}

TEST(Parameters, frozen_ones_stay_beside_the_vector) {
  Varied net;
  net.conv->weight.set_requires_grad(false);
  Parameters parameters(net);
  EXPECT_EQ(names(parameters.frozen()), std::vector<std::string>{"conv.weight"});
  const torch::Tensor before = net.conv->weight.clone();
  parameters.values().zero_();
  EXPECT_TRUE(net.conv->weight.equal(before));
  net.forward(torch::rand({2, 1, 8, 8})).sum().backward();
  EXPECT_FALSE(net.conv->weight.grad().defined());
}

TEST(Parameters, a_tied_parameter_is_stored_once_under_its_first_name) {
  struct Tied : torch::nn::Module {
    Tied() {
      in = register_module("in", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
      out = register_parameter("out", in->weight);
      again = register_module("again", in);
    }
    torch::nn::Linear in{nullptr};
    torch::nn::Linear again{nullptr};
    torch::Tensor out;
  } net;
  Parameters parameters(net);
  EXPECT_EQ(parameters.trained().size(), 1U);
  EXPECT_EQ(parameters.size(), 9);
  EXPECT_EQ(parameters.aliases().size(), 2U);
  net.out.sum().backward();
  net.in(torch::ones({1, 3})).sum().backward();
  EXPECT_TRUE(parameters.trained()[0].grad.equal(torch::full({3, 3}, 2.0)));
}

TEST(Parameters, two_tensors_in_one_place_are_an_error_that_names_both) {
  torch::nn::Module net;
  const torch::Tensor memory = torch::zeros({10});
  net.register_parameter("first", memory.narrow(0, 0, 6));
  net.register_parameter("second", memory.narrow(0, 5, 5));
  EXPECT_THAT(error_of([&] { Parameters parameters(net); }),
              testing::AllOf(HasSubstr("first"), HasSubstr("second")));
}

TEST(Parameters, types_have_a_vector_each) {
  torch::nn::Module net;
  net.register_parameter("a", torch::ones({3}));
  net.register_parameter("b", torch::ones({2}, torch::kFloat64));
  net.register_parameter("c", torch::ones({4}));
  Parameters parameters(net);
  ASSERT_EQ(parameters.blocks().size(), 2U);
  EXPECT_EQ(parameters.blocks()[0].values.scalar_type(), torch::kFloat32);
  EXPECT_EQ(parameters.trained()[2].block, 0U);
  EXPECT_EQ(parameters.blocks()[1].values.sum().item<double>(), 2);
  EXPECT_THAT(error_of([&] { static_cast<void>(parameters.values()); }), HasSubstr("blocks()"));
}

TEST(Parameters, nothing_to_train_is_an_error) {
  torch::nn::Module empty;
  EXPECT_THAT(error_of([&] { Parameters parameters(empty); }), HasSubstr("no parameter to train"));
}

TEST(Parameters, floating_buffers_have_their_vector_and_others_stay) {
  Varied net;
  Parameters parameters(net);
  EXPECT_EQ(names(parameters.buffers()),
            (std::vector<std::string>{"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}));
  ASSERT_EQ(parameters.buffer_vectors().size(), 1U);
  net.forward(torch::rand({4, 1, 8, 8}));
  EXPECT_NE(parameters.buffer_vectors()[0].sum().item<double>(), 3.0);
  EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 1);
  parameters.buffer_vectors()[0].fill_(2);
  EXPECT_EQ(net.norm->running_mean[0].item<float>(), 2);
}

TEST(Parameters, lie_with_channels_last_where_asked_and_are_the_same_otherwise) {
  torch::manual_seed(5);
  torch::nn::Conv2d plain(4, 3, 5);
  torch::manual_seed(5);
  torch::nn::Conv2d last(4, 3, 5);
  Parameters a(*plain);
  Parameters b(*last, {.allocate = {}, .layout = Layout::ChannelsLast});
  EXPECT_TRUE(last->weight.is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(last->weight.equal(plain->weight));
  EXPECT_EQ(a.sha256(), b.sha256());
  EXPECT_EQ(a.plan(), b.plan());
}

TEST(Parameters, hash_is_over_the_bytes_in_the_order_of_names) {
  torch::nn::Module net;
  net.register_parameter("b", torch::tensor({1.0F, 2.0F, 3.0F}));
  net.register_parameter("a", torch::tensor({4.0F}));
  const std::vector<float> expected = {4, 1, 2, 3};
  Sha256 hash;
  hash.update(std::as_bytes(std::span(expected)));
  EXPECT_EQ(Parameters(net).sha256(), hash.hex());
}

TEST(Parameters, live_where_the_allocator_says) {
  std::vector<float> memory(1024);
  size_t used = 0;
  Varied net;
  ParametersOptions options;
  options.allocate = [&](int64_t elements, const torch::TensorOptions& tensor_options) {
    const auto vector = torch::from_blob(memory.data() + used, {elements}, tensor_options);
    used += static_cast<size_t>(elements);
    return vector;
  };
  Parameters parameters(net, options);
  net.forward(torch::rand({2, 1, 8, 8})).sum().backward();
  EXPECT_EQ(parameters.values().data_ptr(), memory.data());
  EXPECT_EQ(net.conv->weight.data_ptr(), memory.data());
}

TEST(Parameters, an_allocator_that_gives_too_little_is_refused) {
  Varied net;
  ParametersOptions options;
  options.allocate = [](int64_t, const torch::TensorOptions& tensor_options) {
    return torch::zeros({1}, tensor_options);
  };
  EXPECT_THAT(error_of([&] { Parameters parameters(net, options); }), HasSubstr("allocator"));
}

TEST(Parameters, plan_says_what_must_be_the_same_everywhere) {
  Varied net;
  EXPECT_EQ(Parameters(net).plan()[0], "conv.weight float32[3,1,5,5]");
}

}  // namespace
}  // namespace tutti::parameters_test
