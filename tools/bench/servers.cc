#include "tools/bench/servers.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tools/bench/figures.h"
#include "tutti/base/error.h"
#include "tutti/base/version.h"
#include "tutti/cluster/roles.h"
#include "tutti/params/parameters.h"
#include "tutti/ps/client.h"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kElementBytes = 4;
constexpr int64_t kWarmUp = 3;
constexpr size_t kFewest = 5;
constexpr size_t kMost = 1'000'000;
constexpr size_t kMostOfAll = size_t{1} << 24;  // calls of all workers: float32 is exact up to here

// A module with one parameter of zeros.
struct Vector : torch::nn::Module {
  explicit Vector(int64_t elements) { register_parameter("vector", torch::zeros({elements})); }
};

int servers_in(const Context& context) { return static_cast<int>(servers_of(context.cluster()).size()); }

ps::PlacementRule split_evenly(const Context& context, int64_t elements) {
  const int64_t servers = servers_in(context);
  return {ps::PlacementRule::Kind::Split, (elements + servers - 1) / servers * kElementBytes};
}

// With this rate, plain SGD with gradients of -1 counts its steps.
const torch::optim::SGDOptions kOptimizer(1.0);

// The bandwidth of one worker, counting both directions.
double bytes_per_second(const ServerRow& row) {
  return row.median > 0 ? 2 * static_cast<double>(row.bytes) / row.median : 0;
}

}  // namespace

std::string_view name_of(Carrier carrier) { return carrier == Carrier::Memory ? "memory" : "network"; }

std::vector<Carrier> parse_carriers(std::string_view text) {
  if (text == "all") return {Carrier::Memory, Carrier::Network};
  for (const Carrier carrier : {Carrier::Memory, Carrier::Network}) {
    if (name_of(carrier) == text) return {carrier};
  }
  fail(ErrorKind::InvalidArgument, "--over: '{}' is not one of all, memory, network", text);
}

// The parameters of this worker and its connection to the servers.
struct Servers::Worker {
  Worker(const Context& context, int64_t elements, const std::shared_ptr<rpc::Arena>& arena)
      : net(elements),
        parameters(net, {.allocate = arena ? ps::arena_allocator(arena) : Allocate()}),
        client(context, Group::unconnected(context), parameters,
               ps::Placement(parameters, servers_in(context), split_evenly(context, elements)), arena) {}

  void push_pull() {
    static_cast<void>(
        client.push_asynchronous({.gradients = gradients, .results = {}, .examples = 1}, values, {}));
  }
  void verify();

  Vector net;
  Parameters parameters;
  ps::Client client;
  const std::vector<torch::Tensor> gradients = {parameters.blocks().front().grads};
  const std::vector<torch::Tensor> values = {parameters.blocks().front().values};
};

// Every push, from any worker, updates all values.
void Servers::Worker::verify() {
  const int64_t pushes = client.pull();
  // Does not compare the whole block, which may end in a gap.
  const torch::Tensor vector = parameters.trained().front().tensor;
  const auto wrong = vector.ne(static_cast<float>(pushes)).sum().item<int64_t>();
  if (wrong == 0) return;
  fail(ErrorKind::DataLoss,
       "{} of {} values are wrong after {} pushes; do not train with these servers, and report this "
       "together with the output of `tutti doctor`",
       wrong, vector.numel(), pushes);
}

Servers::Servers(const Context& context, double seconds) : context_(context), seconds_(seconds) {}

Servers::~Servers() = default;

void Servers::begin(const std::string& key) {
  ps::Client& client = worker_->client;
  client.connect();
  const std::vector<std::string> plan = worker_->parameters.plan();
  if (context_.is_chief()) {
    client.begin({.optimizer = kOptimizer}, {}, {}, plan);
    client.note(key, true);
  } else {
    static_cast<void>(client.read(key));
  }
  static_cast<void>(client.join(plan));
}

// Waits until every worker has reached this point.
void Servers::await_all() {
  worker_->client.finish(++meetings_);
  worker_->client.await_others(meetings_);
}

// Returns the time of every call.
std::vector<double> Servers::time() {
  std::vector<double> seconds;
  const size_t most = std::min(kMost, kMostOfAll / static_cast<size_t>(context_.world()) - kWarmUp);
  const auto start = Clock::now();
  for (auto begin = start; seconds.size() < most;) {
    worker_->push_pull();
    const auto end = Clock::now();
    seconds.push_back(std::chrono::duration<double>(end - begin).count());
    if (seconds.size() >= kFewest && std::chrono::duration<double>(end - start).count() >= seconds_) break;
    begin = end;
  }
  return seconds;
}

// The chief collects the results of all workers, and then knows that they will not call the servers again.
ServerRow Servers::gather(const std::string& key, const std::vector<double>& seconds) {
  const auto key_of = [&](int rank) { return fmt::format("{}, rank {}", key, rank); };
  const Json own = {{"calls", seconds.size()},
                    {"seconds", std::accumulate(seconds.begin(), seconds.end(), 0.0)},
                    {"median", quantile(seconds, 0.5)},
                    {"p99", quantile(seconds, 0.99)}};
  ServerRow row;
  if (!context_.is_chief()) {
    worker_->client.note(key_of(context_.rank()), own);
    return row;
  }
  for (int rank = 0; rank < context_.world(); ++rank) {
    const Json figures = rank == context_.rank() ? own : worker_->client.read(key_of(rank));
    row.calls += figures.at("calls").get<int64_t>();
    row.median = std::max(row.median, figures.at("median").get<double>());
    row.p99 = std::max(row.p99, figures.at("p99").get<double>());
    row.calls_per_second += figures.at("calls").get<double>() / figures.at("seconds").get<double>();
  }
  return row;
}

ServerRow Servers::measure(int64_t bytes, Carrier carrier) {
  const int64_t elements =
      std::max<int64_t>((bytes + kElementBytes - 1) / kElementBytes, servers_in(context_));
  const std::string key = fmt::format("row {}", rows_++);
  worker_.reset();
  worker_ = std::make_unique<Worker>(context_, elements,
                                     carrier == Carrier::Memory ? std::make_shared<rpc::Arena>() : nullptr);
  begin(key);
  worker_->gradients[0].fill_(-1);
  for (int64_t i = 0; i < kWarmUp; ++i) worker_->push_pull();
  await_all();
  const double before = context_.is_chief() ? worker_->client.cpu_seconds() : 0;
  const std::vector<double> seconds = time();
  await_all();
  const double used = context_.is_chief() ? worker_->client.cpu_seconds() - before : 0;
  worker_->verify();
  ServerRow row = gather(key, seconds);
  row.carrier = carrier;
  row.bytes = elements * kElementBytes;
  if (row.calls > 0) row.server_seconds = used / static_cast<double>(row.calls);
  return row;
}

void Servers::end() {
  if (!worker_) return;
  if (context_.is_chief()) worker_->client.end();
  worker_->client.leave();
}

std::string server_heading() {
  return fmt::format("{:<8} {:>10} {:>9} {:>12} {:>12} {:>9} {:>10} {:>12}", "over", "size", "calls",
                     "median us", "99 % us", "GB/s", "calls/s", "server us");
}

std::string line_of(const ServerRow& row) {
  return fmt::format("{:<8} {:>10} {:>9} {:>12.1f} {:>12.1f} {:>9.3f} {:>10.0f} {:>12.1f}",
                     name_of(row.carrier), size_text(row.bytes), row.calls, row.median * 1e6, row.p99 * 1e6,
                     bytes_per_second(row) / 1e9, row.calls_per_second, row.server_seconds * 1e6);
}

std::string server_legend() {
  return "A call pushes a gradient of the size, split among the servers, which update the values, and pulls "
         "the values back.\n"
         "over: shared memory, if worker and server are on one machine, or the network.\n"
         "us: microseconds per call of the slowest worker, while all workers call at once: the median and "
         "the 99th percentile\n"
         "    of its calls.\n"
         "GB/s: of that worker, in both directions: 2 * size / median, in 10^9 bytes per second.\n"
         "calls/s: of all workers together.\n"
         "server us: CPU time of the servers per call, in microseconds. One server core can handle at most "
         "10^6 / this\n"
         "    calls per second.";
}

Json to_json(const std::vector<ServerRow>& rows, int servers, int workers) {
  Json list = Json::array();
  for (const ServerRow& row : rows) {
    list.push_back({{"over", name_of(row.carrier)},
                    {"bytes", row.bytes},
                    {"calls", row.calls},
                    {"median_us", round_to(row.median * 1e6, 1e3)},
                    {"p99_us", round_to(row.p99 * 1e6, 1e3)},
                    {"gb_per_s", round_to(bytes_per_second(row) / 1e9, 1e6)},
                    {"calls_per_s", round_to(row.calls_per_second, 1e3)},
                    {"server_us", round_to(row.server_seconds * 1e6, 1e3)}});
  }
  return {{"tutti_version", version()},
          {"servers", servers},
          {"workers", workers},
          {"type", "float32"},
          {"rows", std::move(list)}};
}

}  // namespace tutti::bench
