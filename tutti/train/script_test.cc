#include "tutti/train/script.h"

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/script.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_run.h"
#include "tutti/train/replica.h"

namespace tutti::script_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kProgram = R"(
def predict(dense_weight, dense_bias, x):
    return torch.dropout(torch.tanh(torch.linear(x, dense_weight, dense_bias)), 0.5, True)

def loss(dense_weight, dense_bias, x, y, scale: float = 1.0):
    prediction = predict(dense_weight, dense_bias, x)
    return torch.mse_loss(prediction, y) * scale, prediction
)";

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::dropout(torch::tanh(dense->forward(x)), 0.5, true);
  }
  torch::nn::Linear dense = register_module("dense", torch::nn::Linear(3, 2));
};

Batch batch() {
  return Batch({{"x", torch::arange(12, torch::kFloat).view({4, 3}) / 12},
                {"y", torch::arange(8, torch::kFloat).view({4, 2}) / 8}});
}

ReplicaOptions defaults() { return {}; }

std::string hash_after_steps(const Trainable& model) {
  Replica replica(model, torch::optim::SGDOptions(0.1), defaults());
  LaneVectors vectors(replica.parameters(), 1);
  LocalSum sum(vectors, gradients_of(replica.parameters()), {0, 1}, 1);
  for (int64_t step = 0; step < 3; ++step) {
    sum.begin_step();
    replica.run_lane(step, 0, batch(), sum, [](int64_t, const Batch&, const LossOutput&) {});
    sum.finish();
    replica.optimizer().step();
  }
  return replica.parameters().sha256();
}

std::shared_ptr<Net> net() {
  torch::manual_seed(3);
  return std::make_shared<Net>();
}

std::string hash_in_cpp() {
  return hash_after_steps(make_trainable(
      net(), [](Net& n, const Batch& b) { return torch::mse_loss(n.forward(b["x"]), b["y"]); }));
}

// Returns a module as torch.jit.save would write it.
torch::jit::Module scripted_module(const Net& like) {
  torch::jit::Module dense("Dense");
  dense.register_parameter("weight", like.dense->weight.detach().clone(), false);
  dense.register_parameter("bias", like.dense->bias.detach().clone(), false);
  dense.register_attribute("training", c10::BoolType::get(), true);
  dense.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n");
  torch::jit::Module module("Net");
  module.register_module("dense", dense);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.define(
      "def forward(self, x):\n  return torch.dropout(torch.tanh(self.dense.forward(x)), 0.5, True)\n");
  module.define("def loss(self, x, y):\n  return torch.mse_loss(self.forward(x), y)\n");
  for (const auto& parameter : module.parameters()) parameter.set_requires_grad(true);
  return module;
}

TEST(Script, of_functions_has_the_bits_of_the_same_in_cpp) {
  const auto script = Script::from_text(kProgram);
  EXPECT_EQ(hash_after_steps(script_model(net(), script)), hash_in_cpp());
}

TEST(Script, that_was_sent_has_the_bits_of_the_same_in_cpp) {
  const auto script = Script::from_text(kProgram);
  const auto here = net();
  const auto there = module_of(outline_of(*here));
  {
    const torch::NoGradGuard no_grad;
    const auto from = here->named_parameters();
    for (const auto& entry : there->named_parameters()) entry.value().detach().copy_(from[entry.key()]);
  }
  EXPECT_EQ(hash_after_steps(script_model(there, Script::from_text(script.content()))), hash_in_cpp());
}

TEST(Script, of_a_module_has_the_bits_of_the_same_in_cpp) {
  const TestFolder folder;
  const std::string path = folder / "net.pt";
  auto module = scripted_module(*net());
  module.save(path);
  const auto script = Script::from_file(path);
  EXPECT_TRUE(script.is_module());
  EXPECT_EQ(hash_after_steps(script_model(script)), hash_in_cpp());
  EXPECT_EQ(hash_after_steps(script_model(Script::from_bytes(script.content()))), hash_in_cpp());
}

TEST(Script, predicts_and_knows_training_from_evaluation) {
  const TestFolder folder;
  auto module = scripted_module(*net());
  module.define(
      "def predict(self, x):\n  return self.forward(x) if self.training else self.dense.forward(x)\n");
  module.save(folder / "net.pt");
  Replica replica(script_model(Script::from_file(folder / "net.pt")), torch::optim::SGDOptions(0.1),
                  defaults());
  const auto like = net();
  EXPECT_TRUE(replica.predict(batch()).equal(like->dense->forward(batch()["x"]).detach()));
}

// Debian's Python provides the PyTorch that matches Debian's LibTorch.
TEST(Script, of_a_module_that_python_has_saved_has_the_bits_of_the_same_in_cpp) {
  const std::string python = "/usr/bin/python3";
  if (std::system((python + " -c 'import torch' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "NO PYTORCH IN " << python << " (apt install python3-torch): no .pt of its was read";
  const TestFolder folder;
  const std::string path = folder / "net.pt";
  ASSERT_EQ(
      std::system(fmt::format("{} {} {}", python, source_path("tests/oracles/save_module.py"), path).c_str()),
      0);
  const auto same = net();
  {
    const torch::NoGradGuard no_grad;
    same->dense->weight.copy_(torch::arange(6).view({2, 3}) / 8);
    same->dense->bias.fill_(0.25);
  }
  EXPECT_EQ(hash_after_steps(script_model(Script::from_file(path))),
            hash_after_steps(make_trainable(
                same, [](Net& n, const Batch& b) { return torch::mse_loss(n.forward(b["x"]), b["y"]); })));
}

TEST(Script, that_does_not_fit_says_how) {
  const auto fails = [](const std::string& text, const std::string& part) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(part), [&] {
      const Trainable model = script_model(net(), Script::from_text(text));
      model.loss(batch());
    });
  };
  fails("def loss(x:", "does not compile");
  fails("def lost(x):\n  return x\n", "no function loss");
  fails("def loss(dense_wieght, x):\n  return x\n", "did you mean 'dense_weight'");
  fails("def loss(x):\n  return 3\n", "has to return the mean loss");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("torch.jit.save"),
               [] { Script::from_bytes("PK nothing"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("cannot be read"),
               [] { Script::from_file("/none.pt"); });
}

struct Mixed : torch::nn::Module {
  Mixed() {
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
    first = register_module("first", torch::nn::Linear(2, 2));
    again = register_module("again", first.ptr());
    frozen = register_parameter("frozen", torch::ones({3}), false);
    steps = register_buffer("steps", torch::zeros({}, torch::kInt64));
  }
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Linear first = nullptr;
  std::shared_ptr<torch::nn::Module> again;
  torch::Tensor frozen;
  torch::Tensor steps;
};

TEST(Outline, gives_a_module_with_the_same_parameters_in_the_same_order) {
  const auto module = std::make_shared<Mixed>();
  const auto copy = module_of(outline_of(*module));
  const Parameters here(*module);
  const Parameters there(*copy);
  EXPECT_EQ(here.plan(), there.plan());
  EXPECT_EQ(here.aliases(), there.aliases());
  EXPECT_EQ(here.frozen().size(), there.frozen().size());
  ASSERT_EQ(here.buffers().size(), there.buffers().size());
  for (size_t i = 0; i < here.buffers().size(); ++i) {
    EXPECT_EQ(here.buffers()[i].name, there.buffers()[i].name);
    EXPECT_EQ(describe(here.buffers()[i].tensor), describe(there.buffers()[i].tensor));
  }
}

TEST(Outline, that_makes_no_sense_is_refused) {
  for (
      const char* text :
      {R"({"modules": [], "parameters": [{"name": "a.b", "first": "a.b", "type": "float32", "shape": [1], "strides": [1],
            "trained": true}], "buffers": []})",
       R"({"modules": ["a", "a"], "parameters": [], "buffers": []})",
       R"({"modules": [], "parameters": [{"name": "a", "first": "a", "type": "float33", "shape": [1], "strides": [1],
            "trained": true}], "buffers": []})",
       R"({"modules": [], "parameters": [{"name": "a", "first": "a", "type": "float32",
            "shape": [1099511627776, 1099511627776], "strides": [1099511627776, 1], "trained": true}], "buffers": []})"}) {
    const Json outline = parse_json(text, "an outline");
    expect_error(ErrorKind::InvalidArgument, ::testing::_, [&] { module_of(outline); });
  }
}

}  // namespace
}  // namespace tutti::script_test
