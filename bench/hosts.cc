// Compares the all-reduce of float32 among one or two ranks each on two hosts with a cable between them:
// Tutti's backends, Open MPI and Gloo, and the time in which the cable could carry the bytes of a ring. If
// started by hand, creates the hosts on this machine (bench/on_two_hosts, as root) and starts itself again
// there; prints Markdown.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "bench/peers/collectives.h"
#include "bench/sides.h"
#include "tutti/base/this_host.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/connect.h"

namespace {

using Clock = std::chrono::steady_clock;
using CommPtr = std::shared_ptr<tutti::comm::Communicator>;

struct Size {
  const char* name;
  int64_t elements;
  int iterations;  // between two readings of the clock
  int rounds;
};

const std::vector<Size> kSizes = {
    {"4 KB", 1 << 10, 50, 7}, {"1 MB", 1 << 18, 5, 9}, {"64 MB", 1 << 24, 1, 5}};
constexpr const char* kBackend = "shm+tcp";
constexpr const char* kOurs = "Tutti shm+tcp";

struct Side {
  std::string name;
  std::function<void(torch::Tensor&)> run;
};

CommPtr connect(const std::string& backend) {
  tutti::RunConfig config;
  config.network.backend = backend;
  config.compute.device = "cpu";
  config.output.log_level = "error";
  const tutti::Context context(config, tutti::discover(config, tutti::Environment::of_process()));
  return tutti::comm::connect(context);
}

std::vector<Side> sides_of(const std::map<std::string, CommPtr>& comms, const std::string& meeting_file) {
  std::vector<Side> sides;
  for (const auto& [name, comm] : comms) {
    sides.push_back({"Tutti " + name, [comm = comm](torch::Tensor& tensor) {
                       comm->all_reduce(tensor, tutti::comm::ReduceOp::Sum);
                     }});
  }
  if (const auto peer = bench::mpi_all_reduce()) sides.push_back({"Open MPI", *peer});
  const tutti::comm::Communicator& comm = *comms.begin()->second;
  const std::string address = tutti::own_addresses().at(0);
  if (const auto peer = bench::gloo_all_reduce(comm.rank(), comm.world(), meeting_file, address))
    sides.push_back({"Gloo", *peer});
  return sides;
}

// With two hosts, a ring carries as many bytes over the cable each way as the tensor has.
double limit_of(const Size& size, int gigabits) {
  return static_cast<double>(size.elements) * sizeof(float) * 8 / gigabits / 1e6;
}

void measure_as_rank(const std::string& meeting_file, int gigabits) {
  at::set_num_threads(1);
  std::map<std::string, CommPtr> comms;
  for (const char* backend : {"shm+tcp", "shm+mpi", "tcp", "mpi"}) comms[backend] = connect(backend);
  const int ranks = comms[kBackend]->world() / 2;
  tutti::comm::Communicator& first = *comms[kBackend];
  const std::vector<Side> sides = sides_of(comms, meeting_file);
  for (const Size& size : kSizes) {
    torch::Tensor tensor = torch::zeros({size.elements});
    std::map<std::string, std::vector<double>> times;
    for (int round = -1; round < size.rounds; ++round) {
      for (const Side& side : sides) {
        first.barrier();
        const auto begin = Clock::now();
        for (int i = 0; i < size.iterations; ++i) side.run(tensor);
        const double time =
            std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / size.iterations;
        if (round >= 0) times[side.name].push_back(time);
      }
    }
    for (size_t i = 0; first.rank() == 0 && i < sides.size(); ++i) {
      const double time = bench::median(times[sides[i].name]);
      fmt::print("| {} | {} | {} | {} | {:.2f} | {:.2f} | {:.2f} |\n", gigabits, ranks, size.name,
                 sides[i].name, time, time / bench::median(times[kOurs]), limit_of(size, gigabits) / time);
    }
  }
}

int start_on_hosts(int gigabits, int ranks) {
  std::fflush(stdout);
  const std::string file = fmt::format("/tmp/tutti-bench-hosts-{}", getpid());
  const std::string command =
      fmt::format("sh {} {}gbit {} {} {} {}", (bench::folder() / "on_two_hosts").string(), gigabits, ranks,
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
