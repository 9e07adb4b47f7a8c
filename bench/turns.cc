#include "bench/turns.h"

#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "bench/sides.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/connect.h"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 2;  // rounds

double microseconds(const std::function<void()>& body, int iterations) {
  const auto begin = Clock::now();
  for (int i = 0; i < iterations; ++i) body();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / iterations;
}

}  // namespace

Comms connect(const std::vector<const char*>& backends) {
  Comms comms;
  for (const char* backend : backends) {
    tutti::RunConfig config;
    const bool with_checksums = std::string_view(backend) == kTcpWithChecksums;
    config.network.backend = with_checksums ? "tcp" : backend;
    if (with_checksums) config.network.message_checksums = "on";
    config.compute.device = "cpu";
    config.output.log_level = "error";
    const tutti::Context context(config, tutti::discover(config, tutti::Environment::of_process()));
    comms[backend] = tutti::comm::connect(context);
  }
  return comms;
}

Peers peers_of(const tutti::comm::Communicator& comm, const std::string& file, const std::string& address) {
  Peers peers;
  if (const auto peer = mpi_all_reduce()) peers["Open MPI"] = *peer;
  if (const auto peer = gloo_all_reduce(comm.rank(), comm.world(), file, address)) peers["Gloo"] = *peer;
  return peers;
}

Turn ours(const Comms& comms, const char* backend, const torch::Tensor& tensor) {
  return {fmt::format("Tutti {}", backend),
          [tensor, comm = comms.at(backend)] { comm->all_reduce(tensor, tutti::comm::ReduceOp::Sum); }};
}

void add_peers(const Peers& peers, torch::Tensor tensor, std::vector<Turn>& turns) {
  for (const auto& [name, all_reduce] : peers)
    turns.push_back({name, [tensor, all_reduce = all_reduce]() mutable { all_reduce(tensor); }});
}

std::vector<double> take_turns(const Size& size, const std::vector<Turn>& turns,
                               tutti::comm::Communicator& comm) {
  std::vector<std::vector<double>> times(turns.size());
  for (int round = -kWarmUp; round < size.rounds; ++round) {
    for (size_t t = 0; t < turns.size(); ++t) {
      comm.barrier();
      const double time = microseconds(turns[t].run, size.iterations);
      if (round >= 0) times[t].push_back(time);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_turn : times) medians.push_back(median(std::move(of_turn)));
  return medians;
}

}  // namespace bench
