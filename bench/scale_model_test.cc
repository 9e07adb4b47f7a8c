#include "bench/scale_model.h"

#include <cmath>

#include <gmock/gmock.h>

namespace bench::scale_model_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Exchange kExchanges[] = {Exchange::Ring, Exchange::Tree, Exchange::Hierarchical, Exchange::Direct};

// A cluster without jitter.
Cluster exact() {
  Cluster cluster;
  cluster.jitter = 0;
  return cluster;
}

TEST(ScaleModel, one_worker_is_as_fast_as_one) {
  for (const Exchange exchange : kExchanges) {
    EXPECT_EQ(exchange_seconds(Cluster{}, exchange, 1, 1e9), 0);
    EXPECT_EQ(efficiency(Cluster{}, exchange, 1), 1);
  }
  EXPECT_EQ(compute_seconds({4, 2.5, 0.3}, 1), 2.5);
  EXPECT_EQ(memory_exchange({1, 1}, 1, 4, 100), 0);
  EXPECT_EQ(loopback_exchange({1, 1}, 1, 4, 100), 0);
}

TEST(ScaleModel, links_without_latency_and_end_cost_nothing) {
  Cluster cluster = exact();
  cluster.network = cluster.memory = {0, kInfinity};
  cluster.message = 0;
  for (const Exchange exchange : kExchanges) {
    for (const int workers : {2, 8, 9, 1024}) EXPECT_EQ(efficiency(cluster, exchange, workers), 1);
  }
}

TEST(ScaleModel, hierarchy_is_a_ring_where_hosts_have_one_rank) {
  Cluster cluster = exact();
  cluster.ranks_per_host = 1;
  for (const int workers : {2, 3, 64, 1000}) {
    EXPECT_EQ(exchange_seconds(cluster, Exchange::Hierarchical, workers, 1e8),
              exchange_seconds(cluster, Exchange::Ring, workers, 1e8));
  }
}

TEST(ScaleModel, hierarchy_is_a_ring_of_hosts_behind_their_memory) {
  Cluster cluster = exact();
  cluster.ranks_per_host = 8;
  Cluster hosts = cluster;
  hosts.ranks_per_host = 1;
  EXPECT_DOUBLE_EQ(
      exchange_seconds(cluster, Exchange::Hierarchical, 64, 1e8),
      memory_exchange(cluster.memory, 8, 8, 1e8) + exchange_seconds(hosts, Exchange::Ring, 8, 1e8));
}

TEST(ScaleModel, all_are_the_same_inside_one_host) {
  for (const int workers : {2, 8}) {
    for (const Exchange exchange : kExchanges)
      EXPECT_EQ(exchange_seconds(Cluster{}, exchange, workers, 1e8),
                memory_exchange(Cluster{}.memory, workers, workers, 1e8));
  }
}

// Calculated by hand: 4 ranks, 1 byte/s, 1 s per message: 6 messages of 3 bytes; 4 messages in a tree.
TEST(ScaleModel, counts_messages_and_bytes) {
  Cluster cluster = exact();
  cluster.ranks_per_host = 1;
  cluster.network = {1, 1};
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, Exchange::Ring, 4, 12), 6 + 18);
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, Exchange::Tree, 4, 12), 4 + 18);
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, Exchange::Tree, 5, 10), 6 + 16);
  cluster.message = 0.5;
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, Exchange::Direct, 4, 12), 2 + 3 + 18);
  EXPECT_DOUBLE_EQ(memory_exchange({1, 1}, 4, 4, 12), 4 + 24);
  EXPECT_DOUBLE_EQ(memory_exchange({1, 1}, 4, 2, 12), 4 + 2 * 24);
  EXPECT_DOUBLE_EQ(loopback_exchange({1, 1}, 4, 2, 12), 6 + 2 * 18);
}

// Calculated by hand: two buckets, ready 3 s and 6 s after the start of a backward pass of 6 s.
TEST(ScaleModel, exchange_hides_behind_the_backward_pass_but_for_the_last_bucket) {
  Cluster cluster = exact();
  cluster.ranks_per_host = 1;
  cluster.step = 9;
  cluster.bytes = 20;
  cluster.bucket = 10;
  cluster.network = {0, 10};  // one second per bucket between two workers
  EXPECT_DOUBLE_EQ(step_seconds(cluster, Exchange::Ring, 2), 9 + 1);
  cluster.network = {0, 2};  // five seconds per bucket: the second waits for the first
  EXPECT_DOUBLE_EQ(step_seconds(cluster, Exchange::Ring, 2), 9 + 3 + 5 + 5 - 6);
  cluster.backward = 0;  // no backward pass to hide behind
  EXPECT_DOUBLE_EQ(step_seconds(cluster, Exchange::Ring, 2), 9 + 10);
  cluster.bucket = 1e9;  // one bucket
  cluster.backward = 2.0 / 3;
  EXPECT_DOUBLE_EQ(step_seconds(cluster, Exchange::Ring, 2), 9 + 10);
}

TEST(ScaleModel, all_wait_for_the_slowest) {
  Cluster cluster;
  cluster.network = cluster.memory = {0, kInfinity};
  cluster.jitter = 0.1;
  EXPECT_DOUBLE_EQ(efficiency(cluster, Exchange::Ring, 1024),
                   1 / (1 + 0.1 * std::sqrt(2 * std::log(1024.0))));
}

TEST(ScaleModel, more_workers_are_never_more_efficient) {
  for (const Exchange exchange : kExchanges) {
    for (int workers = 16; workers <= 1024; workers *= 2)
      EXPECT_LT(efficiency(Cluster{}, exchange, workers), efficiency(Cluster{}, exchange, workers / 2))
          << name_of(exchange) << " " << workers;
  }
}

TEST(ScaleModel, workers_beyond_the_cores_take_turns) {
  EXPECT_EQ(turns(1, 2), 1);
  EXPECT_EQ(turns(2, 2), 1);
  EXPECT_EQ(turns(3, 2), 1.5);
  EXPECT_EQ(turns(8, 2), 4);
  const Machine machine{2, 0.1, 0.2};
  EXPECT_DOUBLE_EQ(compute_seconds(machine, 2), 0.12);
  EXPECT_DOUBLE_EQ(compute_seconds(machine, 8), 0.48);
}

// Fitting values that the model computed gives its parameters.
TEST(ScaleModel, fits_find_the_parameters_again) {
  for (const ExchangeModel model : {memory_exchange, loopback_exchange}) {
    const Link link{3e-6, 8e9};
    std::vector<ExchangeSample> samples;
    for (const int ranks : {2, 4, 8}) {
      for (const double bytes : {4096.0, 6.7e6})
        samples.push_back({ranks, bytes, model(link, ranks, 2, bytes)});
    }
    const Link found = fit_link(model, 2, samples);
    EXPECT_NEAR(found.latency / link.latency, 1, 1e-9);
    EXPECT_NEAR(found.bandwidth / link.bandwidth, 1, 1e-9);
  }
  const Machine machine{2, 0.05, 0.25};
  std::vector<StepSample> samples;
  for (const int workers : {1, 2, 4}) samples.push_back({workers, compute_seconds(machine, workers)});
  const Machine found = fit_machine(2, samples);
  EXPECT_NEAR(found.compute, 0.05, 1e-12);
  EXPECT_NEAR(found.contention, 0.25, 1e-9);
}

TEST(ScaleModel, ranks_that_take_turns_have_a_link_of_their_own) {
  const Links links{{1e-6, 10e9}, {9e-6, 4e9}};
  std::vector<ExchangeSample> samples;
  for (const int ranks : {2, 4, 8}) {
    for (const double bytes : {4096.0, 6.7e6})
      samples.push_back({ranks, bytes, memory_exchange(links.link_for(ranks, 4), ranks, 4, bytes)});
  }
  const Links found = fit_links(memory_exchange, 4, samples);
  EXPECT_NEAR(found.spread.latency, 1e-6, 1e-12);
  EXPECT_NEAR(found.link_for(4, 4).bandwidth / 10e9, 1, 1e-9);
  EXPECT_NEAR(found.crowded.latency, 9e-6, 1e-12);
  EXPECT_NEAR(found.link_for(8, 4).bandwidth / 4e9, 1, 1e-9);
  // Every rank has a core: there are no samples of the crowded case.
  samples.resize(4);
  EXPECT_NEAR(fit_links(memory_exchange, 4, samples).crowded.latency, 1e-6, 1e-12);
}

// Two workers are faster than one, and messages have negative cost: the fit gives the nearest valid values.
TEST(ScaleModel, fits_find_nothing_below_zero) {
  const Machine machine = fit_machine(2, {{1, 1.1}, {2, 0.9}});
  EXPECT_EQ(machine.contention, 0);
  EXPECT_NEAR(machine.compute, 0.98, 0.02);
  const Link link = fit_link(memory_exchange, 4, {{2, 1e3, 1e-7}, {2, 1e6, 1e-3}});
  EXPECT_EQ(link.latency, 0);
  EXPECT_GT(link.bandwidth, 0);
  // A single core gives no information about contention.
  EXPECT_NEAR(fit_machine(1, {{1, 2}, {2, 4}}).compute, 2, 1e-12);
}

}  // namespace
}  // namespace bench::scale_model_test
