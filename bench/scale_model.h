#pragma once

#include <limits>
#include <vector>

// A model of the cost of a training step on many workers: compute, latency and bandwidth. All values are in
// seconds, bytes and bytes per second. Scaling is weak: every worker has as many examples as a single one
// would have, so an efficiency of 1 means that a step takes no longer than alone.
namespace bench {

// The time of a message is `latency` + bytes / `bandwidth`.
struct Link {
  double latency = 0;
  double bandwidth = std::numeric_limits<double>::infinity();
};

// The number of turns that workers need if there are more of them than cores: 1 if each has a core.
double turns(int workers, int cores);

// --- A model of one machine whose cores compute and also move the bytes. So no part of an exchange is hidden
// behind compute, and more workers than cores take turns at both.

struct Machine {
  int cores = 1;
  double compute = 0;     // core seconds of one worker's step when it is alone on the machine
  double contention = 0;  // slowdown of all for each further busy core, since memory and caches are shared
};

double compute_seconds(const Machine& machine, int workers);

// All-reduce in memory that the ranks share: each rank reads its slice from all and writes it to all, 2 x
// bytes through one core; it also checks every other rank, which takes the latency.
double memory_exchange(const Link& memory, int ranks, int cores, double bytes);
// All-reduce over the machine's own TCP: each rank sends a slice to every other rank, and then its sum.
double loopback_exchange(const Link& loopback, int ranks, int cores, double bytes);

// Ranks with a core each poll for the others, and find the moved bytes in the core's caches. Ranks that take
// turns are suspended and woken up, which takes longer, and find other data in the caches.
struct Links {
  Link spread;
  Link crowded;
  const Link& link_for(int ranks, int cores) const { return ranks > cores ? crowded : spread; }
};

// A measurement.
struct ExchangeSample {
  int ranks;
  double bytes;
  double seconds;
};
struct StepSample {
  int workers;
  double compute;  // seconds of the step without its exchange
};

// Finds the parameters with the least sum of squared relative errors; none is below 0.
using ExchangeModel = double (*)(const Link& link, int ranks, int cores, double bytes);
Link fit_link(ExchangeModel model, int cores, const std::vector<ExchangeSample>& samples);
// Fits each link to its samples or, if there are none, to the samples of the other link.
Links fit_links(ExchangeModel model, int cores, const std::vector<ExchangeSample>& samples);
Machine fit_machine(int cores, const std::vector<StepSample>& samples);

// --- A model of a cluster whose workers have a device each, and whose network moves bytes while they
// compute.

enum class Exchange {
  Ring,          // 2(W-1) consecutive messages
  Tree,          // up and down two pipelined binary trees: 2 log2(W) consecutive messages, the bytes of a
                 // ring
  Hierarchical,  // shared memory inside a host, a ring between hosts
  Direct,        // the same, but every host sends slices directly to their owners: 2(H-1) messages,
                 // concurrently. This is what Tutti does
};
const char* name_of(Exchange exchange);

struct Cluster {
  int ranks_per_host = 8;
  double step = 0.1;          // of one worker alone
  double backward = 2.0 / 3;  // share of the step for the backward pass, during which gradients become ready
  double bytes = 100e6;       // total size of the gradients
  double bucket = 25e6;       // minimum size of gradients that are exchanged together
  double jitter = 0.02;  // standard deviation of a worker's step, as a share of it: all wait for the slowest
  Link network{20e-6, 25e9 / 8};  // link of a host
  double message = 5e-6;          // sender's work for each of several concurrent messages
  Link memory{1e-6, 10e9};        // link of a rank, as in memory_exchange()
};

// The time of one all-reduce of all workers, with hosts filled one after the other. Workers of a single host
// share memory in any exchange. Inside a host, a ring and a tree are as fast as its network link, which they
// cross once.
double exchange_seconds(const Cluster& cluster, Exchange exchange, int workers, double bytes);
// The time of a step of all workers, in which consecutive exchanges of buckets overlap the backward pass.
double step_seconds(const Cluster& cluster, Exchange exchange, int workers);
double efficiency(const Cluster& cluster, Exchange exchange, int workers);

}  // namespace bench
