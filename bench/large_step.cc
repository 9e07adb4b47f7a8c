// Measures the memory that a parameter server takes for one synchronous step of many workers with a large
// model, over the network. Prints Markdown.
//   bench_large_step
//   bench_large_step serve    the server: prints its port, and ends with its standard input
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/lanes/lanes.h"
#include "tutti/params/optimizer.h"
#include "tutti/ps/placement.h"
#include "tutti/ps/service.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/host.h"
#include "tutti/step/control_word.h"
#include "tutti/step/lane_sum.h"

namespace {

using tutti::Json;
namespace ps = tutti::ps;
namespace rpc = tutti::rpc;

constexpr int kWorkers = 40;
constexpr int64_t kParameters = 125'000'000;
constexpr std::chrono::minutes kLongEnough{10};

// The server, in a separate process.
class ServerProcess {
 public:
  explicit ServerProcess(const std::string& self) {
    int to[2];
    int from[2];
    if (pipe(to) != 0 || pipe(from) != 0) tutti::fail(tutti::ErrorKind::Overloaded, "no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      for (const int end : {to[0], to[1], from[0], from[1]}) close(end);
      execl(self.c_str(), self.c_str(), "serve", nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    input_ = to[1];
    FILE* output = fdopen(from[0], "r");
    if (std::fscanf(output, "%d", &port_) != 1) tutti::fail(tutti::ErrorKind::PeerLost, "no server");
    std::fclose(output);
  }
  ~ServerProcess() {
    close(input_);
    waitpid(pid_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }
  // Returns a line of /proc/PID/status in MB.
  double memory(const std::string& name) const {
    std::ifstream file(fmt::format("/proc/{}/status", pid_));
    std::string word;
    double kib = 0;
    while (file >> word) {
      if (word == name + ":") file >> kib;
    }
    return kib * 1024 / 1e6;
  }
  // Resets the measured peak.
  void forget_peak() const { std::ofstream(fmt::format("/proc/{}/clear_refs", pid_)) << 5; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int port_ = 0;
};

rpc::Message begin_message(const torch::Tensor& values) {
  return {
      {{"run", "r"},
       {"plan", {"one vector"}},
       {"workers", kWorkers},
       {"strategy", "ps-sync"},
       {"lanes", kWorkers},
       {"backup", 0},
       {"staleness", -1},
       {"redo", false},
       {"optimizer", tutti::to_json(torch::optim::SGDOptions(1.0))},
       {"step", 0},
       {"progress", Json::object()},
       {"block_ranges", ps::to_json(std::vector<ps::BlockRange>{{0, 0, values.numel(), torch::kFloat32}})},
       {"buffers", Json::array()},
       {"counters", Json::array()},
       {"state", {{"steps", 0}, {"slots", Json::array()}}}},
      ps::pieces_of({values})};
}

rpc::Message push_message(int rank, const torch::Tensor& gradient) {
  const tutti::ControlWord control(tutti::lanes_of_all(kWorkers, kWorkers), kWorkers, tutti::kNumbers);
  const torch::Tensor control_word = torch::zeros({control.size()}, torch::kDouble);
  control.write(control_word, 0, {}, 1,
                {{{0, rank}, tutti::TreeSum::Vectors{torch::tensor({1.0, 1.0, 1.0, 0.0}, torch::kDouble)}}});
  rpc::Message message{{{"run", "r"}, {"step", 0}, {"patience", 600'000}}, ps::pieces_of({control_word})};
  ps::append_segments(message, {{gradient}});
  return message;
}

rpc::Channel channel_of(const std::string& address, int rank) {
  return {address, {.hello = {{"task", fmt::format("worker/{}", rank)}, {"host", "here"}, {"pid", rank}}}};
}

int serve() {
  ps::Service service{tutti::Log(tutti::LogLevel::Off)};
  const rpc::Host host({}, service);
  std::cout << host.port() << std::endl;
  while (std::cin.get() != EOF) {
  }
  return 0;
}

void measure(const std::string& self) {
  const ServerProcess server(self);
  const torch::Tensor vector = torch::full({kParameters}, 0.5);
  // All workers share this memory, since they receive the same values.
  const torch::Tensor answer = torch::empty({kParameters});
  channel_of(server.address(), 0).call("begin", begin_message(vector), {.timeout = kLongEnough});
  server.forget_peak();
  const double before = server.memory("VmRSS");
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> workers;
  for (int rank = 0; rank < kWorkers; ++rank) {
    workers.emplace_back([&, rank] {
      rpc::Channel channel = channel_of(server.address(), rank);
      channel.call("join", {{{"rank", rank}, {"plan", {"one vector"}}, {"patience", 60'000}}, {}});
      const rpc::Message message = push_message(rank, vector);
      const torch::Tensor control_words = torch::empty(
          {static_cast<int64_t>(message.pieces[0].bytes.size() / sizeof(double)) * kWorkers}, torch::kDouble);
      channel.call("push", message,
                   {.timeout = kLongEnough, .into = ps::Places({control_words, answer}).spans()});
    });
  }
  for (std::thread& worker : workers) worker.join();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  // One update with the mean gradient, 0.5, from the value 0.5.
  const bool right = torch::equal(answer, torch::zeros({kParameters}));
  const double gradient = static_cast<double>(vector.nbytes()) / 1e6;
  fmt::print(
      "## A large step of parameter servers\n\nOne step of ps-sync with {} workers, which are connected over "
      "the "
      "network and share the memory of this machine (`./dev bench large_step`). The model has {} million "
      "parameters, so that each "
      "pushes a gradient of {:.0f} MB. The server holds the values and one gradient, which take {:.0f} MB. "
      "The target is the memory of "
      "two gradients.\n\n"
      "| server's memory before the step, MB | peak in the step, MB | above, in gradients | seconds | values "
      "|\n"
      "|---:|---:|---:|---:|---|\n| {:.0f} | {:.0f} | {:.2f} | {:.1f} | {} |\n",
      kWorkers, kParameters / 1'000'000, gradient, 2 * gradient, before, server.memory("VmHWM"),
      (server.memory("VmHWM") - before) / gradient, time.count(), right ? "right" : "WRONG");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "serve") return serve();
  measure(std::filesystem::read_symlink("/proc/self/exe"));
  return 0;
}
