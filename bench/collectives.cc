// Compares the all-reduce of float32 among the processes of one host: Tutti's backends, Open MPI, Gloo, and
// the time of the memory accesses alone; then the same over TCP only. If started by hand, starts itself again
// under mpirun with 2, 4 and 8 ranks; prints Markdown.
#include <cstdlib>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "bench/turns.h"
#include "tutti/transport/reduce.h"

namespace {

using bench::Comms;
using bench::ours;
using bench::Peers;
using bench::Size;
using bench::Turn;

const std::vector<Size> kSizes = {
    {"4 KB", 1 << 10, 200, 15}, {"256 KB", 1 << 16, 50, 15}, {"64 MB", 1 << 24, 1, 9}};
const std::vector<Size> kTcpSizes = {
    {"4 KB", 1 << 10, 100, 15}, {"1 MB", 1 << 18, 10, 15}, {"64 MB", 1 << 24, 1, 9}};

// Moves as many bytes as an all-reduce in place, but waits for no other rank: adds two private blocks into
// both.
std::function<void()> streaming(int64_t elements) {
  const torch::Tensor a = torch::ones({elements / 2});
  const torch::Tensor b = torch::ones({elements / 2});
  return [a, b, program = tutti::comm::one_by_rank(2).program] {
    const std::vector<std::byte*> parts = {static_cast<std::byte*>(a.data_ptr()),
                                           static_cast<std::byte*>(b.data_ptr())};
    const std::vector<const std::byte*> inputs(parts.begin(), parts.end());
    tutti::comm::reduce(inputs, parts, {tutti::ElementType::Float32, tutti::comm::ReduceOp::Sum, a.numel()},
                        program);
  };
}

std::vector<Turn> turns_in_memory(const Size& size, const Comms& comms, const Peers& peers) {
  tutti::comm::Communicator& shm = *comms.at("shm");
  const torch::Tensor own = torch::zeros({size.elements});
  std::vector<Turn> turns = {ours(comms, "shm", shm.shared()->allocate(size.elements, torch::kFloat)),
                             ours(comms, "shm", own), ours(comms, "mpi", own), ours(comms, "tcp", own)};
  turns[0].name += ", in place";
  turns[1].name += ", any memory";
  bench::add_peers(peers, own, turns);
  if (shm.world() == 2) turns.push_back({"memory alone", streaming(size.elements)});
  return turns;
}

std::vector<Turn> turns_over_tcp(const Size& size, const Comms& comms, const Peers& peers) {
  const torch::Tensor own = torch::zeros({size.elements});
  std::vector<Turn> turns = {ours(comms, "tcp", own), ours(comms, bench::kTcpWithChecksums, own)};
  bench::add_peers(peers, own, turns);
  return turns;
}

// Prints the medians, each also as a multiple of the first.
void compare(const Size& size, const std::vector<Turn>& turns, tutti::comm::Communicator& comm) {
  const std::vector<double> times = bench::take_turns(size, turns, comm);
  for (size_t t = 0; comm.rank() == 0 && t < turns.size(); ++t)
    fmt::print("| {} | {} | {} | {:.1f} | {:.2f} |\n", comm.world(), size.name, turns[t].name, times[t],
               times[t] / times[0]);
}

void measure_as_rank(const std::string& over, const std::string& meeting_file) {
  at::set_num_threads(1);
  const Comms comms = bench::connect({"shm", "mpi", "tcp", bench::kTcpWithChecksums});
  tutti::comm::Communicator& shm = *comms.at("shm");
  const Peers peers = bench::peers_of(shm, meeting_file);
  if (over == "tcp") {
    for (const Size& size : kTcpSizes) compare(size, turns_over_tcp(size, comms, peers), shm);
  } else {
    for (const Size& size : kSizes) compare(size, turns_in_memory(size, comms, peers), shm);
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
