// Compares the cost of Tutti's servers and channels with gRPC's own stream of bytes: the same bytes, in the
// same run, alternating. Prints Markdown.
//   bench_rpc
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "bench/sides.h"
#include "tutti/base/error.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/host.h"

namespace {

using Clock = std::chrono::steady_clock;
using tutti::rpc::Message;

constexpr size_t kLarge = size_t{64} << 20;
constexpr size_t kSmall = size_t{4} << 10;
constexpr int kRounds = 7;
constexpr int kTransfers = 5;      // per round
constexpr int kSmallCalls = 4000;  // per round and caller

double seconds(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// --- Servers, each in a process of its own, which prints its port to stdout and ends at the end of stdin.

void announce_and_wait(int port) {
  std::printf("%d\n", port);
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

// Copies a received message into one piece of memory, as a tensor needs it.
void copy(const grpc::ByteBuffer& message, std::vector<char>& to) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) tutti::fail(tutti::ErrorKind::DataLoss, "gRPC cannot read a message");
  size_t done = 0;
  for (const grpc::Slice& part : slices) {
    std::memcpy(to.data() + done, part.begin(), part.size());
    done += part.size();
  }
}

// The server with gRPC alone: answers every message with one of equal size from static memory. Either leaves
// what it has received where it is, or copies it, as every server does that uses it.
class RawService final : public grpc::CallbackGenericService {
 public:
  explicit RawService(bool copies) : copies_(copies) {}

 private:
  struct Reactor final : public grpc::ServerGenericBidiReactor {
    Reactor(const std::vector<char>& memory, bool copies) : out(make(memory)), received(copies ? kLarge : 0) {
      StartRead(&in);
    }
    static grpc::ByteBuffer make(const std::vector<char>& memory) {
      const grpc::Slice slice(memory.data(), memory.size(), grpc::Slice::STATIC_SLICE);
      return {&slice, 1};
    }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      if (!received.empty()) copy(in, received);
      StartWrite(&out);
    }
    void OnWriteDone(bool) override { StartRead(&in); }
    void OnDone() override { delete this; }
    grpc::ByteBuffer in;
    grpc::ByteBuffer out;
    std::vector<char> received;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor(memory_, copies_);
  }
  const bool copies_;
  const std::vector<char> memory_ = std::vector<char>(kLarge, 1);
};

void serve_raw(bool copies) {
  RawService service(copies);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const auto server = builder.BuildAndStart();
  announce_and_wait(port);
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

void serve_tutti() {
  Service service;
  const tutti::rpc::Host host({}, service);
  announce_and_wait(host.port());
}

class ServerProcess {
 public:
  explicit ServerProcess(const char* kind) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0)
      tutti::fail_errno(errno, "making a pipe");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      execl("/proc/self/exe", "bench_rpc", kind, nullptr);
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

// A client with gRPC alone: asynchronous calls of its generic stub.
class RawCaller {
 public:
  explicit RawCaller(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    call_ = stub_->PrepareCall(&context_, "/x/y", &queue_);
    call_->StartCall(this);
    next();
  }
  ~RawCaller() {
    grpc::Status status;
    context_.TryCancel();
    call_->Finish(&status, this);
    next();
    queue_.Shutdown();
  }
  RawCaller(const RawCaller&) = delete;
  RawCaller& operator=(const RawCaller&) = delete;

  void push_pull() {
    const grpc::Slice slice(from_.data(), from_.size(), grpc::Slice::STATIC_SLICE);
    grpc::ByteBuffer answer;
    call_->Write(grpc::ByteBuffer(&slice, 1), this);
    next();
    call_->Read(&answer, this);
    next();
    copy(answer, to_);
  }

 private:
  void next() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
  }

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericStub> stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  std::vector<char> from_ = std::vector<char>(kLarge, 2);
  std::vector<char> to_ = std::vector<char>(kLarge);
};

class Caller {
 public:
  Caller(const std::string& address, std::span<std::byte> from, std::span<std::byte> to,
         const std::shared_ptr<tutti::rpc::Arena>& arena = {})
      : from_(from), to_(to), channel_(address, {.arena = arena}) {
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

template <class AnyCaller>
double milliseconds_each(AnyCaller& caller) {
  return 1e3 / kTransfers * seconds([&] {
           for (int i = 0; i < kTransfers; ++i) caller.push_pull();
         });
}

void compare_large() {
  const ServerProcess raw_server("raw");
  const ServerProcess copying_server("raw-copying");
  const ServerProcess server("tutti");
  RawCaller raw(raw_server.address());
  RawCaller copying(copying_server.address());
  std::vector<std::byte> memory(2 * kLarge);
  Caller tcp(server.address(), std::span(memory).first(kLarge), std::span(memory).last(kLarge));
  const auto arena = std::make_shared<tutti::rpc::Arena>();
  Caller shared(server.address(), arena->allocate(kLarge), arena->allocate(kLarge), arena);
  std::array<std::vector<double>, 4> times;
  for (int round = -1; round < kRounds; ++round) {
    const std::array<double, 4> now = {milliseconds_each(raw), milliseconds_each(copying),
                                       milliseconds_each(tcp), milliseconds_each(shared)};
    // The first round opens the connections.
    for (size_t i = 0; i < now.size() && round >= 0; ++i) times[i].push_back(now[i]);
  }
  constexpr std::array kNames = {"gRPC's generic stream, whose server does not touch what it receives",
                                 "the same, copied into one piece of memory, as a tensor needs it",
                                 "`rpc::Channel`", "`rpc::Channel` with an arena"};
  const double of_raw = bench::median(times[1]);
  fmt::print("| push + pull of 64 MiB | ms | GB/s | of gRPC with the copy | to reach |\n");
  fmt::print("|---|---:|---:|---:|---:|\n");
  constexpr std::array kToReach = {"", "", "0.95", "3"};
  for (size_t i = 0; i < times.size(); ++i) {
    const double own = bench::median(times[i]);
    fmt::print("| {} | {:.1f} | {:.2f} | {:.2f} | {} |\n", kNames[i], own, 2 * kLarge / own / 1e6,
               of_raw / own, kToReach[i]);
  }
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
  if (kind.starts_with("raw")) {
    serve_raw(kind == "raw-copying");
  } else if (kind == "tutti") {
    serve_tutti();
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
