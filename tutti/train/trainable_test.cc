#include "tutti/train/trainable.h"

#include "tutti/base/test_errors.h"
#include "tutti/metrics/metrics.h"
#include "tutti/train/test_trainer.h"

namespace tutti::trainable_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Batch batch_of(const std::vector<std::pair<std::string, torch::ScalarType>>& columns) {
  Batch::Tensors tensors;
  for (const auto& [name, type] : columns) tensors.emplace_back(name, torch::zeros({2, 3}, type));
  return Batch(tensors);
}

// Returns the name of the tensor that is chosen.
std::string chosen(const std::vector<std::pair<std::string, torch::ScalarType>>& columns) {
  const Batch batch = batch_of(columns);
  const torch::Tensor& input = input_of(batch);
  for (const auto& [name, tensor] : batch.tensors()) {
    if (tensor.is_same(input)) return name;
  }
  return "none";
}

TEST(Trainable, reads_the_input_by_its_name_wherever_it_stands) {
  EXPECT_EQ(chosen({{"y", torch::kFloat}, {"weight", torch::kFloat}, {"x", torch::kFloat}}), "x");
  EXPECT_EQ(chosen({{"label", torch::kLong}, {"image", torch::kByte}, {"mask", torch::kFloat}}), "image");
  EXPECT_EQ(chosen({{"target", torch::kFloat}, {"features", torch::kFloat}}), "features");
  EXPECT_EQ(chosen({{"id", torch::kLong}, {"features", torch::kHalf}, {"label", torch::kLong}}), "features");
  EXPECT_EQ(chosen({{"labels", torch::kLong}, {"tokens", torch::kLong}}), "tokens");
}

TEST(Trainable, lists_the_columns_where_the_input_is_ambiguous) {
  const auto refused = [](const std::vector<std::pair<std::string, torch::ScalarType>>& columns) {
    return error_of(ErrorKind::InvalidArgument, [&] { chosen(columns); });
  };
  EXPECT_THAT(refused({{"left", torch::kFloat}, {"right", torch::kFloat}, {"y", torch::kFloat}}),
              AllOf(HasSubstr("left float32[2,3], right float32[2,3], y float32[2,3]"),
                    HasSubstr("each of left, right could be"), HasSubstr("{.input = \"left\"}")));
  EXPECT_THAT(refused({{"x", torch::kFloat}, {"image", torch::kFloat}}), HasSubstr("each of x, image"));
  EXPECT_THAT(refused({{"words", torch::kLong}, {"lengths", torch::kLong}}),
              HasSubstr("each of words, lengths"));
  EXPECT_THAT(refused({{"y", torch::kFloat}}), HasSubstr("none of them"));
}

TEST(Trainable, the_input_can_be_named) {
  const Batch batch = batch_of({{"left", torch::kFloat}, {"right", torch::kFloat}});
  EXPECT_TRUE(input_of(batch, "right").is_same(batch["right"]));
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { input_of(batch, "rigth"); }),
              HasSubstr("left, right"));
  const Context context = test_context(test_flags());
  const auto net = test_net();
  const data::Feed feed(data::from_tensors(
      {{"noise", torch::rand({8, 1, 6, 6})},
       {"pixels", test_feed(8).read(std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7})["image"]},
       {"label", torch::arange(8) % 4}}));
  Trainer trainer(context, make_trainable(net, test_loss, {.input = "pixels"}), kAdam);
  Trainer other(test_context(test_flags()), test_net(), kAdam, test_loss);
  EXPECT_TRUE(trainer.predict(feed).equal(other.predict(test_feed(8))));
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { other.predict(feed); }),
              HasSubstr("each of noise, pixels"));
}

TEST(Trainable, predicts_the_same_with_the_label_first) {
  const Context context = test_context(test_flags());
  Trainer trainer(context, test_net(), kAdam, test_loss);
  const data::Feed turned = test_feed(8).map([](const Batch& batch) {
    return Batch({{"label", batch["label"]}, {"image", batch["image"]}});
  });
  EXPECT_TRUE(trainer.predict(turned).equal(trainer.predict(test_feed(8))));
}

// Every way of taking the net gives the same loss.
TEST(Trainable, the_loss_takes_the_holder_or_the_module) {
  torch::nn::Sequential net(torch::nn::Linear(3, 1));
  const Batch batch({{"x", torch::rand({4, 3})}, {"y", torch::rand({4, 1})}});
  const auto loss_of = [&](auto loss) { return make_trainable(net, loss).loss(batch).loss; };
  const auto error = [&](const torch::Tensor& prediction) { return torch::mse_loss(prediction, batch["y"]); };
  const torch::Tensor expected = error(net->forward(batch["x"]));
  const auto impl = [&](torch::nn::SequentialImpl& n, const Batch& b) { return error(n.forward(b["x"])); };
  const auto holder = [&](torch::nn::Sequential& n, const Batch& b) { return error(n->forward(b["x"])); };
  const auto constant = [&](const torch::nn::Sequential& n, const Batch& b) {
    return error(n.ptr()->forward(b["x"]));
  };
  const auto value = [&](torch::nn::Sequential n, const Batch& b) -> LossOutput {  // NOLINT
    const torch::Tensor prediction = n->forward(b["x"]);
    return {error(prediction), prediction};
  };
  const auto base = [&](const torch::nn::Module&, Batch b) { return error(net->forward(b["x"])); };  // NOLINT
  for (const torch::Tensor& loss :
       {loss_of(impl), loss_of(holder), loss_of(constant), loss_of(value), loss_of(base)})
    EXPECT_TRUE(loss.equal(expected));
  const auto shared = std::make_shared<TestNet>();
  EXPECT_TRUE(make_trainable(shared, [](const std::shared_ptr<TestNet>& n,
                                        const Batch& b) { return n->head->bias.sum() + b["x"].sum(); })
                  .loss(batch)
                  .loss.defined());
}

// As a model with several inputs has it.
struct OfBatch : torch::nn::Module {
  torch::Tensor forward(const Batch& batch) { return net->forward(batch["image"]); }
  std::shared_ptr<TestNet> net = register_module("net", test_net());
};

TEST(Trainable, predicts_by_a_forward_of_a_batch) {
  const Context context = test_context(test_flags());
  const auto net = std::make_shared<OfBatch>();
  Trainer trainer(context, net, kAdam,
                  [](OfBatch& of, const Batch& batch) { return test_loss(*of.net, batch).loss; });
  Trainer other(test_context(test_flags()), test_net(), kAdam, test_loss);
  EXPECT_TRUE(trainer.predict(test_feed(8)).equal(other.predict(test_feed(8))));
  EXPECT_TRUE(evaluates_by_loss(make_trainable(net)));
}

TEST(Trainable, without_a_loss_only_predicts_and_is_evaluated) {
  const Trainable model = make_trainable(test_net());
  const Context context = test_context(test_flags());
  Trainer trainer(context, model, kAdam);
  EXPECT_EQ(trainer.predict(test_feed(8)).size(0), 8);
  const auto values = trainer.evaluate(test_feed(8), {metrics::accuracy("label")});
  EXPECT_EQ(values.count("accuracy"), 1U);
  EXPECT_EQ(values.count("loss"), 0U);
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { trainer.fit(test_feed(8)); }),
              HasSubstr("no loss function"));
}

}  // namespace
}  // namespace tutti::trainable_test
