// Compares the speed of the feed of digits on one core with the speed at which the network of the first
// example consumes them on one core, alternating, in one run. Prints Markdown.
//   bench_feed                    all sides
//   bench_feed --side shuffled    one side, for the parent or a profiler
#include <chrono>
#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "bench/sides.h"
#include "examples/common/digits.h"
#include "tutti/data/batch_queue.h"

namespace {

using tutti::data::BatchQueue;
using tutti::data::Feed;
using tutti::data::Order;
using tutti::data::Sampler;

constexpr int64_t kBatch = 50;
constexpr int kRounds = 5;

int deliver(Order order) {
  bench::pin_to_one_core();
  const Feed feed = example::digits("").train();
  const Sampler sampler(feed.size(), {.order = order, .batch = kBatch});
  const auto start = std::chrono::steady_clock::now();
  BatchQueue queue(feed, sampler, {.end_step = sampler.steps_per_epoch()});
  int64_t images = 0;
  while (const auto batch = queue.next()) images += batch->size();
  bench::print_measured(static_cast<double>(images) /
                        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return 0;
}

void print_report(const std::map<std::string, bench::Measured>& all) {
  fmt::print(
      "## Feed\n\nDrawn digits in batches of {}, read by one thread and consumed by a loop that shares its "
      "core, and for comparison the speed of the MNIST network on one core (Trainer, Adam); median of {} "
      "alternating rounds (`./dev bench feed`).\n\n| | images/s | times the network's speed, fp32 | bf16 | "
      "to reach |\n|---|---|---|---|---|\n",
      kBatch, kRounds);
  std::map<std::string, double> speed;
  for (const auto& [name, measured] : all) speed[name] = measured.per_second;
  const auto times = [&](const char* side, const char* of) {
    return speed.contains(of) ? fmt::format("{:.0f}", speed[side] / speed[of]) : std::string("not here");
  };
  for (const char* side : {"sequential", "shuffled"})
    fmt::print("| feed, {} | {:.0f} | {} | {} | 10 |\n", side, speed[side], times(side, "trainer-fp32"),
               times(side, "trainer-bf16"));
  for (const char* precision : {"fp32", "bf16"}) {
    const auto found = speed.find(std::string("trainer-") + precision);
    if (found != speed.end()) fmt::print("| the network, {} | {:.0f} | | | |\n", precision, found->second);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--side") {
    const std::string side = argv[2];
    if (side == "sequential") return deliver(Order::Sequential);
    if (side == "shuffled") return deliver(Order::Shuffled);
    fmt::print(stderr, "no such side: {}\n", side);
    return 2;
  }
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<bench::Side> sides;
  for (const char* side : {"sequential", "shuffled"})
    sides.push_back({side, {self.string(), "--side", side}});
  const std::string step = (self.parent_path() / "bench_train_step").string();
  for (const char* side : {"trainer-fp32", "trainer-bf16"}) sides.push_back({side, {step, "--side", side}});
  print_report(bench::measure(sides, kRounds));
}
