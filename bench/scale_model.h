#pragma once

#include <limits>
#include <vector>

// What a training step costs on many workers: compute, latency and bandwidth. Seconds, bytes and bytes a
// second throughout. Weak scaling: every worker has as many examples as one alone would have, so an
// efficiency of 1 means that a step takes no longer than alone.
namespace bench {

// A message takes its latency, and its bytes the rest.
struct Link {
  double latency = 0;
  double bandwidth = std::numeric_limits<double>::infinity();
};

// How often workers beyond the cores have to take turns: 1 where each has a core.
double turns(int workers, int cores);

// --- One machine whose cores do everything: they compute, and they move the bytes too. So nothing of an
// exchange hides behind compute, and more workers than cores take turns at both.

struct Machine {
  int cores = 1;
  double compute = 0;  // core seconds of one worker's step, alone on the machine
  double contention =
      0;  // for each further core at work, by how much all are slower: they share memory and caches
};

double compute_seconds(const Machine& machine, int workers);

// All-reduce in memory that the ranks share: each reads its slice from all, and writes it to all, 2 x bytes
// through one core; and it looks at every other rank, which takes the latency.
double memory_exchange(const Link& memory, int ranks, int cores, double bytes);
// All-reduce over the machine's own TCP: each rank sends a slice to every other, and then its sum.
double loopback_exchange(const Link& loopback, int ranks, int cores, double bytes);

// Ranks with a core each keep watching for the others, and what they move in its caches. Those that take
// turns are put aside and woken up, which takes longer, and find the caches full of what is not theirs.
struct Links {
  Link spread;
  Link crowded;
  const Link& of(int ranks, int cores) const { return ranks > cores ? crowded : spread; }
};

// What was measured.
struct ExchangeSample {
  int ranks;
  double bytes;
  double seconds;
};
struct StepSample {
  int workers;
  double compute;  // seconds of the step without its exchange
};

// The parameters with the least sum of squared relative errors; none is below 0.
using ExchangeModel = double (*)(const Link& link, int ranks, int cores, double bytes);
Link fit_link(ExchangeModel model, int cores, const std::vector<ExchangeSample>& samples);
// Each of the two to the samples of its own, or, where there are none, to those of the other.
Links fit_links(ExchangeModel model, int cores, const std::vector<ExchangeSample>& samples);
Machine fit_machine(int cores, const std::vector<StepSample>& samples);

// --- A cluster whose workers have a device each, and whose network moves bytes while they compute.

enum class Exchange {
  Ring,  // 2(W-1) messages one after the other
  Tree,  // up and down two pipelined binary trees: 2 log2(W) messages one after the other, the bytes of a
         // ring
  Hierarchical,  // inside a host in shared memory, between hosts a ring
  Direct,  // the same, but between hosts everybody sends slices straight to their owners: 2(H-1) messages,
           // under way at once. What Tutti does
};
const char* name_of(Exchange exchange);

struct Cluster {
  int ranks_per_host = 8;
  double step = 0.1;  // one worker alone
  double backward =
      2.0 / 3;  // the share of it at whose end the last gradient is ready, and the first at its begin
  double bytes = 100e6;  // of all gradients
  double bucket = 25e6;  // that are exchanged as one, at least
  double jitter = 0.02;  // standard deviation of a worker's step, as a share of it: all wait for the slowest
  Link network{20e-6, 25e9 / 8};  // of a host
  double message = 5e-6;    // of work for whoever sends one of several messages that are under way at once
  Link memory{1e-6, 10e9};  // of a rank, as in memory_exchange()
};

// One all-reduce of all workers, hosts filled one after the other. Workers of one host alone share memory
// whatever the exchange. Inside a host a ring and a tree are as fast as its link to the network, which they
// cross once.
double exchange_seconds(const Cluster& cluster, Exchange exchange, int workers, double bytes);
// The step of all, in which buckets are exchanged, one after the other, while the backward pass goes on.
double step_seconds(const Cluster& cluster, Exchange exchange, int workers);
double efficiency(const Cluster& cluster, Exchange exchange, int workers);

}  // namespace bench
