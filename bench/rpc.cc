// Compares the cost of Tutti's servers and channels with gRPC's stream of bytes, if it was built with gRPC:
// the same bytes, in the same run, alternating. Prints Markdown.
//   bench_rpc
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "bench/peers/grpc_stream.h"
#include "bench/sides.h"
#include "tutti/base/error.h"
#include "tutti/net/test_certificates.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/host.h"

namespace {

using bench::kLarge;
using Clock = std::chrono::steady_clock;
using tutti::rpc::Message;

constexpr size_t kSmall = size_t{4} << 10;
constexpr int kRounds = 7;
constexpr int kTransfers = 5;      // per round
constexpr int kSmallCalls = 4000;  // per round and caller

double seconds(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// --- Servers, each in a separate process, which prints its port to stdout and ends at the end of stdin.

void announce_and_wait(int port) {
  std::printf("%d\n", port);
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

// Answers "pull" with the large vector, and anything else with an empty message.
class Service final : public tutti::rpc::Service {
 public:
  Message serve(const tutti::rpc::Caller&, const std::string& method, const Message&) override {
    if (method != "pull") return {};
    return {tutti::Json::object(), {{std::as_bytes(std::span(memory_)), {}}}};
  }
  void gone(const tutti::rpc::Caller&) override {}

 private:
  const std::vector<char> memory_ = std::vector<char>(kLarge, 1);
};

// Returns the certificates in a folder, or none if it is "".
bench::TlsTexts tls_in(const std::string& folder) {
  if (folder.empty()) return {};
  return {tutti::read_file(folder + "/server.pem"), tutti::read_file(folder + "/server.key"),
          tutti::read_file(folder + "/ca.pem")};
}

void serve_tutti(const bench::TlsTexts& tls) {
  Service service;
  const tutti::net::Credentials credentials{.certificate = tls.certificate, .key = tls.key};
  const tutti::rpc::Host host({.credentials = credentials}, service);
  announce_and_wait(host.port());
}

class ServerProcess {
 public:
  explicit ServerProcess(const char* kind, const std::string& folder_of_tls = "") {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0)
      tutti::fail_errno(errno, "making a pipe");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      execl("/proc/self/exe", "bench_rpc", kind, folder_of_tls.c_str(), nullptr);
      _exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    hold_ = in[1];
    const std::unique_ptr<FILE, int (*)(FILE*)> from(fdopen(out[0], "r"), &std::fclose);
    if (std::fscanf(from.get(), "%d", &port_) != 1)
      tutti::fail(tutti::ErrorKind::PeerLost, "the {} server did not start", kind);
  }
  ~ServerProcess() {
    ::close(hold_);
    waitpid(pid_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }
  // The CPU time of the server so far.
  double seconds() const {
    std::ifstream file(fmt::format("/proc/{}/stat", pid_));
    std::string word;
    double user = 0;
    double system = 0;
    for (int i = 0; i < 13; ++i) file >> word;
    file >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

 private:
  pid_t pid_ = -1;
  int hold_ = -1;
  int port_ = 0;
};

// --- Callers.

class Caller {
 public:
  Caller(const std::string& address, std::span<std::byte> from, std::span<std::byte> to,
         const tutti::rpc::ChannelOptions& options = {})
      : from_(from), to_(to), channel_(address, options) {
    std::memset(from.data(), 2, from.size());
    std::memset(to.data(), 3, to.size());
  }

  // Pushes and pulls in one call, as with gRPC's stream.
  void push_pull() { channel_.call("pull", {tutti::Json::object(), {{from_, {}}}}, {.into = {to_}}); }
  void push_small() { channel_.call("push", {tutti::Json::object(), {{from_.first(kSmall), {}}}}); }

 private:
  const std::span<std::byte> from_;
  const std::span<std::byte> to_;
  tutti::rpc::Channel channel_;
};

// One of the compared transports. A call sends kLarge bytes and receives as many.
struct Large {
  std::string name;
  std::function<void()> push_pull;
  const char* to_reach;
  size_t peer;  // the number of the row that it is compared with
  std::vector<double> milliseconds = {};
};

void print_large(std::vector<Large>& rows) {
  for (int round = -1; round < kRounds; ++round) {
    for (Large& row : rows) {
      const double now = 1e3 / kTransfers * seconds([&] {
                           for (int i = 0; i < kTransfers; ++i) row.push_pull();
                         });
      // The first round opens the connections.
      if (round >= 0) row.milliseconds.push_back(now);
    }
  }
  fmt::print("| push + pull of 64 MiB | ms | GB/s | of gRPC's speed | to reach |\n");
  fmt::print("|---|---:|---:|---:|---:|\n");
  for (const Large& row : rows) {
    const double own = bench::median(row.milliseconds);
    fmt::print("| {} | {:.1f} | {:.2f} | {:.2f} | {} |\n", row.name, own, 2 * kLarge / own / 1e6,
               bench::median(rows[row.peer].milliseconds) / own, row.to_reach);
  }
}

void compare_large() {
  const tutti::net::Certificates certificates;
  const std::string folder = certificates.path("");
  const bench::TlsTexts tls = tls_in(folder);
  const ServerProcess server("tutti");
  const ServerProcess tls_server("tutti", folder);
  std::vector<std::byte> memory(2 * kLarge);
  const std::span from = std::span(memory).first(kLarge);
  const std::span to = std::span(memory).last(kLarge);
  const auto arena = std::make_shared<tutti::rpc::Arena>();
  Caller tcp(server.address(), from, to);
  Caller checked(server.address(), from, to, {.credentials = {.checksums = tutti::net::Checksums::Always}});
  Caller encrypted(tls_server.address(), from, to, {.credentials = {.authority = tls.authority}});
  Caller shared(server.address(), arena->allocate(kLarge), arena->allocate(kLarge), {.arena = arena});
  std::vector<Large> rows;
  std::vector<std::unique_ptr<ServerProcess>> peers;
  std::vector<std::unique_ptr<bench::GrpcCaller>> callers;
  const auto add_peer = [&](const char* kind, const std::string& folder_of_tls, const char* name) {
    peers.push_back(std::make_unique<ServerProcess>(kind, folder_of_tls));
    callers.push_back(std::make_unique<bench::GrpcCaller>(peers.back()->address(), tls_in(folder_of_tls)));
    rows.push_back({name, [caller = callers.back().get()] { caller->push_pull(); }, "", rows.size()});
  };
  if (bench::has_grpc()) {
    add_peer("grpc", "", "gRPC's generic stream, whose server does not touch what it receives");
    add_peer("grpc-copying", "", "the same, copied into one piece of memory, as a tensor needs it");
    add_peer("grpc-copying", folder, "the same with TLS");
  } else {
    fmt::print("This build has no gRPC to compare with.\n\n");
  }
  const size_t copying = bench::has_grpc() ? 1 : 0;
  const size_t with_tls = bench::has_grpc() ? 2 : 0;
  rows.push_back({"`rpc::Channel`", [&] { tcp.push_pull(); }, "1.7", copying});
  rows.push_back({"`rpc::Channel` with checksums", [&] { checked.push_pull(); }, "", copying});
  rows.push_back({"`rpc::Channel` with TLS", [&] { encrypted.push_pull(); }, "1.0", with_tls});
  rows.push_back({"`rpc::Channel` with an arena", [&] { shared.push_pull(); }, "3", copying});
  print_large(rows);
}

void measure_small(int callers) {
  const ServerProcess server("tutti");
  std::vector<double> per_second;
  std::vector<double> per_core;
  std::vector<std::byte> memory(kSmall);
  for (int round = -1; round < kRounds; ++round) {
    const double before = server.seconds();
    const double time = seconds([&] {
      std::vector<std::thread> threads;
      for (int i = 0; i < callers; ++i)
        threads.emplace_back([&] {
          Caller caller(server.address(), memory, {});
          for (int call = 0; call < kSmallCalls; ++call) caller.push_small();
        });
      for (std::thread& thread : threads) thread.join();
    });
    if (round < 0) continue;
    per_second.push_back(callers * kSmallCalls / time);
    per_core.push_back(callers * kSmallCalls / (server.seconds() - before));
  }
  fmt::print("| {} | {:.0f} | {:.0f} |\n", callers, bench::median(per_second), bench::median(per_core));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  const bench::TlsTexts tls = tls_in(argc > 2 ? argv[2] : "");
  if (kind.starts_with("grpc")) {
    bench::serve_grpc(kind == "grpc-copying", tls, announce_and_wait);
  } else if (kind == "tutti") {
    serve_tutti(tls);
  } else {
    fmt::print(
        "## Remote calls\n\nTwo processes on this machine, medians of {} alternating rounds (`./dev bench "
        "rpc`).\n\n",
        kRounds);
    compare_large();
    fmt::print(
        "\nThe target is 10000 pushes per second of the server's CPU. (`./dev bench servers` includes the "
        "update of a parameter server.)\n\n| callers, pushes of 4 KiB | a second | a second of the server's "
        "CPU |\n|---:|---:|---:|\n");
    for (const int callers : {1, 2, 4}) measure_small(callers);
  }
  return 0;
}
