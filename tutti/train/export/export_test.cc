// Tests exports as a program makes them: the folder, options and models that are wrong, files and processes
// that fail.
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
#include "tutti/store/safetensors.h"
#include "tutti/train/export/check.h"
#include "tutti/train/export/test_export.h"
#include "tutti/train/test_training.h"
#include "tutti/train/trainer.h"

namespace tutti::export_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

torch::Tensor predictions(TestNet& net, const torch::Tensor& images) {
  const torch::NoGradGuard no_grad;
  const EvaluationScope evaluation(net);
  return net.forward(images);
}

// --- A model and its folder

TEST(Export, is_a_model_that_runs_without_this_library) {
  const TestFolder folder;
  const Context context = export_context();
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
    const Context context = export_context();
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
    const Context context = export_context(config);
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
  const Context context = export_context();
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
  const Context context = export_context();
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
  const Context context = export_context();
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
  const Context context = export_context();
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
  version(std::numeric_limits<int64_t>::max());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("there is no number above"), [&] { version(0); });
}

// --- What cannot be exported

TEST(Export, says_what_is_wrong_with_the_options) {
  const TestFolder folder;
  const Context context = export_context();
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
  const Context context = export_context();
  const auto net = test_net();
  const std::string path =
      export_model(context, folder.path(), "", make_trainable(net), test_feed(1), {.examples = 1});
  const torch::Tensor images = examples_of(test_feed(), 9)["image"];
  EXPECT_TRUE(outputs_of(path, {images}).equal(predictions(*net, images)));
}

// These models give the same trace for both traced batches, and wrong results for others. The check finds it.
TEST(Export, of_a_model_whose_trace_is_wrong_for_other_batches_is_not_published) {
  const TestFolder folder;
  const Context context = export_context();
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
  const Context context = export_context();
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
  const Context context = export_context();
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
  const Context context = export_context();
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
  expect_error(ErrorKind::InvalidArgument, HasSubstr("exit code 1 (an error of the program)"),
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
  const Context context = export_context();
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

}  // namespace
}  // namespace tutti::export_test

int main(int argc, char** argv) {
  if (const auto code = tutti::answer_export_check(tutti::Environment::of_process())) return *code;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
