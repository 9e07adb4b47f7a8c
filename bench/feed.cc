// What the feed of digits delivers on its own: images a second, as rows of a Markdown table.
//   bench_feed [DIR]     DIR holds the MNIST files; without it, digits are drawn.
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>

#include "tutti/data/batch_queue.h"
#include "tutti/data/mnist.h"

namespace {

using tutti::data::BatchQueue;
using tutti::data::Feed;
using tutti::data::Order;
using tutti::data::Sampler;

constexpr int64_t kBatch = 50;
constexpr int64_t kEpochs = 2;

double images_per_second(const Feed& feed, Order order) {
  const Sampler sampler(feed.size(), {.order = order, .batch = kBatch});
  const auto start = std::chrono::steady_clock::now();
  BatchQueue queue(feed, sampler, {.end_step = kEpochs * sampler.steps_per_epoch()});
  int64_t images = 0;
  while (const auto batch = queue.next()) images += batch->size();
  return static_cast<double>(images) /
         std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void measure(const std::string& dir) {
  const Feed digits = tutti::data::mnist(dir).train();
  std::printf("| feed | reader threads | order | images/s |\n|---|---:|---|---:|\n");
  for (const int threads : {1, 2}) {
    for (const Order order : {Order::Sequential, Order::Shuffled}) {
      const Feed feed = digits.with({.threads = threads});
      std::printf("| %s | %d | %s | %.0f |\n", dir.empty() ? "drawn digits" : "MNIST", threads,
                  order == Order::Shuffled ? "shuffled" : "sequential", images_per_second(feed, order));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    measure(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_feed: %s\n", error.what());
    return 1;
  }
}
