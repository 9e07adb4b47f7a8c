#include "tutti/params/scope.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/params/device_scope.h"

namespace tutti::params::scope_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void ones(const torch::Tensor& parameter) { torch::nn::init::ones_(parameter); }

class ScopeOf : public ::testing::Test {
 protected:
  std::shared_ptr<torch::nn::Module> net_ = std::make_shared<torch::nn::Module>();
  Scope scope_ = Scope(net_);
};

TEST_F(ScopeOf, creates_parameters_under_joined_names) {
  const torch::Tensor w = scope_.nested("hidden").nested("first").get("w", {1, 16}, ones);
  const torch::Tensor b = scope_.nested("hidden").get("b", {16}, {}, torch::kFloat64);
  EXPECT_THAT(net_->named_parameters().keys(), ElementsAre("hidden.b", "hidden.first.w"));
  EXPECT_TRUE(torch::equal(w, torch::ones({1, 16})));
  EXPECT_TRUE(torch::equal(b, torch::zeros({16}, torch::kFloat64)));
  EXPECT_TRUE(w.requires_grad());
  EXPECT_TRUE(w.is_leaf());
}

TEST_F(ScopeOf, shares_what_it_has_created) {
  const torch::Tensor w = scope_.nested("hidden").get("w", {1, 16}, ones);
  const torch::Tensor same = scope_.reuse().nested("hidden").get(
      "w", {1, 16}, [](const torch::Tensor&) { FAIL() << "it has its values already"; });
  EXPECT_TRUE(same.is_same(w));
  EXPECT_EQ(net_->parameters().size(), 1);
}

// Two towers share one set of weights.
TEST_F(ScopeOf, gives_parameters_that_train_as_those_of_any_module) {
  const auto tower = [](const Scope& scope, const torch::Tensor& x) {
    return x.matmul(scope.nested("tower").get("w", {2, 1}, ones));
  };
  const torch::Tensor one = tower(scope_, torch::tensor({{1.0F, 2.0F}}));
  const torch::Tensor other = tower(scope_.reuse(), torch::tensor({{10.0F, 20.0F}}));
  (one + other).sum().backward();
  EXPECT_TRUE(torch::equal(net_->parameters()[0].grad(), torch::tensor({{11.0F}, {22.0F}})));
  EXPECT_EQ(Parameters(*net_).trained()[0].name, "tower.w");
}

TEST_F(ScopeOf, refuses_a_second_one_of_the_same_name) {
  scope_.nested("hidden").get("w", {1, 16});
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("hidden.w exists already"), HasSubstr("reuse()")),
               [&] {
                 scope_.nested("hidden").get("w", {1, 16});
               });
}

TEST_F(ScopeOf, shares_nothing_that_is_not_there_and_suggests_the_nearest) {
  scope_.nested("hidden").get("weight", {1, 16});
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("no parameter hidden.wieght"), HasSubstr("'weight'")), [&] {
                 scope_.reuse().nested("hidden").get("wieght", {1, 16});
               });
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("no scope hiden"), HasSubstr("'hidden'")),
               [&] { scope_.reuse().nested("hiden"); });
  EXPECT_THAT(net_->named_parameters().keys(), ElementsAre("hidden.weight"));
  EXPECT_THAT(net_->named_children().keys(), ElementsAre("hidden"));
}

TEST_F(ScopeOf, shares_nothing_of_another_shape_or_type) {
  scope_.get("w", {1, 16});
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("as float32[16]"), HasSubstr("it is float32[1,16]")),
               [&] { scope_.reuse().get("w", {16}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("as float64[1,16]"), [&] {
    scope_.reuse().get("w", {1, 16}, {}, torch::kFloat64);
  });
}

TEST_F(ScopeOf, shares_what_a_module_has_created_itself) {
  net_->register_module("linear", torch::nn::Linear(2, 3));
  EXPECT_EQ(scope_.reuse().nested("linear").get("weight", {3, 2}).numel(), 6);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("linear.weight exists already"), [&] {
    scope_.nested("linear").get("weight", {3, 2});
  });
}

TEST_F(ScopeOf, refuses_names_that_are_none_or_taken) {
  for (const char* name : {"", "a.b"}) {
    EXPECT_THROW(scope_.get(name, {1}), c10::Error);
    EXPECT_THROW(scope_.nested(name), c10::Error);
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("needs a module"), [] { const Scope scope(nullptr); });
}

TEST_F(ScopeOf, creates_what_is_not_trained_where_told_so) {
  EXPECT_FALSE(scope_.get("fixed", {2}, {}, torch::TensorOptions().requires_grad(false)).requires_grad());
  EXPECT_FALSE(scope_.get("counts", {2}, {}, torch::kInt64).requires_grad());
}

TEST_F(ScopeOf, creates_where_the_device_scope_around_it_says) {
  const DeviceScope on("/job:ps/task:1");
  EXPECT_EQ(pin_of(scope_.get("w", {1, 16}))->to_string(), "/job:ps/task:1");
}

}  // namespace
}  // namespace tutti::params::scope_test
