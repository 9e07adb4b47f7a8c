// Tests exports as a program makes them. Each starts a process that checks the result: this program again.
#include "tutti/train/export.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <set>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/script.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/embedding/embedding.h"
#include "tutti/nn/sync_batch_norm.h"
#include "tutti/store/safetensors.h"
#include "tutti/train/export/check.h"
#include "tutti/train/export/torchscript.h"
#include "tutti/train/model.h"
#include "tutti/train/script.h"
#include "tutti/train/test_training.h"
#include "tutti/train/trainer.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using comm::testing::borrowed;
using comm::testing::with_ranks;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Context context_of(RunConfig config = test_flags()) {
  config.exports.checker = "/proc/self/exe";
  return test_context(config);
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

Json signature_in(const std::string& folder) {
  std::ifstream file(folder + "/signature.json");
  return Json::parse(file);
}

// What a program without Tutti computes.
torch::Tensor outputs_of(const std::string& folder, const std::vector<torch::jit::IValue>& inputs) {
  const torch::NoGradGuard no_grad;
  torch::jit::Module module = torch::jit::load(folder + "/model.pt");
  return module.forward(inputs).toTensor();
}

Batch examples_of(const data::Feed& feed, int64_t count) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) indices.push_back(i);
  return feed.read(indices);
}

torch::Tensor predictions(TestNet& net, const torch::Tensor& images) {
  const torch::NoGradGuard no_grad;
  const EvaluationScope evaluation(net);
  return net.forward(images);
}

// --- A model and its folder

TEST(Export, is_a_model_that_runs_without_this_library) {
  const TestFolder folder;
  const Context context = context_of();
  const auto net = test_net();
  Trainer trainer(context, net, torch::optim::SGDOptions(0.1), test_loss);
  const data::Feed feed = test_feed();
  trainer.fit(feed, {.steps = 5});
  const std::string path = trainer.export_model(folder / "exports", feed);
  EXPECT_EQ(path, folder / "exports/1");
  EXPECT_EQ(names_in(folder / "exports"), std::set<std::string>{"1"});
  EXPECT_EQ(names_in(path), (std::set<std::string>{"model.pt", "signature.json", "weights.safetensors"}));
  for (const int64_t count : {1, 2, 9, 100}) {
    const torch::Tensor images = examples_of(feed, count)["image"];
    EXPECT_TRUE(outputs_of(path, {images}).equal(predictions(*net, images))) << count;
  }
  EXPECT_TRUE(net->is_training());

  const store::SafetensorsFile weights(path + "/weights.safetensors");
  std::vector<std::string> names;
  for (const auto& item : net->named_parameters()) names.push_back(item.key());
  for (const auto& item : net->named_buffers()) names.push_back(item.key());
  EXPECT_EQ(weights.tensors().size(), names.size());
  for (const std::string& name : names) EXPECT_TRUE(weights.has(name)) << name;
  EXPECT_TRUE(weights.read("conv.weight").equal(net->conv->weight));

  const Json signature = signature_in(path);
  EXPECT_EQ(signature.at("format"), "torchscript");
  EXPECT_EQ(signature.at("step"), 5);
  EXPECT_EQ(signature.at("inputs").dump(),
            R"([{"name":"image","dtype":"float32","shape":[null,1,6,6],"argument":"image"}])");
  EXPECT_EQ(signature.at("outputs").dump(), R"([{"name":"prediction","dtype":"float32","shape":[null,4]}])");
  EXPECT_EQ(signature.at("check").at("same_bits"), true);
}

TEST(Export, does_not_disturb_the_training) {
  const TestFolder folder;
  const auto hash_of = [&](bool exports) {
    const Context context = context_of();
    Trainer trainer(context, test_net(), torch::optim::SGDOptions(0.1), test_loss);
    trainer.fit(test_feed().shuffle(), {.steps = 5});
    if (exports) trainer.export_model(folder.path(), test_feed());
    trainer.fit(test_feed().shuffle(), {.steps = 5});
    return trainer.report().weights_sha256;
  };
  EXPECT_EQ(hash_of(true), hash_of(false));
}

TEST(Export, has_the_layout_and_the_precision_of_the_training) {
  for (const char* precision : {"fp32", "bf16"}) {
    const TestFolder folder;
    RunConfig config = test_flags();
    config.compute.precision = precision;
    config.compute.layout = "channels-last";
    const Context context = context_of(config);
    Trainer trainer(context, test_net(), torch::optim::SGDOptions(0.1), test_loss);
    const data::Feed feed = test_feed();
    trainer.fit(feed, {.steps = 3});
    const std::string path = trainer.export_model(folder.path(), feed);
    const torch::Tensor trained = trainer.predict(feed.take(9));
    EXPECT_LE((outputs_of(path, {examples_of(feed, 9)["image"]}) - trained).abs().max().item<double>(), 0.02);
    EXPECT_EQ(signature_in(path).at("precision"), precision);
  }
}

TEST(Export, has_the_moving_average_unless_the_last_weights_are_asked_for) {
  const TestFolder folder;
  const Context context = context_of();
  const auto net = test_net();
  Trainer trainer(context, net, torch::optim::SGDOptions(0.5), test_loss, {.average = 0.9});
  const data::Feed feed = test_feed();
  trainer.fit(feed, {.steps = 10});
  const auto weight_in = [](const std::string& path) {
    return store::SafetensorsFile(path + "/weights.safetensors").read("head.weight");
  };
  torch::Tensor average;
  for (const auto& [name, tensor] : trainer.average()) {
    if (name == "head.weight") average = tensor;
  }
  const std::string averaged = trainer.export_model(folder.path(), feed);
  EXPECT_TRUE(weight_in(averaged).equal(average));
  EXPECT_EQ(signature_in(averaged).at("weights"), "average");
  const std::string last = trainer.export_model(folder.path(), feed, {.last_weights = true});
  EXPECT_TRUE(weight_in(last).equal(net->head->weight));
  EXPECT_FALSE(weight_in(last).equal(average));
  EXPECT_EQ(signature_in(last).at("weights"), "last");
}

TEST(Export, has_several_inputs_and_outputs_by_name) {
  struct Two : torch::nn::Module {
    torch::nn::Linear dense = register_module("dense", torch::nn::Linear(3, 2));
  };
  const TestFolder folder;
  const Context context = context_of();
  const auto net = std::make_shared<Two>();
  const data::Feed feed(data::from_tensors({{"class", torch::arange(8)},
                                            {"user id", torch::arange(8)},
                                            {"x", torch::rand({8, 3})},
                                            {"unused", torch::rand({8, 2})}}));
  const auto function = [net](const Batch& batch) -> std::vector<torch::Tensor> {
    const torch::Tensor sums =
        net->dense(batch["x"]) + batch["user id"].unsqueeze(1) * batch["class"].unsqueeze(1);
    return {sums.softmax(1), sums.argmax(1)};
  };
  ExportOptions options{.signature = {.outputs = {"probabilities", "best"}, .function = function}};
  const Trainable model{.module = net, .loss = {}, .predict = {}, .script = {}};
  const std::string path = export_model(context, folder.path(), "", model, feed, options);
  const Json signature = signature_in(path);
  std::vector<std::string> arguments;
  for (const Json& input : signature.at("inputs")) arguments.push_back(input.at("argument"));
  EXPECT_THAT(arguments, ElementsAre("class_", "user_id", "x"));
  EXPECT_EQ(signature.at("inputs")[1].at("name"), "user id");
  EXPECT_EQ(signature.at("inputs")[0].at("dtype"), "int64");
  EXPECT_EQ(signature.at("outputs")[1].dump(), R"({"name":"best","dtype":"int64","shape":[null]})");
  // By name, in any order.
  torch::jit::Module module = torch::jit::load(path + "/model.pt");
  const torch::Tensor x = torch::rand({2, 3});
  const torch::Tensor ids = torch::tensor({5, 6});
  const auto results = module.forward({}, {{"x", x}, {"class_", ids}, {"user_id", ids}}).toTuple();
  const auto expected = function(Batch({{"x", x}, {"class", ids}, {"user id", ids}}));
  EXPECT_TRUE(results->elements()[0].toTensor().equal(expected[0]));
  EXPECT_TRUE(results->elements()[1].toTensor().equal(expected[1]));

  options.signature.inputs = {"x", "user id", "class"};
  const Json ordered = signature_in(export_model(context, folder.path(), "", model, feed, options));
  EXPECT_EQ(ordered.at("inputs")[0].at("name"), "x");
  EXPECT_EQ(ordered.at("inputs")[2].at("name"), "class");
}

TEST(Export, copies_assets) {
  const TestFolder folder;
  const Context context = context_of();
  const Trainable model = make_trainable(test_net());
  const std::string words = folder.write("words", "one\ntwo\n");
  fs::create_directories(folder / "more/deep");
  folder.write("more/a", "A");
  folder.write("more/deep/empty", "");
  const std::string path = export_model(context, folder / "exports", "", model, test_feed(),
                                        {.assets = {{"texts/words.txt", words}, {"more", folder / "more"}}});
  std::ifstream copy(path + "/assets/texts/words.txt");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(copy), {}), "one\ntwo\n");
  EXPECT_TRUE(fs::exists(path + "/assets/more/a"));
  EXPECT_TRUE(fs::exists(path + "/assets/more/deep/empty"));
  for (const std::string name : {"", "/etc/words", "../words", "a/../../words", "."})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("asset"), [&] {
      export_model(context, folder / "exports", "", model, test_feed(), {.assets = {{name, words}}});
    });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("nothing-here"), [&] {
    export_model(context, folder / "exports", "", model, test_feed(),
                 {.assets = {{"words", folder / "nothing-here"}}});
  });
  EXPECT_EQ(names_in(folder / "exports"), std::set<std::string>{"1"});
}

TEST(Export, numbers_versions_and_replaces_none) {
  const TestFolder folder;
  const Context context = context_of();
  const Trainable model = make_trainable(test_net());
  const auto version = [&](int64_t number) {
    return fs::path(export_model(context, folder.path(), "", model, test_feed(), {.version = number}))
        .filename()
        .string();
  };
  EXPECT_EQ(version(0), "1");
  EXPECT_EQ(version(41), "41");
  folder.write("notes.txt", "100");
  EXPECT_EQ(version(0), "42");
  EXPECT_EQ(version(7), "7");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("41 exists already"), [&] { version(41); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("version"), [&] { version(-1); });
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"1", "7", "41", "42", "notes.txt"}));
}

// --- What cannot be exported

TEST(Export, says_what_is_wrong_with_the_options) {
  const TestFolder folder;
  const Context context = context_of();
  const Trainable model = make_trainable(test_net());
  const auto fails = [&](const ExportOptions& options, const std::string& part) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(part),
                 [&] { export_model(context, folder.path(), "", model, test_feed(), options); });
  };
  fails({.signature = {.inputs = {"imag"}}}, "no tensor 'imag'; the batch has: image, label");
  fails({.signature = {.inputs = {"image", "image"}}}, "twice");
  fails({.signature = {.outputs = {}}}, "without an output");
  fails({.signature = {.outputs = {"a", "b"}}}, "names 2 outputs (a, b)");
  fails({.signature = {.outputs = {""}}}, "without a name");
  fails({.leave_out = {"user"}}, "no embedding 'user'");
  fails({.tolerance = -1}, "tolerance");
  fails({.tolerance = std::numeric_limits<double>::quiet_NaN()}, "tolerance");
  fails({.examples = 0}, "0 examples");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no examples"),
               [&] { export_model(context, folder.path(), "", model, test_feed().take(0)); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("directory"),
               [&] { export_model(context, "", "", model, test_feed()); });
  struct Lossy : torch::nn::Module {
    torch::Tensor w = register_parameter("w", torch::rand({3}));
  };
  expect_error(ErrorKind::InvalidArgument, HasSubstr("predictions"), [&] {
    export_model(context, folder.path(), "", make_trainable(std::make_shared<Lossy>()), test_feed());
  });
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>());
}

TEST(Export, needs_only_one_example) {
  const TestFolder folder;
  const Context context = context_of();
  const auto net = test_net();
  const std::string path =
      export_model(context, folder.path(), "", make_trainable(net), test_feed(1), {.examples = 1});
  const torch::Tensor images = examples_of(test_feed(), 9)["image"];
  EXPECT_TRUE(outputs_of(path, {images}).equal(predictions(*net, images)));
}

// These models give the same trace for both traced batches, and wrong results for others. The check finds it.
TEST(Export, of_a_model_whose_trace_is_wrong_for_other_batches_is_not_published) {
  const TestFolder folder;
  const Context context = context_of();
  struct Net : torch::nn::Module {
    torch::nn::Linear dense = register_module("dense", torch::nn::Linear(36, 4));
  };
  const auto net = std::make_shared<Net>();
  const auto fails = [&](const std::function<torch::Tensor(const torch::Tensor&)>& function,
                         const std::string& part) {
    const Trainable model{
        .module = net,
        .loss = {},
        .predict = [&](const Batch& batch) { return function(net->dense(batch["image"].flatten(1))); },
        .script = {}};
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("not the trained one"), HasSubstr(part)),
                 [&] { export_model(context, folder.path(), "", model, test_feed()); });
    EXPECT_EQ(names_in(folder.path()), std::set<std::string>());
  };
  fails([](const torch::Tensor& x) { return x.size(0) < 8 ? x.relu() : x.tanh(); },
        "a batch of 1 examples the output 'prediction' of example 0");
  // A decision by the values, which are the same in both of the traced batches only.
  fails([](const torch::Tensor& x) { return x.size(0) == 7 && x.sum().item<float>() != 0 ? x + 1 : x; },
        "a batch of 7 examples");
  fails([](const torch::Tensor& x) { return x.size(0) < 8 ? x : x.flatten(); }, "is float32[4] instead of");
  fails([](const torch::Tensor& x) { return x + torch::rand_like(x); }, "tolerance");
}

TEST(Export, accepts_differences_up_to_the_tolerance) {
  const TestFolder folder;
  const Context context = context_of();
  const auto net = test_net();
  int calls = 0;
  const Trainable model{.module = net,
                        .loss = {},
                        .predict =
                            [&](const Batch& batch) {
                              // The first four calls are those whose results are compared.
                              return net->forward(batch["image"]) + (calls++ < 4 ? 1e-3 : 0);
                            },
                        .script = {}};
  expect_error(ErrorKind::InvalidArgument, HasSubstr("tolerance 1e-05"),
               [&] { export_model(context, folder.path(), "", model, test_feed()); });
  calls = 0;
  const Json check =
      signature_in(export_model(context, folder.path(), "", model, test_feed(), {.tolerance = 0.01}))
          .at("check");
  EXPECT_EQ(check.at("same_bits"), false);
  EXPECT_NEAR(check.at("greatest_difference").get<double>(), 1e-3, 5e-4);
}

TEST(Export, knows_that_two_values_that_are_no_numbers_are_the_same) {
  const TestFolder folder;
  const Context context = context_of();
  const auto net = test_net();
  const Trainable model{.module = net,
                        .loss = {},
                        .predict =
                            [&](const Batch& batch) {
                              return torch::cat(
                                  {net->forward(batch["image"]), batch["image"].log().flatten(1),
                                   (-batch["image"]).log().flatten(1)},
                                  1);
                            },
                        .script = {}};
  const Json check = signature_in(export_model(context, folder.path(), "", model, test_feed())).at("check");
  EXPECT_EQ(check.at("same_bits"), true);
}

// --- Files and processes that fail

TEST(Export, into_a_place_that_cannot_be_written_says_so) {
  const TestFolder folder;
  const Context context = context_of();
  const Trainable model = make_trainable(test_net());
  folder.write("file", "");
  for (const char* place : {"file", "file/exports"})
    expect_error(ErrorKind::InvalidArgument, HasSubstr(folder / "file"),
                 [&] { export_model(context, folder / place, "", model, test_feed()); });
  RunConfig config = test_flags();
  config.exports.checker = folder / "nobody";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("nobody"),
               [&] { export_model(test_context(config), folder / "exports", "", model, test_feed()); });
  config.exports.checker = "/bin/true";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("without a result"),
               [&] { export_model(test_context(config), folder / "exports", "", model, test_feed()); });
  config.exports.checker = "/bin/false";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("exit code 1"),
               [&] { export_model(test_context(config), folder / "exports", "", model, test_feed()); });
  EXPECT_EQ(names_in(folder / "exports"), std::set<std::string>());
}

TEST(Export, that_is_checked_by_a_process_that_hangs_is_given_up) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.network.timeout = 0.02;
  config.exports.checker = folder.write("hangs", "#!/bin/sh\nexec sleep 1000\n");
  fs::permissions(config.exports.checker, fs::perms::owner_all);
  expect_error(ErrorKind::Timeout, HasSubstr("has not ended within 0.2 s"), [&] {
    export_model(test_context(config), folder / "exports", "", make_trainable(test_net()), test_feed());
  });
  EXPECT_EQ(names_in(folder / "exports"), std::set<std::string>());
}

// Calls `body` in a child process whose folder is a file system of its own, of that size.
void on_small_disk(const std::string& folder, const std::string& size, const std::function<void()>& body) {
  constexpr int kNotAllowed = 77;
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.c_str(), "tmpfs", 0, size.c_str()) != 0)
      ::_exit(kNotAllowed);
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed)
    GTEST_SKIP() << "NOT TESTED: mounting is not allowed here";
  EXPECT_EQ(status, 0);
}

struct Large : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x.flatten(1) * weight.sum(); }
  torch::Tensor weight = register_parameter("weight", torch::zeros({250000}));  // 1 MB
};

// The model does not fit, fits once but not twice, and twice but not with the examples.
TEST(Export, to_a_full_disk_says_so_and_leaves_nothing) {
  const TestFolder folder;
  const Context context = context_of();
  const data::Feed feed(data::from_tensors({{"x", torch::rand({100, 20000})}}));
  const Trainable model = make_trainable(std::make_shared<Large>());
  for (const char* size : {"size=600k", "size=1500k", "size=2300k"}) {
    on_small_disk(folder.path(), size, [&] {
      expect_error(ErrorKind::Overloaded, HasSubstr("No space left on device"),
                   [&] { export_model(context, folder.path(), "", model, feed); });
      EXPECT_EQ(names_in(folder.path()), std::set<std::string>());
    });
  }
}

// --- Kinds of models

TEST(Export, of_a_model_in_a_few_lines_has_its_outputs) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.compute.threads = 1;
  const Context context = context_of(config);
  torch::manual_seed(5);
  const torch::Tensor x = torch::rand({40, 3});
  const data::Feed feed(
      data::from_tensors({{"desc", x}, {"targ", x.sum(1, true).gt(1.5).to(torch::kFloat)}}));
  Model model(context);
  const auto desc = model.input("desc");
  const auto targ = model.target("targ");
  const auto logits = model.net(nn::WindowInput() | nn::Dense(5, torch::tanh) | nn::Dense(1), desc);
  model.output("pred", torch::sigmoid, logits);
  model.output("logit", logits);
  model.loss(
      "xent",
      [](const torch::Tensor& t, const torch::Tensor& l) {
        return torch::binary_cross_entropy_with_logits(l, t);
      },
      targ, logits);
  model.fit(feed, torch::optim::SGDOptions(0.1), {.steps = 3});
  const std::string path = model.trainer().export_model(folder.path(), feed);
  torch::jit::Module module = torch::jit::load(path + "/model.pt");
  const auto results = module.forward({x}).toTuple();
  const torch::Tensor both =
      torch::cat({results->elements()[0].toTensor(), results->elements()[1].toTensor()}, 1);
  EXPECT_TRUE(both.allclose(model.predict(feed), 1e-6, 1e-6));
  const Json signature = signature_in(path);
  EXPECT_EQ(signature.at("inputs").size(), 1U);
  EXPECT_EQ(signature.at("outputs")[0].at("name"), "pred");
  EXPECT_EQ(signature.at("outputs")[1].at("name"), "logit");
}

TEST(Export, of_a_program_of_torchscript_works) {
  const TestFolder folder;
  const Context context = context_of();
  struct Parameters : torch::nn::Module {
    torch::Tensor w = register_parameter("w", torch::rand({3, 1}));
  };
  const Trainable model = script_model(std::make_shared<Parameters>(), Script::from_text(R"(
def predict(w, x):
    y = torch.matmul(x, w)
    if bool(y.sum() > 0):
        y = y * 2
    return y

def loss(w, x):
    return predict(w, x).mean()
)"));
  const data::Feed feed(data::from_tensors({{"x", torch::rand({40, 3})}}));
  const std::string path = export_model(context, folder.path(), "", model, feed);
  // The decision stays one.
  for (const double sign : {1.0, -1.0}) {
    const torch::Tensor x = torch::rand({5, 3}) * sign;
    EXPECT_TRUE(outputs_of(path, {x}).allclose(model.predict(Batch({{"x", x}}))));
  }
}

TEST(Export, of_a_model_with_batch_norm_over_all_workers_works) {
  struct Net : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) { return dense(norm(x).flatten(1)); }
    nn::SyncBatchNorm norm = register_module("norm", nn::SyncBatchNorm(1));
    torch::nn::Linear dense = register_module("dense", torch::nn::Linear(36, 4));
  };
  const TestFolder folder;
  const Context context = context_of();
  Trainer trainer(context, std::make_shared<Net>(), torch::optim::SGDOptions(0.1),
                  [](Net& net, const Batch& batch) {
                    return torch::cross_entropy_loss(net.forward(batch["image"]), batch["label"]);
                  });
  trainer.fit(test_feed(), {.steps = 3});
  const std::string path = trainer.export_model(folder.path(), test_feed());
  EXPECT_TRUE(
      outputs_of(path, {examples_of(test_feed(), 9)["image"]}).equal(trainer.predict(test_feed().take(9))));
}

TEST(Export, has_tied_parameters_once_under_the_name_of_the_checkpoint) {
  struct Tied : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& words) { return torch::matmul(embedding(words), output.t()); }
    torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(10, 4));
    torch::Tensor output = register_parameter("output", embedding->weight);
  };
  const TestFolder folder;
  const Context context = context_of();
  const auto net = std::make_shared<Tied>();
  const data::Feed feed(data::from_tensors({{"words", torch::arange(30) % 10}}));
  const std::string path = export_model(context, folder.path(), "", make_trainable(net), feed);
  const torch::jit::Module module = torch::jit::load(path + "/model.pt");
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) names.push_back(parameter.name);
  EXPECT_THAT(names, ElementsAre("output"));
  const torch::Tensor words = torch::tensor({3, 9, 3});
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(outputs_of(path, {words}).equal(net->forward(words)));
}

// --- Embeddings

// A sharded table with two columns, lists of ids in another, and a small table, with bad ids of each kind.
struct Tables : torch::nn::Module {
  static nn::EmbeddingOptions sharded(std::vector<std::string> columns, embedding::BadIds bad_ids,
                                      embedding::Placement placement) {
    return {.columns = std::move(columns), .placement = placement, .bad_ids = bad_ids, .replicate_up_to = 0};
  }
  explicit Tables(embedding::Placement placement = embedding::Placement::Mod)
      : user(register_module(
            "user", nn::Embedding(50, 3, sharded({"user", "friend"}, embedding::BadIds::Drop, placement)))),
        items(register_module("items", nn::EmbeddingBag(31, 3, nn::Pooling::Mean,
                                                        sharded({}, embedding::BadIds::Clamp, placement)))),
        day(register_module("day", nn::Embedding(7, 3))),
        dense(register_module("dense", torch::nn::Linear(3, 1))) {
    // Ranks are threads here, which share LibTorch's random numbers.
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters())
      parameter.copy_(torch::linspace(-1, 1, parameter.numel()).view(parameter.sizes()));
  }

  torch::Tensor forward(const Batch& batch) {
    torch::Tensor sum = user(batch["user"]);
    sum = sum * user(batch["friend"]) + 0.1;
    sum = sum + items(batch["items"]);
    return dense(sum + day(batch["day"])).squeeze(1);
  }

  nn::Embedding user;
  nn::EmbeddingBag items;
  nn::Embedding day;
  torch::nn::Linear dense;
};

Trainable tables_model(const std::shared_ptr<Tables>& net) {
  Trainable model = make_trainable(net, [](Tables& tables, const Batch& batch) {
    return (tables.forward(batch) - batch["y"]).square().mean();
  });
  model.predict = [net](const Batch& batch) { return net->forward(batch); };
  return model;
}

data::Feed tables_feed() {
  torch::manual_seed(9);
  return data::Feed(data::from_tensors({{"user", torch::randint(-3, 55, {60})},
                                        {"friend", torch::randint(0, 50, {60}, torch::kInt)},
                                        {"items", torch::randint(-1, 35, {60, 4})},
                                        {"day", torch::randint(0, 7, {60})},
                                        {"y", torch::rand({60})}}));
}

std::vector<torch::jit::IValue> table_inputs(const Batch& batch) {
  return {batch["user"], batch["friend"], batch["items"], batch["day"]};
}

TEST(ExportOfTables, has_all_rows_in_the_order_of_their_ids) {
  for (const auto placement :
       {embedding::Placement::Mod, embedding::Placement::Block, embedding::Placement::Hash}) {
    const TestFolder folder;
    const Context context = context_of();
    Trainer trainer(context, tables_model(std::make_shared<Tables>(placement)),
                    torch::optim::SGDOptions(0.1));
    const data::Feed feed = tables_feed();
    trainer.fit(feed, {.steps = 5});
    const std::string path = trainer.export_model(folder.path(), feed);
    EXPECT_TRUE(outputs_of(path, table_inputs(examples_of(feed, 60))).equal(trainer.predict(feed)));
    const store::SafetensorsFile weights(path + "/weights.safetensors");
    EXPECT_EQ(weights.read("user.weight").sizes(), (std::vector<int64_t>{50, 3}));
    EXPECT_EQ(weights.read("items.weight").sizes(), (std::vector<int64_t>{31, 3}));
    EXPECT_TRUE(weights.has("day.weight"));
  }
}

// On shared memory, where the chief reads all rows, and over a network, where they are fetched and sent.
TEST(ExportOfTables, of_any_number_of_workers_is_that_of_one) {
  const data::Feed feed = tables_feed();
  const auto exported = [&](const std::string& backend, int world, const ExportOptions& options = {}) {
    const TestFolder folder;
    std::mutex mutex;
    std::set<std::string> paths;
    with_ranks(backend, world, [&](comm::Communicator& comm) {
      RunConfig config = test_flags();
      config.training.lanes = 4;
      const Context context = context_of(config);
      Trainer trainer(context, tables_model(std::make_shared<Tables>()), torch::optim::SGDOptions(0.1),
                      {.group = Group(borrowed(comm))});
      trainer.fit(feed, {.steps = 5});
      const std::string path = trainer.export_model(folder.path(), feed, options);
      trainer.fit(feed, {.steps = 1});
      const std::lock_guard lock(mutex);
      paths.insert(path);
    });
    EXPECT_EQ(paths.size(), 1U);
    std::vector<torch::Tensor> all;
    for (const auto& [name, tensor] :
         store::SafetensorsFile(*paths.begin() + "/weights.safetensors").read_all())
      all.push_back(tensor.flatten());
    return torch::cat(all);
  };
  const torch::Tensor alone = exported("inproc", 1);
  for (const int world : {2, 3})
    for (const char* backend : {"inproc", "shm", "plain"})
      EXPECT_TRUE(exported(backend, world).equal(alone)) << backend << world;
}

TEST(ExportOfTables, leaves_tables_out_by_name_and_takes_their_vectors) {
  const TestFolder folder;
  const Context context = context_of();
  const auto net = std::make_shared<Tables>();
  Trainer trainer(context, tables_model(net), torch::optim::SGDOptions(0.1));
  const data::Feed feed = tables_feed();
  trainer.fit(feed, {.steps = 5});
  const std::string path = trainer.export_model(folder.path(), feed, {.leave_out = {"user", "items", "day"}});
  const Json inputs = signature_in(path).at("inputs");
  std::vector<std::string> names;
  for (const Json& input : inputs) names.push_back(input.at("name"));
  EXPECT_THAT(names,
              ElementsAre("items", "user.vectors.1", "user.vectors.2", "items.vectors", "day.vectors"));
  EXPECT_EQ(inputs[2].dump(), R"({"name":"user.vectors.2","dtype":"float32","shape":[null,3],)"
                              R"("argument":"user_vectors_2","table":"user","ids":"friend"})");
  EXPECT_EQ(inputs[3].at("shape").dump(), "[null,4,3]");
  const store::SafetensorsFile weights(path + "/weights.safetensors");
  EXPECT_EQ(weights.tensors().size(), 2U);
  const Batch batch = examples_of(feed, 60);
  const torch::NoGradGuard no_grad;
  const torch::Tensor lists = net->items->table()->look_up(batch["items"], {});
  EXPECT_TRUE(outputs_of(path, {batch["items"], net->user(batch["user"]), net->user(batch["friend"]), lists,
                                net->day(batch["day"])})
                  .equal(trainer.predict(feed)));
}

// An exported model cannot make the rows of new ids.
TEST(ExportOfTables, that_are_dynamic_have_to_be_left_out) {
  struct Growing : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& id) { return dense(user(id)).squeeze(1); }
    nn::Embedding user = register_module("user", nn::Embedding(0, 2, nn::EmbeddingOptions{.dynamic = true}));
    torch::nn::Linear dense = register_module("dense", torch::nn::Linear(2, 1));
  };
  const data::Feed feed(data::from_tensors(
      {{"user", torch::arange(60).remainder(17) * 1'000'000'007}, {"y", torch::linspace(0, 1, 60)}}));
  const TestFolder folder;
  for (const int world : {1, 3}) {
    with_ranks("plain", world, [&](comm::Communicator& comm) {
      RunConfig config = test_flags();
      config.training.lanes = 4;
      const Context context = context_of(config);
      const auto net = std::make_shared<Growing>();
      Trainable model = make_trainable(net, [](Growing& growing, const Batch& batch) {
        return (growing.forward(batch["user"]) - batch["y"]).square().mean();
      });
      model.predict = [net](const Batch& batch) { return net->forward(batch["user"]); };
      Trainer trainer(context, model, torch::optim::SGDOptions(0.1), {.group = Group(borrowed(comm))});
      trainer.fit(feed, {.steps = 5});
      expect_error(ErrorKind::InvalidArgument, HasSubstr("the embedding 'user' is dynamic"),
                   [&] { trainer.export_model(folder.path(), feed); });
      const std::string path = trainer.export_model(folder.path(), feed, {.leave_out = {"user"}});
      const torch::Tensor trained = trainer.predict(feed);
      if (world > 1) return;
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(outputs_of(path, {net->user(examples_of(feed, 60)["user"])}).equal(trained));
    });
  }
}

TEST(ExportOfTables, fails_for_ids_that_are_errors_in_the_training) {
  struct Strict : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& id) { return user(id).sum(1); }
    nn::Embedding user =
        register_module("user", nn::Embedding(10, 2, nn::EmbeddingOptions{.replicate_up_to = 0}));
  };
  const TestFolder folder;
  const Context context = context_of();
  const data::Feed feed(data::from_tensors({{"user", torch::arange(30) % 10}}));
  const std::string path =
      export_model(context, folder.path(), "", make_trainable(std::make_shared<Strict>()), feed);
  EXPECT_ANY_THROW(outputs_of(path, {torch::tensor({1, 10})}));
  EXPECT_ANY_THROW(outputs_of(path, {torch::tensor({-1})}));
  EXPECT_EQ(outputs_of(path, {torch::tensor({9})}).numel(), 1);
}

// --- Checkpoints

TEST(ExportOfACheckpoint, has_its_average_and_its_rows) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  const data::Feed feed = tables_feed();
  torch::Tensor trained;
  {
    const Context context = context_of(config);
    Trainer trainer(context, tables_model(std::make_shared<Tables>()), torch::optim::AdamOptions(0.01));
    trainer.fit(feed, {.steps = 5});
    trained = trainer.predict(feed);
  }
  const Context context = context_of();
  for (const std::string from : {"run", "run/ckpt-5"}) {
    const std::string path = export_model(context, folder / "exports", folder / from,
                                          tables_model(std::make_shared<Tables>()), feed);
    EXPECT_TRUE(outputs_of(path, table_inputs(examples_of(feed, 60))).equal(trained));
    EXPECT_EQ(signature_in(path).at("step"), 5);
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("there is no checkpoint here"), [&] {
    export_model(context, folder / "exports", folder.path(), tables_model(std::make_shared<Tables>()), feed);
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("do not fit the model"), [&] {
    export_model(context, folder / "exports", folder / "run", make_trainable(test_net()), test_feed());
  });
}

// The flags --export and --export-from.
TEST(ExportOfACheckpoint, is_made_by_a_trainer_that_is_told_to) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  const data::Feed feed = test_feed();
  torch::Tensor average;
  {
    const Context context = context_of(config);
    Trainer trainer(context, test_net(), torch::optim::SGDOptions(0.1), test_loss, {.average = 0.9});
    trainer.fit(feed, {.steps = 5});
    average = trainer.predict(feed);
  }
  config.checkpoints.logdir.clear();
  config.exports.dir = folder / "exports";
  config.exports.from = folder / "run";
  const Context context = context_of(config);
  Trainer trainer(context, test_net(2), torch::optim::SGDOptions(0.1), test_loss,
                  {.average = 0.9, .exports = {.signature = {.outputs = {"scores"}}}});
  std::string path;
  try {
    trainer.fit(feed, {.steps = 5});
    ADD_FAILURE() << "it trains";
  } catch (const ExportDone& done) {
    path = done.path();
  }
  EXPECT_TRUE(outputs_of(path, {examples_of(feed, 100)["image"]}).equal(average));
  EXPECT_EQ(signature_in(path).at("outputs")[0].at("name"), "scores");
  EXPECT_EQ(signature_in(path).at("weights"), "average");
}

// --- Several workers

TEST(ExportOfAGroup, tells_all_workers_the_path_or_the_same_error) {
  const TestFolder folder;
  folder.write("file", "");
  const data::Feed feed = test_feed();
  for (const int world : {1, 2, 3}) {
    std::mutex mutex;
    std::set<std::string> paths;
    std::set<std::string> errors;
    with_ranks("inproc", world, [&](comm::Communicator& comm) {
      RunConfig config = test_flags();
      config.training.lanes = 3;
      const Context context = context_of(config);
      Trainer trainer(context, test_net(), torch::optim::SGDOptions(0.1), test_loss,
                      {.group = Group(borrowed(comm))});
      trainer.fit(feed, {.steps = 2});
      const std::string error =
          error_of(ErrorKind::InvalidArgument, [&] { trainer.export_model(folder / "file", feed); });
      const std::string path = trainer.export_model(folder / "exports", feed);
      trainer.fit(feed, {.steps = 1});  // they can go on
      const std::lock_guard lock(mutex);
      errors.insert(error);
      paths.insert(path);
    });
    EXPECT_EQ(paths, std::set<std::string>{folder / fmt::format("exports/{}", world)});
    EXPECT_EQ(errors.size(), 1U);
  }
}

TEST(ExportOfAGroup, is_possible_without_a_trainer) {
  const TestFolder folder;
  const data::Feed feed = test_feed();
  std::mutex mutex;
  std::vector<std::string> paths;
  with_ranks("inproc", 3, [&](comm::Communicator& comm) {
    const std::string path = export_model(context_of(), folder.path(), "", make_trainable(test_net()), feed,
                                          {}, Group(borrowed(comm)));
    const std::lock_guard lock(mutex);
    paths.push_back(path);
  });
  EXPECT_THAT(paths, ElementsAre(folder / "1", folder / "1", folder / "1"));
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  if (const auto code = tutti::answer_export_check(tutti::Environment::of_process())) return *code;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
