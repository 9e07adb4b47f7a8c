// Tests exports of models whose inputs have several free sizes, of several functions, and what signature.json
// says of them.
#include <set>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/script.h>
#include <torch/torch.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_run.h"
#include "tutti/base/text.h"
#include "tutti/embedding/embedding.h"
#include "tutti/store/safetensors.h"
#include "tutti/train/export.h"
#include "tutti/train/export/test_export.h"
#include "tutti/train/test_training.h"
#include "tutti/train/trainer.h"

namespace tutti::export_sizes_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kWords = 20;
constexpr int64_t kContext = 12;
constexpr int64_t kChannels = 8;

// A language model with one layer of attention, whose output layer shares the weights of the words.
struct Language : torch::nn::Module {
  torch::Tensor features(const torch::Tensor& tokens) {
    const int64_t length = tokens.size(1);
    const torch::Tensor x = words(tokens) + positions.narrow(0, 0, length);
    const torch::Tensor mask = torch::ones({length, length}, torch::kBool).tril().logical_not();
    const torch::Tensor scores = torch::matmul(query(x), x.transpose(1, 2)).masked_fill(mask, -INFINITY);
    return torch::matmul(scores.softmax(2), x);
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return torch::matmul(features(tokens), head.t()); }

  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(kWords, kChannels));
  torch::nn::Linear query = register_module("query", torch::nn::Linear(kChannels, kChannels));
  torch::Tensor positions = register_parameter("positions", torch::randn({kContext, kChannels}));
  torch::Tensor head = register_parameter("head", words->weight);
};

torch::Tensor tokens(int64_t examples, int64_t length) {
  return torch::arange(examples * length).view({examples, length}).mul(7).remainder(kWords);
}

data::Feed texts(int64_t length = kContext) {
  return data::Feed(data::from_tensors({{"tokens", tokens(40, length)}}));
}

const ExportOptions kFreeLength = {.free_sizes = {{.name = "length", .of = {{"tokens", 1}}}}};

TEST(ExportWithAFreeLength, computes_texts_of_any_length) {
  const TestFolder folder;
  const Context context = export_context();
  const auto net = std::make_shared<Language>();
  const std::string path =
      export_model(context, folder.path(), "", make_trainable(net), texts(), kFreeLength);
  const torch::NoGradGuard no_grad;
  for (const int64_t length : {1, 2, 3, 5, 8, 11, 12}) {
    for (const int64_t examples : {1, 3}) {
      const torch::Tensor input = tokens(examples, length);
      EXPECT_TRUE(outputs_of(path, {input}).allclose(net->forward(input), 1e-5, 1e-5)) << length;
    }
  }
  const Json signature = signature_in(path);
  EXPECT_EQ(signature.at("inputs")[0].at("shape").dump(), "[null,null]");
  EXPECT_EQ(signature.at("outputs")[0].at("shape").dump(), "[null,null,20]");
  EXPECT_EQ(signature.at("check").at("sizes").dump(), R"({"length":[12,6,1,11]})");
}

TEST(ExportWithAFreeLength, is_not_made_without_being_asked_for) {
  const TestFolder folder;
  const Context context = export_context();
  const std::string path =
      export_model(context, folder.path(), "", make_trainable(std::make_shared<Language>()), texts());
  const Json signature = signature_in(path);
  EXPECT_EQ(signature.at("inputs")[0].at("shape").dump(), "[null,12]");
  EXPECT_FALSE(signature.at("check").contains("sizes"));
  EXPECT_ANY_THROW(outputs_of(path, {tokens(2, 5)}));
}

TEST(ExportWithAFreeLength, may_have_several_inputs_and_several_sizes) {
  const TestFolder folder;
  const Context context = export_context();
  struct Net : torch::nn::Module {
    torch::Tensor scale = register_parameter("scale", torch::rand({1}));
  };
  const auto net = std::make_shared<Net>();
  // Products of both sizes and of the number of examples.
  const auto function = [&](const Batch& batch) {
    const torch::Tensor masked = batch["x"] * batch["mask"];
    const torch::Tensor pairs = torch::matmul(masked.unsqueeze(2), batch["y"].unsqueeze(1));
    return pairs.view({batch["x"].size(0), masked.size(1) * batch["y"].size(1)}) * net->scale;
  };
  const auto batch_of = [](int64_t examples, int64_t one, int64_t other) {
    torch::manual_seed(4);
    return Batch({{"x", torch::rand({examples, one})},
                  {"mask", torch::rand({examples, one})},
                  {"y", torch::rand({examples, other})}});
  };
  const Batch all = batch_of(40, 6, 9);
  const data::Feed feed(data::from_tensors({{"x", all["x"]}, {"mask", all["mask"]}, {"y", all["y"]}}));
  const Trainable model{.module = net, .loss = {}, .predict = function, .script = {}};
  const std::string path = export_model(
      context, folder.path(), "", model, feed,
      {.free_sizes = {{.name = "one", .of = {{"x", 1}, {"mask", 1}}}, {.name = "other", .of = {{"y", 1}}}}});
  for (const auto& [one, other] : std::vector<std::pair<int64_t, int64_t>>{{6, 9}, {2, 3}, {9, 2}, {1, 1}}) {
    const Batch batch = batch_of(5, one, other);
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(outputs_of(path, {batch["x"], batch["mask"], batch["y"]}).equal(function(batch)));
  }
}

// The lists of a batch are as long as its longest one.
TEST(ExportWithAFreeLength, is_traced_for_two_lengths_where_the_feed_has_them) {
  const TestFolder folder;
  const Context context = export_context();
  const auto net = std::make_shared<Language>();
  const data::Feed feed = texts().map([](const Batch& batch) {
    const int64_t length = batch.size() > 10 ? kContext : batch.size() > 1 ? 7 : 4;
    return Batch({{"tokens", batch["tokens"].narrow(1, 0, length)}});
  });
  const std::string path = export_model(context, folder.path(), "", make_trainable(net), feed);
  EXPECT_EQ(signature_in(path).at("inputs")[0].at("shape").dump(), "[null,null]");
  const torch::NoGradGuard no_grad;
  for (const int64_t length : {1, 5, 12})
    EXPECT_TRUE(outputs_of(path, {tokens(3, length)}).allclose(net->forward(tokens(3, length)), 1e-5, 1e-5));
}

TEST(ExportWithAFreeLength, says_what_is_wrong_with_it) {
  const TestFolder folder;
  const Context context = export_context();
  const Trainable model = make_trainable(std::make_shared<Language>());
  const auto fails = [&](const std::vector<FreeSize>& sizes, const std::string& part,
                         int64_t length = kContext) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(part), [&] {
      export_model(context, folder.path(), "", model, texts(length), {.free_sizes = sizes});
    });
  };
  fails({{.name = "length", .of = {{"words", 1}}}}, "no tensor 'words'");
  fails({{.name = "length", .of = {{"tokens", 0}}}}, "dimension 0 of 'tokens', which is int64[32,12]");
  fails({{.name = "length", .of = {{"tokens", 2}}}}, "dimension 2 of 'tokens'");
  fails({{.name = "", .of = {{"tokens", 1}}}}, "needs a name");
  fails({{.name = "length", .of = {}}}, "an input that has it");
  fails({{.name = "length", .of = {{"tokens", 1}}}}, "is 1 in the feed", 1);
  fails({{.name = "length", .of = {{"tokens", 1}}, .least = 12}}, "its least value is 12");
  fails({{.name = "length", .of = {{"tokens", 1}}, .least = 0}}, "its least value is 0");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>());
}

// Numbers that only look like multiples of the length, and decisions that both traces agree on.
TEST(ExportWithAFreeLength, of_a_model_that_is_wrong_for_other_lengths_is_not_published) {
  const TestFolder folder;
  const Context context = export_context();
  const auto net = std::make_shared<Language>();
  const auto fails = [&](const std::function<torch::Tensor(const torch::Tensor&)>& function,
                         const std::string& part) {
    const Trainable model{.module = net,
                          .loss = {},
                          .predict = [&](const Batch& batch) { return function(batch["tokens"]); },
                          .script = {}};
    expect_error(ErrorKind::InvalidArgument, HasSubstr(part),
                 [&] { export_model(context, folder.path(), "", model, texts(), kFreeLength); });
    EXPECT_EQ(names_in(folder.path()), std::set<std::string>());
  };
  fails([](const torch::Tensor& x) { return x + torch::arange(x.size(1) * x.size(1)).sum(); },
        "not the trained one");
  fails([](const torch::Tensor& x) { return x.size(1) == 11 ? x : x + 1; },
        "a batch of 7 examples (int64[7,11]) the output 'prediction'");
  fails([](const torch::Tensor& x) { return x.size(1) > 6 ? x.abs() : x.neg(); }, "32 examples, length 12");
}

// --- Several functions

TEST(ExportOfSeveralFunctions, has_a_method_a_signature_and_a_check_for_each) {
  const TestFolder folder;
  const Context context = export_context();
  const auto net = std::make_shared<Language>();
  ExportOptions options = kFreeLength;
  options.more_signatures["embed"] = {.inputs = {"tokens"},
                                      .outputs = {"mean", "last"},
                                      .function = [&](const Batch& batch) -> std::vector<torch::Tensor> {
                                        const torch::Tensor all = net->features(batch["tokens"]);
                                        return {all.mean(1), all.select(1, batch["tokens"].size(1) - 1)};
                                      }};
  options.more_signatures["count"] = {.outputs = {"count"},
                                      .function = [](const Batch& batch) -> std::vector<torch::Tensor> {
                                        return {batch["tokens"].ge(0).sum(1)};
                                      }};
  const std::string path = export_model(context, folder.path(), "", make_trainable(net), texts(), options);
  const torch::NoGradGuard no_grad;
  torch::jit::Module module = torch::jit::load(path + "/model.pt");
  for (const int64_t length : {12, 5}) {
    const torch::Tensor input = tokens(3, length);
    EXPECT_TRUE(module.forward({input}).toTensor().allclose(net->forward(input), 1e-5, 1e-5));
    const auto both = module.get_method("embed")({input}).toTuple();
    EXPECT_TRUE(both->elements()[0].toTensor().allclose(net->features(input).mean(1), 1e-5, 1e-5));
    EXPECT_TRUE(
        both->elements()[1].toTensor().allclose(net->features(input).select(1, length - 1), 1e-5, 1e-5));
    EXPECT_TRUE(module.get_method("count")({input}).toTensor().equal(torch::full({3}, length)));
  }
  const Json signature = signature_in(path);
  EXPECT_EQ(signature.at("outputs")[0].at("name"), "prediction");
  const Json& embed = signature.at("more_signatures").at("embed");
  EXPECT_EQ(embed.at("inputs")[0].at("argument"), "tokens");
  EXPECT_EQ(embed.at("outputs").dump(), R"([{"name":"mean","dtype":"float32","shape":[null,8]},)"
                                        R"({"name":"last","dtype":"float32","shape":[null,8]}])");
  EXPECT_EQ(embed.at("check").at("examples"), signature.at("check").at("examples"));
  EXPECT_TRUE(signature.at("more_signatures").at("count").at("check").at("same_bits").get<bool>());
}

TEST(ExportOfSeveralFunctions, says_which_one_is_wrong) {
  const TestFolder folder;
  const Context context = export_context();
  const Trainable model = make_trainable(std::make_shared<Language>());
  const auto fails = [&](const std::string& name, const Signature& signature, const std::string& part) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(part), [&] {
      export_model(context, folder.path(), "", model, texts(), {.more_signatures = {{name, signature}}});
    });
  };
  const auto ones = [](const Batch& batch) -> std::vector<torch::Tensor> { return {batch["tokens"]}; };
  fails("embed", {.outputs = {}, .function = ones}, "without an output of the signature 'embed'");
  fails("embed", {.outputs = {"a", "b"}, .function = ones}, "names 2 outputs (a, b)");
  fails("embed", {.function = [](const Batch& batch) -> std::vector<torch::Tensor> {
          return {batch["tokens"] + (batch.size() == 7 ? 1 : 0)};
        }},
        "embed(): for a batch of 7 examples");
  fails("", {.function = ones}, "needs another name");
  fails("two words", {.function = ones}, "'two words'");
  fails("forward", {.function = ones}, "needs another name");
  fails("class", {.function = ones}, "needs another name");
  fails("query", {.function = ones}, "give the signature another one");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>());
}

// --- Tied weights, and what the page says

TEST(Export, has_tied_weights_under_all_names_in_their_file) {
  const TestFolder folder;
  const Context context = export_context();
  const auto net = std::make_shared<Language>();
  const store::SafetensorsFile weights(
      export_model(context, folder.path(), "", make_trainable(net), texts()) + "/weights.safetensors");
  for (const auto& item : net->named_parameters()) EXPECT_TRUE(weights.has(item.key())) << item.key();
  EXPECT_EQ(weights.tied(), (store::TiedNames{{"words.weight", "head"}}));
  EXPECT_TRUE(weights.read("words.weight").equal(net->head));
}

void add_keys(const Json& json, std::set<std::string>& keys) {
  if (json.is_array()) {
    for (const Json& each : json) add_keys(each, keys);
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      keys.insert(key);
      add_keys(value, keys);
    }
  }
}

TEST(Export, writes_the_keys_of_signature_json_that_the_page_lists) {
  const TestFolder folder;
  const Context context = export_context();
  struct Net : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& id) { return table(id).sum(2); }
    nn::Embedding table = register_module("table", nn::Embedding(20, 2));
  };
  Trainer trainer(context, make_trainable(std::make_shared<Net>()), torch::optim::SGDOptions(0.1));
  const std::string path = trainer.export_model(
      folder.path(), texts(),
      {.more_signatures = {{"count", {.function = [](const Batch& batch) -> std::vector<torch::Tensor> {
                              return {batch["tokens"].ge(0).sum(1)};
                            }}}},
       .free_sizes = {{.name = "length", .of = {{"tokens", 1}}}},
       .leave_out = {"table"}});
  std::set<std::string> written;
  add_keys(signature_in(path), written);
  written.erase("length");  // names of this program
  written.erase("count");

  std::set<std::string> listed;
  bool in_section = false;
  for (const std::string& line : split(read_file(source_path("docs/export.md")), '\n')) {
    if (line.starts_with("#")) in_section = line == "### signature.json";
    if (!in_section || !line.starts_with("| `")) continue;
    const size_t end = line.find(" |", 2);
    for (size_t at = line.find('`'); at < end; at = line.find('`', line.find('`', at + 1) + 1))
      listed.insert(line.substr(at + 1, line.find('`', at + 1) - at - 1));
  }
  EXPECT_EQ(written, listed);
}

}  // namespace
}  // namespace tutti::export_sizes_test
