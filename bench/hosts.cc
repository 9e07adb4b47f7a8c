// Compares the all-reduce of float32 among one or two ranks each on two hosts with a cable between them:
// Tutti's backends, Open MPI and Gloo, and the time in which the cable could carry the bytes of a ring. If
// started by hand, creates the hosts on this machine (bench/on_two_hosts, as root) and starts itself again
// there; prints Markdown.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "bench/sides.h"
#include "bench/turns.h"
#include "tutti/base/this_host.h"

namespace {

using bench::Size;
using bench::Turn;

const std::vector<Size> kSizes = {
    {"4 KB", 1 << 10, 50, 7}, {"1 MB", 1 << 18, 5, 9}, {"64 MB", 1 << 24, 1, 5}};
const std::vector<const char*> kBackends = {"shm+tcp", "shm+mpi", "tcp", "mpi"};

// In microseconds. With two hosts, a ring carries as many bytes over the cable each way as the tensor has.
double limit_of(const Size& size, int gigabits) {
  return static_cast<double>(size.elements) * sizeof(float) * 8 / gigabits / 1e3;
}

void measure_as_rank(const std::string& meeting_file, int gigabits) {
  at::set_num_threads(1);
  const bench::Comms comms = bench::connect(kBackends);
  tutti::comm::Communicator& first = *comms.at(kBackends.front());
  const bench::Peers peers = bench::peers_of(first, meeting_file, tutti::own_addresses().at(0));
  for (const Size& size : kSizes) {
    const torch::Tensor tensor = torch::zeros({size.elements});
    std::vector<Turn> turns;
    for (const char* backend : kBackends) turns.push_back(bench::ours(comms, backend, tensor));
    bench::add_peers(peers, tensor, turns);
    const std::vector<double> times = bench::take_turns(size, turns, first);
    for (size_t t = 0; first.rank() == 0 && t < turns.size(); ++t)
      fmt::print("| {} | {} | {} | {} | {:.2f} | {:.2f} | {:.2f} |\n", gigabits, first.world() / 2, size.name,
                 turns[t].name, times[t] / 1000, times[t] / times[0], limit_of(size, gigabits) / times[t]);
  }
}

int start_on_hosts(int gigabits, int ranks) {
  std::fflush(stdout);
  const std::string file = fmt::format("/tmp/tutti-bench-hosts-{}", getpid());
  const std::string mpirun = fmt::format(
      "mpirun --allow-run-as-root --bind-to none --mca plm_rsh_agent $AGENT -np {} -H "
      "10.77.0.1:{},10.77.0.2:{}",
      2 * ranks, ranks, ranks);
  const std::string command =
      fmt::format("sh {} {}gbit '{} {} {} {}'", (bench::folder() / "on_two_hosts").string(), gigabits, mpirun,
                  std::filesystem::read_symlink("/proc/self/exe").string(), file, gigabits);
  const int status = std::system(command.c_str());  // NOLINT(cert-env33-c): our own words
  unlink(file.c_str());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2) {
    measure_as_rank(argv[1], std::stoi(argv[2]));
    return 0;
  }
  fmt::print(
      "## All-reduce on two hosts\n\nBoth hosts are simulated on this machine, with a cable between them. "
      "The "
      "last column compares with the time in which the cable can carry the bytes of a ring: 1 would be "
      "perfect.\n\n| Gbit/s | ranks on a host | size | what | milliseconds | to ours | of the cable's limit "
      "|\n|---|---|---|---|---|---|---|\n");
  for (const int gigabits : {1, 10}) {
    for (const int ranks : {1, 2}) {
      if (start_on_hosts(gigabits, ranks) != 0) return 1;
    }
  }
  return 0;
}
