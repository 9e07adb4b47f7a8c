// Compares the all-reduce of float32 among the processes of one host: Tutti's backends, Open MPI, Gloo, and
// the time of the memory accesses alone. If started by hand, starts itself again under mpirun with 2, 4 and 8
// ranks; prints Markdown.
#include "bench/peers/collectives.h"

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "bench/sides.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/connect.h"
#include "tutti/comm/reduce.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Size {
  const char* name;
  int64_t elements;
  int iterations;  // between two readings of the clock
  int rounds;
};

const std::vector<Size> kSizes = {
    {"4 KB", 1 << 10, 200, 15}, {"256 KB", 1 << 16, 50, 15}, {"64 MB", 1 << 24, 1, 9}};

struct Side {
  std::string name;
  std::function<void()> run;
};

std::shared_ptr<tutti::comm::Communicator> connect(const std::string& backend) {
  tutti::RunConfig config;
  config.network.backend = backend;
  config.compute.device = "cpu";
  config.output.log_level = "error";
  const tutti::Context context(config, tutti::discover(config, tutti::Environment::of_process()));
  return tutti::comm::connect(context);
}

// Moves as many bytes as an all-reduce in place, but waits for no other rank: adds two private blocks into
// both.
std::function<void()> streaming(int64_t elements) {
  const torch::Tensor a = torch::ones({elements / 2});
  const torch::Tensor b = torch::ones({elements / 2});
  return [a, b, program = tutti::comm::tree_program(2)] {
    const std::vector<std::byte*> parts = {static_cast<std::byte*>(a.data_ptr()),
                                           static_cast<std::byte*>(b.data_ptr())};
    const std::vector<const std::byte*> inputs(parts.begin(), parts.end());
    tutti::comm::reduce(inputs, parts, {torch::kFloat, tutti::comm::ReduceOp::Sum, a.numel()}, program);
  };
}

std::vector<Side> sides_of(const Size& size,
                           std::map<std::string, std::shared_ptr<tutti::comm::Communicator>>& comms,
                           const std::map<std::string, bench::AllReduce>& peers) {
  using tutti::comm::ReduceOp;
  std::vector<Side> sides;
  tutti::comm::Communicator& shm = *comms.at("shm");
  const torch::Tensor shared = shm.shared()->allocate(size.elements, torch::kFloat);
  torch::Tensor own = torch::zeros({size.elements});
  sides.push_back({"Tutti shm, in place", [=, &shm] { shm.all_reduce(shared, ReduceOp::Sum); }});
  sides.push_back({"Tutti shm, any memory", [=, &shm] { shm.all_reduce(own, ReduceOp::Sum); }});
  for (const char* backend : {"mpi", "gloo"}) {
    if (!comms.contains(backend)) continue;
    tutti::comm::Communicator& comm = *comms.at(backend);
    sides.push_back({fmt::format("Tutti {}", backend), [=, &comm] { comm.all_reduce(own, ReduceOp::Sum); }});
  }
  for (const auto& [name, all_reduce] : peers)
    sides.push_back({name, [own, all_reduce = all_reduce]() mutable { all_reduce(own); }});
  if (shm.world() == 2) sides.push_back({"memory alone", streaming(size.elements)});
  return sides;
}

double microseconds(const std::function<void()>& body, int iterations) {
  const auto begin = Clock::now();
  for (int i = 0; i < iterations; ++i) body();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / iterations;
}

void measure_as_rank(const std::string& meeting_file) {
  at::set_num_threads(1);
  std::map<std::string, std::shared_ptr<tutti::comm::Communicator>> comms;
  comms["shm"] = connect("shm");
  tutti::comm::Communicator& shm = *comms["shm"];
  for (const char* backend : {"mpi", "gloo"}) comms[backend] = connect(backend);
  std::map<std::string, bench::AllReduce> peers;
  if (const auto peer = bench::mpi_all_reduce()) peers["Open MPI"] = *peer;
  if (const auto peer = bench::gloo_all_reduce(shm.rank(), shm.world(), meeting_file)) peers["Gloo"] = *peer;
  for (const Size& size : kSizes) {
    const std::vector<Side> sides = sides_of(size, comms, peers);
    std::vector<std::vector<double>> times(sides.size());
    for (int round = -2; round < size.rounds; ++round) {
      for (size_t s = 0; s < sides.size(); ++s) {
        shm.barrier();
        const double time = microseconds(sides[s].run, size.iterations);
        if (round >= 0) times[s].push_back(time);
      }
    }
    if (shm.rank() != 0) continue;
    const double ours = bench::median(times[0]);
    for (size_t s = 0; s < sides.size(); ++s) {
      const double time = bench::median(times[s]);
      fmt::print("| {} | {} | {} | {:.1f} | {:.2f} |\n", shm.world(), size.name, sides[s].name, time,
                 time / ours);
    }
  }
}

int start_ranks(const char* program, int world) {
  std::fflush(stdout);
  const std::string file = fmt::format("/tmp/tutti-bench-{}-{}", getpid(), world);
  const std::string command = fmt::format(
      "mpirun --allow-run-as-root --oversubscribe --bind-to none -np {} {} {}", world, program, file);
  const int status = std::system(command.c_str());  // NOLINT(cert-env33-c): our own words
  unlink(file.c_str());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    measure_as_rank(argv[1]);
    return 0;
  }
  fmt::print(
      "## All-reduce on one host\n\n| ranks | size | what | microseconds | to ours in place "
      "|\n|---|---|---|---|---|\n");
  for (const int world : {2, 4, 8}) {
    if (start_ranks(argv[0], world) != 0) return 1;
  }
  return 0;
}
