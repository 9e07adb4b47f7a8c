// Compares the all-reduce of float32 among the processes of one host: Tutti's backends, Open MPI, Gloo, and
// the time of the memory accesses alone; then the same over TCP only. If started by hand, starts itself again
// under mpirun with 2, 4 and 8 ranks; prints Markdown.
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
const std::vector<Size> kTcpSizes = {
    {"4 KB", 1 << 10, 100, 15}, {"1 MB", 1 << 18, 10, 15}, {"64 MB", 1 << 24, 1, 9}};

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

using Comms = std::map<std::string, std::shared_ptr<tutti::comm::Communicator>>;
using Peers = std::map<std::string, bench::AllReduce>;

Side ours(const Comms& comms, const char* backend, const torch::Tensor& tensor) {
  tutti::comm::Communicator& comm = *comms.at(backend);
  return {fmt::format("Tutti {}", backend),
          [tensor, &comm] { comm.all_reduce(tensor, tutti::comm::ReduceOp::Sum); }};
}

void add_peers(const Peers& peers, torch::Tensor tensor, std::vector<Side>& sides) {
  for (const auto& [name, all_reduce] : peers)
    sides.push_back({name, [tensor, all_reduce = all_reduce]() mutable { all_reduce(tensor); }});
}

std::vector<Side> sides_in_memory(const Size& size, const Comms& comms, const Peers& peers) {
  tutti::comm::Communicator& shm = *comms.at("shm");
  const torch::Tensor own = torch::zeros({size.elements});
  std::vector<Side> sides = {ours(comms, "shm", shm.shared()->allocate(size.elements, torch::kFloat)),
                             ours(comms, "shm", own), ours(comms, "mpi", own), ours(comms, "tcp", own)};
  sides[0].name += ", in place";
  sides[1].name += ", any memory";
  add_peers(peers, own, sides);
  if (shm.world() == 2) sides.push_back({"memory alone", streaming(size.elements)});
  return sides;
}

std::vector<Side> sides_over_tcp(const Size& size, const Comms& comms, const Peers& peers) {
  const torch::Tensor own = torch::zeros({size.elements});
  std::vector<Side> sides = {ours(comms, "tcp", own)};
  add_peers(peers, own, sides);
  return sides;
}

double microseconds(const std::function<void()>& body, int iterations) {
  const auto begin = Clock::now();
  for (int i = 0; i < iterations; ++i) body();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / iterations;
}

// The sides take turns. Prints the medians, and each as a multiple of the first.
void compare(const Size& size, const std::vector<Side>& sides, tutti::comm::Communicator& comm) {
  std::vector<std::vector<double>> times(sides.size());
  for (int round = -2; round < size.rounds; ++round) {
    for (size_t s = 0; s < sides.size(); ++s) {
      comm.barrier();
      const double time = microseconds(sides[s].run, size.iterations);
      if (round >= 0) times[s].push_back(time);
    }
  }
  if (comm.rank() != 0) return;
  for (size_t s = 0; s < sides.size(); ++s) {
    const double time = bench::median(times[s]);
    fmt::print("| {} | {} | {} | {:.1f} | {:.2f} |\n", comm.world(), size.name, sides[s].name, time,
               time / bench::median(times[0]));
  }
}

void measure_as_rank(const std::string& over, const std::string& meeting_file) {
  at::set_num_threads(1);
  Comms comms;
  for (const char* backend : {"shm", "mpi", "tcp"}) comms[backend] = connect(backend);
  tutti::comm::Communicator& shm = *comms["shm"];
  Peers peers;
  if (const auto peer = bench::mpi_all_reduce()) peers["Open MPI"] = *peer;
  if (const auto peer = bench::gloo_all_reduce(shm.rank(), shm.world(), meeting_file)) peers["Gloo"] = *peer;
  if (over == "tcp") {
    for (const Size& size : kTcpSizes) compare(size, sides_over_tcp(size, comms, peers), shm);
  } else {
    for (const Size& size : kSizes) compare(size, sides_in_memory(size, comms, peers), shm);
  }
}

// `settings` are for Open MPI.
int start_ranks(const char* program, int world, const char* over, const char* settings) {
  std::fflush(stdout);
  const std::string file = fmt::format("/tmp/tutti-bench-{}-{}", getpid(), world);
  const std::string command =
      fmt::format("mpirun --allow-run-as-root --oversubscribe --bind-to none {} -np {} {} {} {}", settings,
                  world, program, over, file);
  const int status = std::system(command.c_str());  // NOLINT(cert-env33-c): our own words
  unlink(file.c_str());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2) {
    measure_as_rank(argv[1], argv[2]);
    return 0;
  }
  fmt::print(
      "## All-reduce on one host\n\n| ranks | size | what | microseconds | to ours in place "
      "|\n|---|---|---|---|---|\n");
  for (const int world : {2, 4, 8}) {
    if (start_ranks(argv[0], world, "memory", "") != 0) return 1;
  }
  fmt::print(
      "\n### Over TCP\n\nOver the loopback; Open MPI with `--mca btl self,tcp`.\n\n| ranks | size | what | "
      "microseconds | to ours |\n|---|---|---|---|---|\n");
  for (const int world : {2, 4, 8}) {
    if (start_ranks(argv[0], world, "tcp", "--mca pml ob1 --mca btl self,tcp") != 0) return 1;
  }
  return 0;
}
