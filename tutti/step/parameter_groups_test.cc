#include "tutti/params/parameter_groups.h"

#include <functional>
#include <memory>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/params/optimizer.h"
#include "tutti/step/buckets.h"

namespace tutti::parameter_groups_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The parameters of a small transformer, whose head is the weight of the embedding. No number of elements is
// a multiple of a vector register.
struct Grouped : torch::nn::Module {
  torch::nn::Embedding wte = register_module("wte", torch::nn::Embedding(37, 11));
  torch::nn::Linear mlp = register_module("mlp", torch::nn::Linear(11, 333));
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{333}));
  torch::nn::Linear proj = register_module("proj", torch::nn::Linear(333, 11));
  torch::Tensor head = register_parameter("head", wte->weight);
};

std::shared_ptr<Grouped> grouped() {
  torch::manual_seed(7);
  return std::make_shared<Grouped>();
}

void fill_gradients(torch::nn::Module& module, int step) {
  torch::manual_seed(100 + step);
  for (torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor gradient = torch::randn(parameter.sizes());
    if (!parameter.requires_grad()) continue;
    if (parameter.grad().defined())
      parameter.mutable_grad().copy_(gradient);
    else
      parameter.mutable_grad() = gradient;
  }
}

TEST(ParameterGroups, patterns_know_stars_question_marks_and_opposites) {
  EXPECT_TRUE(selects({.names = "*.bias"}, {"blocks.3.mlp.bias"}));
  EXPECT_FALSE(selects({.names = "*.bias"}, {"bias"}));
  EXPECT_TRUE(selects({.names = "encoder.*"}, {"encoder.0.weight"}));
  EXPECT_FALSE(selects({.names = "encoder.*"}, {"decoder.encoder.0.weight"}));
  EXPECT_TRUE(selects({.names = "*norm*"}, {"norm.weight"}));
  EXPECT_TRUE(selects({.names = "block?.w"}, {"block1.w"}));
  EXPECT_FALSE(selects({.names = "block?.w"}, {"block.w"}));
  EXPECT_TRUE(selects({.names = "a*b*c"}, {"a.b.b.c"}));
  EXPECT_FALSE(selects({.names = "a*b*c"}, {"a.b.b"}));
  EXPECT_FALSE(selects({.names = "!head.*"}, {"head.weight"}));
  EXPECT_TRUE(selects({.names = "!head.*"}, {"body.weight"}));
  EXPECT_TRUE(selects({.names = "*"}, {"anything"}));
  EXPECT_FALSE(selects({.names = ""}, {"anything"}));
}

TEST(ParameterGroups, a_pattern_that_matches_nothing_is_an_error_that_names_it) {
  const auto net = grouped();
  Parameters parameters(*net);
  for (const char* pattern : {"*.bais", "!haed.*", "!*", ""}) {
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr("the group '" + std::string(pattern) + "' of the optimiser matches no"),
                       HasSubstr("mlp.weight, mlp.bias")),
                 [&] { freeze(parameters, {{.names = pattern, .frozen = true}}); });
  }
  EXPECT_TRUE(net->mlp->bias.requires_grad());
}

TEST(ParameterGroups, freezing_everything_is_an_error_and_changes_nothing) {
  const auto net = grouped();
  Parameters parameters(*net);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no parameter to train"),
               [&] { freeze(parameters, {{.names = "*", .frozen = true}}); });
  EXPECT_EQ(parameters.trained().size(), 7);
  EXPECT_TRUE(net->mlp->weight.requires_grad());
}

TEST(ParameterGroups, a_shared_parameter_is_selected_by_any_of_its_names) {
  const auto net = grouped();
  Parameters parameters(*net);
  freeze(parameters, {{.names = "he?d", .frozen = true}});
  ASSERT_EQ(parameters.frozen().size(), 1);
  EXPECT_TRUE(parameters.frozen().front().tensor.is_same(net->wte->weight));
}

TEST(ParameterGroups, neighbours_with_the_same_settings_are_one_range) {
  const auto net = grouped();
  const Parameters parameters(*net);
  const auto view = [&](size_t i) { return parameters.trained()[i]; };
  const std::vector<GroupRange> all = ranges_of(parameters, {{.names = "*", .rate = 0.5}});
  ASSERT_EQ(all.size(), 1);
  EXPECT_EQ(all[0].end, parameters.values().numel());
  // mlp.bias, norm.weight and norm.bias are neighbours.
  const std::vector<GroupRange> ranges =
      ranges_of(parameters, {{.names = "*.bias", .weight_decay = 0}, {.names = "norm.*", .weight_decay = 0}});
  ASSERT_EQ(ranges.size(), 2);
  EXPECT_EQ(view(2).name, "mlp.bias");
  EXPECT_EQ(ranges[0].begin, view(2).offset);
  EXPECT_EQ(ranges[0].end, view(5).offset);
  const std::vector<GroupRange> copy = ranges_from_json(to_json(ranges));
  EXPECT_EQ(to_json(copy), to_json(ranges));
}

TEST(ParameterGroups, of_several_that_apply_all_count) {
  const auto net = grouped();
  const Parameters parameters(*net);
  const auto ranges = ranges_of(parameters, {{.names = "mlp.*", .rate = 0.5, .weight_decay = 0.1},
                                             {.names = "*.bias", .rate = 0.5, .weight_decay = 0}});
  ASSERT_EQ(ranges.size(), 4);  // mlp.weight, mlp.bias, norm.bias, proj.bias
  EXPECT_EQ(ranges[0].rate, 0.5);
  EXPECT_EQ(ranges[0].weight_decay, 0.1);
  EXPECT_EQ(ranges[1].rate, 0.25);
  EXPECT_EQ(ranges[1].weight_decay, 0);
}

TEST(ParameterGroups, ranges_of_a_message_that_overlap_are_refused) {
  for (const char* text :
       {R"([{"block":0,"begin":5,"end":3,"rate":1}])",
        R"([{"block":0,"begin":0,"end":3,"rate":1},{"block":0,"begin":2,"end":4,"rate":1}])",
        R"([{"block":0,"begin":0,"end":3,"rate":-1}])"}) {
    EXPECT_THROW(ranges_from_json(parse_json(text, "ranges")), Error) << text;
  }
}

TEST(ParameterGroups, frozen_parameters_leave_the_vectors_and_keep_their_bits) {
  const auto net = grouped();
  const torch::Tensor before = net->mlp->weight.detach().clone();
  const torch::Tensor other = net->proj->weight.detach().clone();
  Parameters parameters(*net);
  const int64_t all = parameters.size();
  const std::vector<ParameterGroup> groups = {{.names = "mlp.*", .frozen = true}};
  freeze(parameters, groups);
  EXPECT_EQ(parameters.size(), all - 12 * 333);
  EXPECT_FALSE(net->mlp->weight.requires_grad());
  EXPECT_FALSE(net->mlp->weight.grad().defined());
  parameters.require_as_made();
  Optimizer optimizer(parameters, parameters.blocks(),
                      {torch::optim::AdamWOptions(0.1).weight_decay(0.1), groups});
  fill_gradients(*net, 0);
  optimizer.step();
  EXPECT_TRUE(net->mlp->weight.equal(before));
  EXPECT_FALSE(net->proj->weight.equal(other));
  for (const Optimizer::Slot& slot : optimizer.state().slots)
    EXPECT_EQ(slot.vector.numel(), parameters.values().numel());
  freeze(parameters, groups);  // once more changes nothing, and the pattern still matches
  EXPECT_EQ(parameters.frozen().size(), 2);
}

TEST(ParameterGroups, settings_out_of_range_are_refused_with_the_name_of_the_group) {
  const auto net = grouped();
  Parameters parameters(*net);
  const auto make = [&](const ParameterGroup& group) {
    const Optimizer made(parameters, parameters.blocks(), {torch::optim::AdamOptions(1), {group}});
  };
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the rate of the group '*.bias' is -1"),
               [&] { make({.names = "*.bias", .rate = -1}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the weight decay of the group '*.bias' is -1"),
               [&] { make({.names = "*.bias", .weight_decay = -1}); });
}

TEST(ParameterGroups, are_part_of_the_options_that_are_written_down) {
  const OptimizerOptions options = {
      torch::optim::AdamOptions(1e-3),
      {{.names = "*.bias", .weight_decay = 0}, {.names = "a.*", .rate = 0.5, .frozen = true}}};
  const Json json = to_json(options);
  EXPECT_EQ(json.at("groups").dump(), R"([{"names":"*.bias","rate":1.0,"frozen":false,"weight_decay":0.0},)"
                                      R"({"names":"a.*","rate":0.5,"frozen":true}])");
  EXPECT_EQ(to_json(optimizer_from_json(json)), json);
  EXPECT_TRUE(to_json(torch::optim::AdamOptions(1e-3)).at("groups").empty());
}

struct GroupCase {
  const char* name;
  OptimizerOptions::Kind options;
  // Makes the optimiser of PyTorch with three groups: all others, biases and norms, and the mlp.
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<std::vector<torch::Tensor>>)> plain;
};

constexpr double kRate = 0.02;
constexpr double kFactor = 0.3;

template <class Plain, class Options>
GroupCase group_case(const char* name, const Options& options) {
  return {name, options, [options](std::vector<std::vector<torch::Tensor>> parameters) {
            std::vector<torch::optim::OptimizerParamGroup> groups(parameters.begin(), parameters.end());
            auto made = std::make_unique<Plain>(groups, options);
            const auto options_of = [&](size_t i) -> Options& {
              return static_cast<Options&>(made->param_groups()[i].options());
            };
            options_of(1).weight_decay(0);
            options_of(2).lr(kRate * kFactor);
            return made;
          }};
}

std::vector<GroupCase> group_cases() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): a table of its classes
  return {
      group_case<SGD>("momentum", SGDOptions(kRate).momentum(0.9).weight_decay(0.1)),
      group_case<Adam>("adam", AdamOptions(kRate).weight_decay(0.1)),
      group_case<AdamW>("adamw", AdamWOptions(kRate).weight_decay(0.1)),
      group_case<Adagrad>("adagrad", AdagradOptions(kRate).weight_decay(0.1).lr_decay(0.01)),
      group_case<RMSprop>("rmsprop", RMSpropOptions(kRate).weight_decay(0.1).momentum(0.5)),
  };
}

class GroupedOptimizer : public testing::TestWithParam<GroupCase> {
 protected:
  static OptimizerOptions options() {
    OptimizerOptions options = torch::optim::SGDOptions(1);
    options.kind = GetParam().options;
    options.groups = {{.names = "*.bias", .weight_decay = 0},
                      {.names = "norm.weight", .weight_decay = 0},
                      {.names = "mlp.weight", .rate = kFactor}};
    return options;
  }
};

// The sections are those that three workers would own, so groups end inside of them.
TEST_P(GroupedOptimizer, gives_the_bits_of_the_groups_of_torch_optim) {
  for (const int workers : {1, 3}) {
    const auto net = grouped();
    const Parameters parameters(*net);
    std::vector<std::unique_ptr<Optimizer>> parts;
    for (int rank = 0; rank < workers; ++rank)
      parts.push_back(
          std::make_unique<Optimizer>(parameters, sections_of(parameters, rank, workers), options()));
    const auto reference = grouped();
    const auto expected = GetParam().plain(
        {{reference->wte->weight, reference->proj->weight},
         {reference->mlp->bias, reference->norm->weight, reference->norm->bias, reference->proj->bias},
         {reference->mlp->weight}});
    for (int step = 0; step < 6; ++step) {
      fill_gradients(*reference, step);
      fill_gradients(*net, step);
      // A schedule: PyTorch's multiplies the rate of each group.
      const double rate = kRate / (1 + step);
      for (size_t i = 0; i < 3; ++i)
        expected->param_groups()[i].options().set_lr(i == 2 ? rate * kFactor : rate);
      expected->step();
      for (const auto& part : parts) {
        part->set_learning_rate(rate);
        part->step();
      }
      for (const auto& item : reference->named_parameters())
        ASSERT_TRUE(item.value().equal(net->named_parameters()[item.key()])) << item.key() << " at " << step;
    }
  }
}

TEST_P(GroupedOptimizer, continues_from_its_slots_with_the_same_bits) {
  const auto net = grouped();
  const Parameters parameters(*net);
  Optimizer first(parameters, parameters.blocks(), options());
  for (int step = 0; step < 3; ++step) {
    fill_gradients(*net, step);
    first.step();
  }
  const auto resumed = grouped();
  Parameters values(*resumed);
  values.values().copy_(parameters.values());
  Optimizer second(values, values.blocks(), options());
  second.restore(first.state());
  for (int step = 3; step < 6; ++step) {
    fill_gradients(*net, step);
    fill_gradients(*resumed, step);
    first.step();
    second.step();
  }
  EXPECT_TRUE(parameters.values().equal(values.values()));
}

TEST_P(GroupedOptimizer, without_groups_is_one_pass_over_the_vector) {
  const auto net = grouped();
  const Parameters parameters(*net);
  OptimizerOptions plain = options();
  plain.groups.clear();
  EXPECT_TRUE(ranges_of(parameters, plain.groups).empty());
  EXPECT_EQ(Optimizer(parameters, parameters.blocks(), plain).chunks(), 1);
  EXPECT_EQ(Optimizer(parameters, parameters.blocks(), options()).chunks(), 5);
}

INSTANTIATE_TEST_SUITE_P(All, GroupedOptimizer, testing::ValuesIn(group_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tutti::parameter_groups_test
