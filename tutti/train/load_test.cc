#include "tutti/train/load.h"

#include <filesystem>

#include <torch/csrc/jit/serialization/pickle.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/store/safetensors.h"
#include "tutti/train/test_trainer.h"

namespace tutti::load_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

// TestNet with its layers under another name, and another head.
struct FineTuned : torch::nn::Module {
  explicit FineTuned(int64_t classes = 7)
      : head(register_module("head", torch::nn::Linear(3 * 4 * 4, classes))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return head(torch::relu(body->norm(body->conv(x))).flatten(1));
  }
  struct Body : torch::nn::Module {
    torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3)));
    torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(3));
  };
  std::shared_ptr<Body> body = register_module("body", std::make_shared<Body>());
  torch::nn::Linear head;
};

class Load : public testing::Test {
 protected:
  // A run of 20 steps, whose weights have this hash.
  Load() {
    RunConfig config = test_flags();
    config.checkpoints.logdir = run_;
    hash_ = train(config, 20);
  }
  std::string file(const std::vector<store::NamedTensor>& tensors) const {
    const std::string path = folder_ / "weights.safetensors";
    store::write_safetensors(path, tensors);
    return path;
  }

  const TestFolder folder_;
  const std::string run_ = folder_ / "run";
  std::string hash_;
};

TEST(Predict, gives_each_module_its_own_mode_back) {
  const auto net = test_net();
  net->norm->eval();  // not trained
  predict(make_trainable(net), test_feed(4));
  EXPECT_TRUE(net->is_training());
  EXPECT_TRUE(net->head->is_training());
  EXPECT_FALSE(net->norm->is_training());
  net->eval();
  predict(make_trainable(net), test_feed(4));
  EXPECT_FALSE(net->is_training());
}

TEST_F(Load, reads_a_checkpoint_a_log_directory_and_a_file) {
  for (const std::string& path :
       {run_, run_ + "/ckpt-20", run_ + "/latest", run_ + "/ckpt-20/weights.safetensors"}) {
    const auto tensors = load(path);
    EXPECT_EQ(tensors.size(), 9U) << path;
    EXPECT_EQ(tensors.at("head.weight").sizes(), (std::vector<int64_t>{4, 48}));
    EXPECT_TRUE(tensors.contains("norm.running_var"));
    const auto net = test_net(99);
    EXPECT_EQ(load_weights(*net, path).loaded.size(), 9U);
    EXPECT_EQ(Parameters(*net).sha256(), hash_);
    EXPECT_TRUE(net->norm->running_var.equal(tensors.at("norm.running_var")));
  }
}

TEST_F(Load, says_what_a_path_should_be) {
  const auto refused = [](const std::string& path) {
    return error_of(ErrorKind::InvalidArgument, [&] { load(path); });
  };
  EXPECT_THAT(refused(folder_ / "nowhere"), HasSubstr("there is no such file or folder"));
  EXPECT_THAT(refused(folder_.path()),
              AllOf(HasSubstr("subfolders with checkpoints: run"), HasSubstr("ckpt-STEP")));
  const std::string weights = run_ + "/ckpt-20/weights.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 1);
  for (const std::string& path : {run_, weights})
    EXPECT_THAT(error_of(ErrorKind::DataLoss, [&] { load(path); }), HasSubstr("weights.safetensors"));
}

TEST_F(Load, loads_into_parameters_that_were_joined) {
  const auto net = test_net(99);
  Parameters parameters(*net);
  EXPECT_EQ(load_weights(parameters, run_).loaded.size(), 9U);
  EXPECT_EQ(parameters.sha256(), hash_);
  EXPECT_TRUE(net->head->weight.equal(load(run_).at("head.weight")));
  EXPECT_TRUE(net->head->weight.requires_grad());
}

TEST_F(Load, fine_tunes_with_another_head) {
  FineTuned net;
  const torch::Tensor head = net.head->weight.detach().clone();
  const LoadedWeights result = load_weights(
      net, run_, {.rename = {{"conv.", "body.conv."}, {"norm.", "body.norm."}}, .only = "body.*"});
  EXPECT_THAT(result.loaded, UnorderedElementsAre("body.conv.weight", "body.conv.bias", "body.norm.weight",
                                                  "body.norm.bias", "body.norm.running_mean",
                                                  "body.norm.running_var", "body.norm.num_batches_tracked"));
  EXPECT_THAT(result.unused, UnorderedElementsAre("head.weight", "head.bias"));
  EXPECT_THAT(result.missing, IsEmpty());
  EXPECT_TRUE(net.body->conv->weight.equal(load(run_).at("conv.weight")));
  EXPECT_TRUE(net.head->weight.equal(head));
}

TEST_F(Load, a_function_renames_and_leaves_out) {
  FineTuned net;
  const auto rename = [](const std::string& name) { return name.starts_with("head.") ? "" : "body." + name; };
  EXPECT_THAT(
      error_of(ErrorKind::InvalidArgument, [&] { load_weights(net, run_, {.rename = rename}); }),
      AllOf(HasSubstr("+ head.weight float32[7,48]"), HasSubstr("+ head.bias"), Not(HasSubstr("conv"))));
  const LoadedWeights result = load_weights(net, run_, {.rename = rename, .missing = Missing::Allow});
  EXPECT_THAT(result.missing, UnorderedElementsAre("head.weight", "head.bias"));
  EXPECT_EQ(result.loaded.size(), 7U);
}

TEST_F(Load, lists_all_differences_and_changes_nothing) {
  const auto net = test_net(99);
  const std::string before = Parameters(*net).sha256();
  auto tensors = load(run_);
  std::vector<store::NamedTensor> changed;
  for (const auto& [name, tensor] : tensors) {
    if (name == "conv.bias") continue;
    if (name == "conv.weight")
      changed.push_back({name, torch::zeros({1, 3, 3, 3})});
    else if (name == "norm.num_batches_tracked")
      changed.push_back({name, torch::zeros({}, torch::kFloat)});
    else
      changed.push_back({name, tensor});
  }
  changed.push_back({"extra", torch::zeros({2})});
  const std::string text = error_of(ErrorKind::InvalidArgument, [&] { load_weights(*net, file(changed)); });
  EXPECT_THAT(text,
              AllOf(HasSubstr("+ conv.bias float32[3]"), HasSubstr("- extra float32[2]"),
                    HasSubstr("! conv.weight is float32[1,3,3,3] in the file, float32[3,1,3,3] in the model"),
                    HasSubstr("! norm.num_batches_tracked is float32[]"), Not(HasSubstr("head"))));
  EXPECT_EQ(Parameters(*net).sha256(), before);
}

TEST_F(Load, refuses_to_load_nothing_or_two_tensors_into_one) {
  const auto net = test_net();
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument,
                       [&] { load_weights(*net, run_, {.only = "hed.*", .missing = Missing::Allow}); }),
              HasSubstr("that fits 'hed.*'"));
  EXPECT_THAT(
      error_of(ErrorKind::InvalidArgument,
               [&] { load_weights(*net, run_, {.rename = [](const std::string&) { return "conv.bias"; }}); }),
      AllOf(HasSubstr("both 'conv.bias' and 'conv.weight'"), HasSubstr("the name 'conv.bias'")));
}

TEST_F(Load, converts_floating_types) {
  torch::nn::Linear net(3, 2);
  const torch::Tensor weight = torch::rand({2, 3}).to(torch::kBFloat16);
  load_weights(net, file({{"weight", weight}, {"bias", torch::zeros({2}, torch::kDouble)}}));
  EXPECT_TRUE(net->weight.equal(weight.to(torch::kFloat)));
}

// A parameter with two names, of which the file of another program, or of an older version, may have one.
struct Tied : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
  torch::Tensor out = register_parameter("out", in->weight);
};

TEST_F(Load, finds_a_shared_tensor_under_any_of_its_names) {
  const torch::Tensor weight = torch::rand({3, 3});
  for (const std::string name : {"in.weight", "out"}) {
    Tied net;
    Tied joined;
    Parameters parameters(joined);
    load_weights(net, file({{name, weight}}));
    load_weights(parameters, file({{name, weight}}));
    EXPECT_TRUE(net.out.equal(weight)) << name;
    EXPECT_TRUE(joined.in->weight.equal(weight)) << name;
  }
}

TEST_F(Load, refuses_different_tensors_for_one_that_the_model_shares) {
  Tied net;
  const torch::Tensor weight = torch::rand({3, 3});
  load_weights(net, file({{"in.weight", weight}, {"out", weight}}));
  EXPECT_TRUE(net.out.equal(weight));
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument,
                       [&] {
                         load_weights(net, file({{"in.weight", weight}, {"out", weight + 1}}));
                       }),
              HasSubstr("! in.weight is another tensor than out in the file, the same one in the model"));
  EXPECT_TRUE(net.out.equal(weight));
}

// LibTorch writes like torch.save() of Python; store/torch_file_test.cc reads files of Python's own.
TEST_F(Load, reads_a_dictionary_that_torch_save_has_written) {
  c10::Dict<std::string, torch::Tensor> tensors;
  for (const auto& [name, tensor] : load(run_)) tensors.insert(name, tensor);
  const std::vector<char> bytes = torch::jit::pickle_save(tensors);
  const std::string path = folder_.write("weights.pt", std::string(bytes.begin(), bytes.end()));
  const auto net = test_net(99);
  EXPECT_EQ(load_weights(*net, path).loaded.size(), 9U);
  EXPECT_EQ(Parameters(*net).sha256(), hash_);
  EXPECT_THAT(error_of(ErrorKind::DataLoss,
                       [&] { load(folder_.write("cut.pt", std::string(bytes.begin(), bytes.end() - 200))); }),
              AllOf(HasSubstr("cut.pt"), Not(HasSubstr("\n"))));
}

struct TiedNet : Tied {
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::matmul(torch::matmul(x.flatten(1).narrow(1, 0, 3), in->weight), out);
  }
};

std::string hash_of_tied_net(const std::string& logdir, int64_t steps) {
  RunConfig config = test_flags();
  config.checkpoints.logdir = logdir;
  config.training.steps = steps;
  const Context context = test_context(config);
  torch::manual_seed(5);
  Trainer trainer(context, std::make_shared<TiedNet>(), kAdam, [](TiedNet& net, const Batch& batch) {
    return (net.forward(batch["image"]) - 1).square().mean();
  });
  trainer.fit(test_feed());
  return trainer.report().weights_sha256;
}

TEST(TiedWeights, are_in_a_checkpoint_under_all_names_and_a_run_goes_on_from_it) {
  const TestFolder folder;
  const std::string whole = hash_of_tied_net("", 6);
  hash_of_tied_net(folder / "run", 3);
  const auto tensors = load(folder / "run/latest/weights.safetensors");
  EXPECT_TRUE(tensors.at("in.weight").equal(tensors.at("out")));
  EXPECT_EQ(load(folder / "run").size(), 2U);
  // A model that ties nothing gets both.
  struct Untied : torch::nn::Module {
    torch::nn::Linear in =
        register_module("in", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
    torch::Tensor out = register_parameter("out", torch::zeros({3, 3}));
  } untied;
  EXPECT_EQ(load_weights(untied, folder / "run").loaded.size(), 2U);
  EXPECT_TRUE(untied.in->weight.equal(untied.out));

  // Older versions have written one name.
  store::Checkpoint checkpoint = *store::CheckpointDir(folder / "run").load_latest().checkpoint;
  EXPECT_EQ(checkpoint.weights.size(), 1U);
  checkpoint.tied.clear();
  store::CheckpointDir(folder / "old").save(checkpoint);
  EXPECT_EQ(load(folder / "old/latest/weights.safetensors").size(), 1U);
  Tied net;
  load_weights(net, folder / "old");
  EXPECT_TRUE(net.out.equal(tensors.at("out")));
  EXPECT_EQ(hash_of_tied_net(folder / "run", 6), whole);
  EXPECT_EQ(hash_of_tied_net(folder / "old", 6), whole);
}

TEST_F(Load, predicts_as_the_trainer_does) {
  const data::Feed feed = test_feed(10);
  RunConfig config = test_flags();
  config.checkpoints.logdir = run_;
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  const auto net = test_net(99);
  load_weights(*net, run_);
  const torch::Tensor predictions = predict(make_trainable(net), feed.shuffle(), {.batch = 3});
  // The trainer's batches are larger, and in another layout, so their sums are rounded otherwise.
  EXPECT_LT((predictions - trainer.predict(feed)).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(predictions.size(0), 10);
  EXPECT_TRUE(net->is_training());
  EXPECT_FALSE(predict(make_trainable(net), feed.take(0)).defined());
  struct NoForward : torch::nn::Module {};
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument,
                       [&] { predict(make_trainable(std::make_shared<NoForward>()), feed); }),
              HasSubstr("no function for predictions"));
}

}  // namespace
}  // namespace tutti::load_test
