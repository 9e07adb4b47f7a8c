// Tests exports of models of all kinds: with tables, from checkpoints, by several workers.
#include <mutex>
#include <set>

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
#include "tutti/train/export.h"
#include "tutti/train/export/test_export.h"
#include "tutti/train/model.h"
#include "tutti/train/script.h"
#include "tutti/train/test_training.h"
#include "tutti/train/trainer.h"

namespace tutti::export_of_kinds_test {
namespace {

using comm::testing::borrowed;
using comm::testing::with_ranks;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// --- Kinds of models

TEST(Export, of_a_model_in_a_few_lines_has_its_outputs) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.compute.threads = 1;
  const Context context = export_context(config);
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
  const Context context = export_context();
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
  const Context context = export_context();
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
  const Context context = export_context();
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
    const Context context = export_context();
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
  const auto exported = [&](const std::string& backend, int world, double average = 0,
                            const ExportOptions& options = {}) {
    const TestFolder folder;
    std::mutex mutex;
    std::set<std::string> paths;
    with_ranks(backend, world, [&](comm::Communicator& comm) {
      RunConfig config = test_flags();
      config.training.lanes = 4;
      const Context context = export_context(config);
      Trainer trainer(context, tables_model(std::make_shared<Tables>()), torch::optim::SGDOptions(0.1),
                      {.average = average, .group = Group(borrowed(comm))});
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
  const torch::Tensor averaged = exported("inproc", 1, 0.9);
  EXPECT_FALSE(averaged.equal(alone));
  for (const char* backend : {"shm", "plain"}) {
    EXPECT_TRUE(exported(backend, 2, 0.9).equal(averaged)) << backend;
    EXPECT_TRUE(exported(backend, 2, 0.9, {.last_weights = true}).equal(alone)) << backend;
  }
}

TEST(ExportOfTables, leaves_tables_out_by_name_and_takes_their_vectors) {
  const TestFolder folder;
  const Context context = export_context();
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
      const Context context = export_context(config);
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

TEST(ExportOfTables, a_board_to_leave_out_that_does_not_exist_is_found_before_the_training) {
  const Context context = export_context();
  expect_error(ErrorKind::InvalidArgument,
               testing::AllOf(HasSubstr("no embedding 'usr' to leave out; did you mean 'user'"),
                              HasSubstr("it has: ")),
               [&] {
                 const Trainer trainer(context, tables_model(std::make_shared<Tables>()),
                                       torch::optim::SGDOptions(0.1), {.exports = {.leave_out = {"usr"}}});
               });
}

TEST(ExportOfTables, fails_for_ids_that_are_errors_in_the_training) {
  struct Strict : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& id) { return user(id).sum(1); }
    nn::Embedding user =
        register_module("user", nn::Embedding(10, 2, nn::EmbeddingOptions{.replicate_up_to = 0}));
  };
  const TestFolder folder;
  const Context context = export_context();
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
  const data::Feed feed = tables_feed();
  const Context context = export_context();
  std::vector<torch::Tensor> all;
  for (const auto& [run, average] : {std::pair("averaged", 0.9), std::pair("run", 0.0)}) {
    RunConfig config = test_flags();
    config.checkpoints.logdir = folder / run;
    const Context training = export_context(config);
    Trainer trainer(training, tables_model(std::make_shared<Tables>()), torch::optim::AdamOptions(0.01),
                    {.average = average});
    trainer.fit(feed, {.steps = 5});
    all.push_back(trainer.predict(feed));
    for (const std::string from : {"", "/ckpt-5"}) {
      const std::string path = export_model(context, folder / "exports", folder / run + from,
                                            tables_model(std::make_shared<Tables>()), feed);
      EXPECT_TRUE(outputs_of(path, table_inputs(examples_of(feed, 60))).equal(all.back())) << run << from;
      EXPECT_EQ(signature_in(path).at("step"), 5);
      EXPECT_EQ(signature_in(path).at("weights"), average > 0 ? "average" : "last");
    }
  }
  EXPECT_FALSE(all[0].equal(all[1]));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("there is no checkpoint here"), [&] {
    export_model(context, folder / "exports", folder.path(), tables_model(std::make_shared<Tables>()), feed);
  });
  // The first part of the model that is missing, or has another shape, is named.
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("not a checkpoint of the program's model"),
                     HasSubstr("'conv.weight' is missing in the checkpoint and float32[")),
               [&] {
                 export_model(context, folder / "exports", folder / "run", make_trainable(test_net()),
                              test_feed());
               });
  struct Wide : Tables {
    Wide() { replace_module("dense", torch::nn::Linear(3, 2)); }
  };
  expect_error(ErrorKind::InvalidArgument,
               HasSubstr("'dense.weight' is float32[1,3] in the checkpoint and float32[2,3] in the model"),
               [&] {
                 export_model(context, folder / "exports", folder / "run",
                              tables_model(std::make_shared<Wide>()), feed);
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
    const Context context = export_context(config);
    Trainer trainer(context, test_net(), torch::optim::SGDOptions(0.1), test_loss, {.average = 0.9});
    trainer.fit(feed, {.steps = 5});
    average = trainer.predict(feed);
  }
  config.checkpoints.logdir.clear();
  config.exports.dir = folder / "exports";
  config.exports.from = folder / "run";
  const Context context = export_context(config);
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
      const Context context = export_context(config);
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
    const std::string path = export_model(export_context(), folder.path(), "", make_trainable(test_net()),
                                          feed, {}, Group(borrowed(comm)));
    const std::lock_guard lock(mutex);
    paths.push_back(path);
  });
  EXPECT_THAT(paths, ElementsAre(folder / "1", folder / "1", folder / "1"));
}

}  // namespace
}  // namespace tutti::export_of_kinds_test
