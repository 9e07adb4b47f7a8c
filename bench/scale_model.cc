#include "bench/scale_model.h"

#include <algorithm>
#include <cmath>

namespace bench {
namespace {

constexpr double kNothing = 1e-30;

// The equation a x + b y = c.
struct Equation {
  double a;
  double b;
  double c;
};
struct Solution {
  double x = 0;
  double y = 0;
};

// Least squares of the relative errors. A component that would be below 0 in the free solution is fixed at 0.
Solution solve(const std::vector<Equation>& equations) {
  double aa = 0;
  double ab = 0;
  double bb = 0;
  double ac = 0;
  double bc = 0;
  for (const Equation& each : equations) {
    const double a = each.a / each.c;
    const double b = each.b / each.c;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    ac += a;
    bc += b;
  }
  const double determinant = aa * bb - ab * ab;
  // The equations cannot distinguish the two parameters: one of them gets the whole value.
  const bool determined = determinant > 1e-12 * aa * bb;
  const Solution free = {determined ? (ac * bb - bc * ab) / determinant : -1,
                         determined ? (bc * aa - ac * ab) / determinant : -1};
  if (free.x >= 0 && free.y >= 0) return free;
  const Solution only_x = {aa > 0 ? ac / aa : 0, 0};
  const Solution only_y = {0, bb > 0 ? bc / bb : 0};
  const auto error = [&](const Solution& s) {
    return aa * s.x * s.x + 2 * ab * s.x * s.y + bb * s.y * s.y - 2 * ac * s.x - 2 * bc * s.y;
  };
  return error(only_x) <= error(only_y) ? only_x : only_y;
}

double wait_for_slowest(const Cluster& cluster, int workers) {
  // The maximum of W samples of a normal distribution is about this many deviations above the mean.
  return cluster.step * cluster.jitter * std::sqrt(2 * std::log(static_cast<double>(workers)));
}

double ring(const Link& link, int members, double bytes) {
  return 2.0 * (members - 1) * link.latency + 2.0 * (members - 1) / members * bytes / link.bandwidth;
}

double tree(const Link& link, int members, double bytes) {
  const double levels = std::ceil(std::log2(members));
  return 2 * levels * link.latency + 2.0 * (members - 1) / members * bytes / link.bandwidth;
}

// Sends slices directly to their owners, and the sums back.
double direct(const Cluster& cluster, int members, double bytes) {
  const Link& link = cluster.network;
  return 2 * (link.latency + (members - 1) * cluster.message) +
         2.0 * (members - 1) / members * bytes / link.bandwidth;
}

}  // namespace

double turns(int workers, int cores) { return std::max(1.0, static_cast<double>(workers) / cores); }

double compute_seconds(const Machine& machine, int workers) {
  const int busy = std::min(workers, machine.cores);
  return machine.compute * (1 + machine.contention * (busy - 1)) * turns(workers, machine.cores);
}

double memory_exchange(const Link& memory, int ranks, int cores, double bytes) {
  if (ranks == 1) return 0;
  return ranks * memory.latency + turns(ranks, cores) * 2 * bytes / memory.bandwidth;
}

double loopback_exchange(const Link& loopback, int ranks, int cores, double bytes) {
  return ring(loopback, ranks, turns(ranks, cores) * bytes);
}

Link fit_link(ExchangeModel model, int cores, const std::vector<ExchangeSample>& samples) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<Equation> equations;
  equations.reserve(samples.size());
  for (const auto& [ranks, bytes, seconds] : samples) {
    // The model is linear in the latency and in the inverse of the bandwidth.
    equations.push_back(
        {model({1, kInfinity}, ranks, cores, bytes), model({0, 1}, ranks, cores, bytes), seconds});
  }
  const Solution found = solve(equations);
  return {found.x, found.y > kNothing ? 1 / found.y : kInfinity};
}

Links fit_links(ExchangeModel model, int cores, const std::vector<ExchangeSample>& samples) {
  std::vector<ExchangeSample> spread;
  std::vector<ExchangeSample> crowded;
  for (const ExchangeSample& sample : samples) (sample.ranks > cores ? crowded : spread).push_back(sample);
  return {fit_link(model, cores, spread.empty() ? crowded : spread),
          fit_link(model, cores, crowded.empty() ? spread : crowded)};
}

Machine fit_machine(int cores, const std::vector<StepSample>& samples) {
  std::vector<Equation> equations;
  equations.reserve(samples.size());
  for (const auto& [workers, compute] : samples) {
    const double rounds = turns(workers, cores);
    equations.push_back({rounds, rounds * (std::min(workers, cores) - 1), compute});
  }
  const Solution found = solve(equations);
  return {cores, found.x, found.x > kNothing ? found.y / found.x : 0};
}

const char* name_of(Exchange exchange) {
  switch (exchange) {
    case Exchange::Ring:
      return "ring";
    case Exchange::Tree:
      return "tree";
    case Exchange::Hierarchical:
      return "hierarchical";
    case Exchange::Direct:
      return "hierarchical, direct";
  }
  return "";
}

double exchange_seconds(const Cluster& cluster, Exchange exchange, int workers, double bytes) {
  if (workers == 1) return 0;
  const int local = std::min(workers, cluster.ranks_per_host);
  const double inside = memory_exchange(cluster.memory, local, local, bytes);
  if (workers <= cluster.ranks_per_host) return inside;
  const int hosts = (workers + cluster.ranks_per_host - 1) / cluster.ranks_per_host;
  switch (exchange) {
    case Exchange::Ring:
      return ring(cluster.network, workers, bytes);
    case Exchange::Tree:
      return tree(cluster.network, workers, bytes);
    case Exchange::Hierarchical:
      return inside + ring(cluster.network, hosts, bytes);
    case Exchange::Direct:
      return inside + direct(cluster, hosts, bytes);
  }
  return 0;
}

// Gradients become ready evenly over the backward pass; a bucket is exchanged when it is ready and the
// previous one is finished.
double step_seconds(const Cluster& cluster, Exchange exchange, int workers) {
  const int buckets = std::max(1, static_cast<int>(std::floor(cluster.bytes / cluster.bucket)));
  const double each = exchange_seconds(cluster, exchange, workers, cluster.bytes / buckets);
  const double backward = cluster.step * cluster.backward;
  double through = 0;
  for (int i = 1; i <= buckets; ++i) through = std::max(through, backward * i / buckets) + each;
  return cluster.step + wait_for_slowest(cluster, workers) + (through - backward);
}

double efficiency(const Cluster& cluster, Exchange exchange, int workers) {
  return cluster.step / step_seconds(cluster, exchange, workers);
}

}  // namespace bench
