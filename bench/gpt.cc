// Compares training the GPT of example 15 with the Trainer and with a hand-written loop against LibTorch: one
// core each, alternating, in one run. Prints Markdown.
//   bench_gpt                  all sides
//   bench_gpt --side loop      one side, for the parent or a profiler
#include "examples/common/gpt.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

#include "bench/sides.h"
#include "bench/step_clock.h"
#include "tutti/tutti.h"

namespace {

constexpr int64_t kBatch = 16;
constexpr int64_t kLength = 64;
constexpr int64_t kExamples = 2000;
constexpr int64_t kWarmUp = 10;
constexpr int64_t kSteps = 60;
constexpr int kRounds = 7;

std::pair<torch::Tensor, torch::Tensor> examples() {
  torch::manual_seed(1);
  const torch::Tensor all = torch::randint(128, {kExamples, kLength + 1});
  return {all.narrow(1, 0, kLength).contiguous(), all.narrow(1, 1, kLength).contiguous()};
}

torch::Tensor loss_of(example::Gpt& gpt, const torch::Tensor& tokens, const torch::Tensor& next) {
  return torch::cross_entropy_loss(gpt.forward(tokens).flatten(0, 1), next.flatten());
}

int trainer(const std::string& precision) {
  std::vector<std::string> words = {"bench",       "--device", "cpu",         "--threads", "1",
                                    "--precision", precision,  "--log-level", "error"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  tutti::Program program;
  program.defaults.training.batch = kBatch;
  program.defaults.training.steps = kWarmUp + kSteps;
  return tutti::run(static_cast<int>(arguments.size()), arguments.data(), program, [](tutti::Context& ctx) {
    tutti::Trainer trainer(ctx, std::make_shared<example::Gpt>(example::GptOptions()),
                           torch::optim::AdamWOptions(1e-3),
                           [](example::Gpt& gpt, const tutti::Batch& batch) {
                             return loss_of(gpt, batch["tokens"], batch["next"]);
                           });
    bench::StepClock clock(kWarmUp, kSteps);
    trainer.add_hook(std::make_unique<bench::ClockHook>(clock));
    const auto [tokens, next] = examples();
    trainer.fit(tutti::data::Feed(tutti::data::from_tensors({{"tokens", tokens}, {"next", next}})).shuffle());
    bench::print_measured(clock.steps_per_second() * kBatch * kLength);
  });
}

int loop() {
  at::set_num_threads(1);
  const auto [tokens, next] = examples();
  example::Gpt gpt{example::GptOptions()};
  std::vector<torch::Tensor> parameters;
  for (const auto& item : gpt.named_parameters()) {
    if (item.key() != "head.weight") parameters.push_back(item.value());  // the same tensor as `words`
  }
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-3));
  const torch::Tensor order = torch::randperm(kExamples);
  bench::StepClock clock(kWarmUp, kSteps);
  for (int64_t step = 0; step < kWarmUp + kSteps; ++step) {
    const torch::Tensor picked = order.narrow(0, step * kBatch % (kExamples - kBatch), kBatch);
    optimizer.zero_grad();
    const torch::Tensor loss = loss_of(gpt, tokens.index_select(0, picked), next.index_select(0, picked));
    loss.backward();
    optimizer.step();
    if (!std::isfinite(loss.item<double>())) return 1;
    clock.step();
  }
  bench::print_measured(clock.steps_per_second() * kBatch * kLength);
  return 0;
}

int run_side(const std::string& side) {
  bench::pin_to_one_core();
  if (side == "loop") return loop();
  return trainer(side == "trainer-bf16" ? "bf16" : "fp32");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--side") return run_side(argv[2]);
  std::vector<bench::Side> sides;
  for (const char* side : {"loop", "trainer-fp32", "trainer-bf16"})
    sides.push_back({side, {argv[0], "--side", side}});
  const std::map<std::string, bench::Measured> found = bench::measure(sides, kRounds);
  const bench::Measured& loop = found.at("loop");
  fmt::print(
      "## A small GPT\n\nThe GPT of [example 15](../../examples/15_gpt), 2 blocks of width 64, on texts of "
      "{} "
      "characters in batches of {}, with AdamW on one core; medians of {} alternating rounds (`./dev bench "
      "gpt`).\n\n| | characters/s | of the loop | peak memory, MiB |\n|---|---|---|---|\n",
      kLength, kBatch, kRounds);
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"loop", "a loop against LibTorch, fp32"}, {"trainer-fp32", "Trainer, fp32"}, {"trainer-bf16", "bf16"}};
  for (const auto& [side, name] : rows) {
    const bench::Measured& measured = found.at(side);
    fmt::print("| {} | {:.0f} | {:.2f} | {:.0f} |\n", name, measured.per_second,
               measured.per_second / loop.per_second, measured.peak_mebibytes);
  }
}
