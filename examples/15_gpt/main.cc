// Trains a small GPT on sentences, exports it for texts of any length, and generates text. See README.md in
// this folder.
#include <tutti/tutti.h>

#include <torch/script.h>
#include <torch/torch.h>

#include "examples/15_gpt/text.h"
#include "examples/common/gpt.h"

namespace {

// Examples of `length` characters each, with the characters that follow them.
tutti::data::Feed examples_in(const std::string& text, int64_t length) {
  const torch::Tensor bytes =
      torch::from_blob(const_cast<char*>(text.data()), {static_cast<int64_t>(text.size())}, torch::kByte);
  const torch::Tensor tokens = bytes.to(torch::kLong).clamp_max(127);
  const int64_t count = (tokens.numel() - 1) / length;
  return tutti::data::Feed(
      tutti::data::from_tensors({{"tokens", tokens.narrow(0, 0, count * length).view({count, length})},
                                 {"next", tokens.narrow(0, 1, count * length).view({count, length})}}));
}

tutti::LossOutput loss(example::Gpt& gpt, const tutti::Batch& batch) {
  const torch::Tensor logits = gpt.forward(batch["tokens"]);
  return {torch::cross_entropy_loss(logits.flatten(0, 1), batch["next"].flatten()), logits};
}

// Biases, norms and positions are not pulled towards zero.
tutti::OptimizerOptions adam(double rate) {
  return {torch::optim::AdamWOptions(rate).betas({0.9, 0.99}).weight_decay(0.1),
          {{.names = "*.bias", .weight_decay = 0},
           {.names = "*norm*", .weight_decay = 0},
           {.names = "positions.*", .weight_decay = 0}}};
}

// Writes the most probable character after the last `context` ones, `count` times. generate.py does the same.
std::string continued(torch::jit::Module& model, std::string text, int64_t context, int64_t count) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> tokens(text.begin(), text.end());
  for (int64_t i = 0; i < count; ++i) {
    const auto length = std::min<int64_t>(context, static_cast<int64_t>(tokens.size()));
    const torch::Tensor last =
        torch::tensor(tokens).narrow(0, static_cast<int64_t>(tokens.size()) - length, length);
    const torch::Tensor logits = model.forward({last.unsqueeze(0)}).toTensor();
    tokens.push_back(logits[0][length - 1].argmax().item<int64_t>());
    text += static_cast<char>(tokens.back());
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Trains a small GPT on sentences that are made from a seed, and lets it write.";
  program.defaults.training.batch = 16;
  program.defaults.training.steps = 600;
  double rate = 3e-3;
  int64_t characters = 300'000;
  std::string prompt = "the dogs near the old hill";
  std::string export_to;
  example::GptOptions options;
  program.add_flags = [&](tutti::FlagSet& flags) {
    tutti::add_learning_rate(flags, rate);
    flags.add("--characters", characters, "the length of the text; a tenth of it is for the validation");
    flags.between("--characters", 10'000, 1e9);
    flags.add("--layers", options.layers, "number of Transformer blocks");
    flags.add("--channels", options.channels, "width of the model, a multiple of 4");
    flags.add("--prompt", prompt, "the beginning of what the model writes");
    flags.add("--export-to", export_to, "a folder for the exported model, which then writes; \"\": none");
    flags.scope(tutti::FlagScope::Local, {"--prompt", "--export-to"});
  };

  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const tutti::data::Feed train =
        examples_in(example::Sentences(1).text(characters * 9 / 10), options.context);
    const tutti::data::Feed test = examples_in(example::Sentences(2).text(characters / 10), options.context);
    using namespace tutti::schedules;
    const auto schedule = warm_up(0, share(0.05), cosine(rate, share(1), rate / 10));
    const tutti::metrics::List metrics = {tutti::metrics::perplexity("next", {.class_dim = -1}),
                                          tutti::metrics::accuracy("next", {.class_dim = -1})};
    const auto gpt =
        tutti::make_trainable(std::make_shared<example::Gpt>(options), loss, {.input = "tokens"});
    tutti::Trainer trainer(ctx, gpt, adam(rate),
                           {.learning_rate = schedule,
                            .clip_norm = 1,
                            .average = 0.98,
                            .exports = {.free_sizes = {{.name = "length", .of = {{"tokens", 1}}}}}});
    trainer.fit(train.shuffle(),
                {.validate = {.feed = test, .metrics = metrics, .batch = 64, .every_steps = 200}});
    const auto values = trainer.evaluate(test, metrics, {.batch = 64});
    if (ctx.is_chief())
      fmt::print("perplexity {:.4f}, accuracy {:.4f} a character after {} steps\n", values.at("perplexity"),
                 values.at("accuracy"), trainer.step());
    if (export_to.empty()) return;

    const std::string path = trainer.export_model(export_to, test);  // as `exports` says
    if (!ctx.is_chief() || path.empty()) return;
    torch::jit::Module model = torch::jit::load(path + "/model.pt");
    fmt::print("{}\n", continued(model, prompt, options.context, 100));
  });
}
