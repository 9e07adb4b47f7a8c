#include "tutti/train/passive/worker.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/interrupted.h"
#include "tutti/base/waiting.h"
#include "tutti/cluster/roles.h"
#include "tutti/cluster/threads.h"
#include "tutti/params/agreement.h"
#include "tutti/ps/peers.h"
#include "tutti/train/passive/master.h"
#include "tutti/train/script.h"
#include "tutti/train/stop_signals.h"

namespace tutti::passive {
namespace {

using std::chrono::milliseconds;

constexpr const char* kBegin = "begin";
constexpr const char* kStop = "stop";
constexpr const char* kRefuse = "refuse";
constexpr milliseconds kBetweenLooks{100};

rpc::HostOptions host_options(const Context& context) {
  rpc::HostOptions options = ps::host_at_own_address(context);
  options.silence = std::min(options.silence, milliseconds_of(context.config().network.timeout));
  return options;
}

}  // namespace

std::vector<torch::Tensor> everything(const Parameters& parameters) {
  std::vector<torch::Tensor> all;
  for (const Stretch& block : parameters.blocks()) all.push_back(block.values.detach());
  all.insert(all.end(), parameters.buffer_vectors().begin(), parameters.buffer_vectors().end());
  for (const auto& view : parameters.buffers()) {
    if (!view.tensor.is_floating_point()) all.push_back(view.tensor);
  }
  return all;
}

std::vector<torch::Tensor> frozen(const Parameters& parameters) {
  std::map<std::string, torch::Tensor> by_name;
  for (const auto& view : parameters.frozen()) by_name.emplace(view.name, view.tensor.detach());
  std::vector<torch::Tensor> all;
  for (const auto& [name, tensor] : by_name) all.push_back(tensor);
  return all;
}

void append(rpc::Message& message, const std::vector<torch::Tensor>& tensors) {
  for (const torch::Tensor& tensor : tensors)
    message.pieces.push_back(ps::piece_of(tensor.detach().cpu().contiguous()));
}

void take_into(ps::Reader& reader, const std::vector<torch::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& tensor : tensors)
    torch::Tensor(tensor).copy_(reader.take(tensor.numel(), tensor.scalar_type()).view(tensor.sizes()));
}

Json append(rpc::Message& message, const Batch& batch) {
  store::NamedTensors tensors;
  for (const auto& [name, tensor] : batch.tensors()) tensors.push_back({name, tensor});
  return ps::pack_named(tensors, message.pieces);
}

Batch take_batch(ps::Reader& reader, const Json& outline) {
  Batch::Tensors tensors;
  for (const auto& [name, tensor] : ps::unpack_named(outline, reader)) tensors.emplace_back(name, tensor);
  return Batch(std::move(tensors));
}

MasterConnection::MasterConnection(const Context& context, Stop stop)
    : context_(context),
      stop_(stop),
      host_(host_options(context), mailbox_),
      announcement_(context, host_.port()) {}

// Refuses the pending request, so that no caller is left waiting: the host ends when all are answered.
MasterConnection::~MasterConnection() {
  if (!taken_) return;
  mailbox_.refuse(std::make_exception_ptr(
      Error(ErrorKind::PeerLost, fmt::format("{} has ended", context_.task().short_name()))));
}

std::optional<rpc::Mailbox::Request> MasterConnection::take(milliseconds patience) {
  announcement_.check();
  if (std::exchange(kept_, false)) return taken_;
  TUTTI_CHECK(!taken_, "the last request has not been answered");
  taken_ = mailbox_.next(patience);
  return taken_;
}

void MasterConnection::keep() {
  TUTTI_CHECK(taken_, "there is no request to keep");
  kept_ = true;
}

std::optional<MasterConnection::Request> MasterConnection::next(milliseconds patience) {
  const auto deadline = deadline_after(patience);
  do {
    const bool connected = mailbox_.is_there(master_);
    const auto taken = take(std::min(until(deadline), kBetweenLooks));
    if (!taken && !connected) fail(ErrorKind::PeerLost, "{} has left", master_name_);
    if (!taken) continue;
    const bool from_master = taken->caller->id == master_;
    if (from_master && *taken->method == kRefuse) {
      const std::string why = ps::text_in(taken->message->head, "why");
      answer({});
      fail(ErrorKind::InvalidArgument, "{}", why);
    }
    if (from_master || is_stop(*taken)) return Request{*taken->method, taken->message};
    if (*taken->method == kBegin && !mailbox_.is_there(master_)) {
      keep();
      fail(ErrorKind::PeerLost, "{} has left, and is starting again", master_name_);
    }
    refuse(*taken);
  } while (std::chrono::steady_clock::now() < deadline);
  return std::nullopt;
}

MasterConnection::Request MasterConnection::next() {
  for (;;) {
    if (auto request = next(milliseconds(60000))) return *request;
  }
}

std::optional<MasterConnection::Request> MasterConnection::next_beginning(milliseconds patience) {
  const auto deadline = deadline_after(patience);
  do {
    const auto taken = take(until(deadline));
    if (!taken) continue;
    if (*taken->method == kBegin) {
      master_ = taken->caller->id;
      master_name_ = ps::name_of(*taken->caller);
    }
    if (*taken->method == kBegin || is_stop(*taken)) return Request{*taken->method, taken->message};
    refuse(*taken);
  } while (std::chrono::steady_clock::now() < deadline);
  return std::nullopt;
}

MasterConnection::Request MasterConnection::await_beginning() {
  const RunConfig::Network& network = context_.config().network;
  Waiting waiting = master_name_.empty()
                        ? Waiting(context_.log(), milliseconds_of(network.start_timeout), "--start-timeout")
                        : Waiting(context_.log(), milliseconds_of(network.timeout), "--timeout");
  for (;;) {
    if (const auto request = next_beginning(std::min(waiting.patience(), kBetweenLooks))) {
      waiting.end(fmt::format("{} is there", master_name_));
      return *request;
    }
    waiting.go_on({missing_master()});
  }
}

std::string MasterConnection::missing_master() const {
  if (!master_name_.empty())
    return fmt::format(
        "the master, {}, whose connection has ended: it was killed, is stopped, or has failed. Look at its "
        "output",
        master_name_);
  return fmt::format("the master, {}, which has not connected to {}",
                     name_with_address(context_.cluster(), workers_of(context_.cluster()).front()),
                     name_with_address(context_.cluster(), context_.task()));
}

bool MasterConnection::is_stop(const rpc::Mailbox::Request& taken) const {
  return stop_ == Stop::ByAnybody && *taken.method == kStop;
}

void MasterConnection::refuse(const rpc::Mailbox::Request& taken) {
  const std::string why =
      *taken.method == kStop
          ? fmt::format("{} runs its own program and is not a bare server: end its process instead",
                        context_.task().short_name())
      : master_ != 0 && mailbox_.is_there(master_)
          ? fmt::format("{} is already driven by {}, and can have only one master",
                        context_.task().short_name(), master_name_)
          : fmt::format("{} is a passive worker without a master: '{}' was called too early",
                        context_.task().short_name(), *taken.method);
  taken_.reset();
  mailbox_.refuse(std::make_exception_ptr(Error(ErrorKind::InvalidArgument, why)));
}

void MasterConnection::answer(rpc::Message message) {
  TUTTI_CHECK(taken_, "there is no request to answer");
  taken_.reset();
  mailbox_.answer(std::move(message));
}

void MasterConnection::answer_with(const std::function<rpc::Message()>& body) {
  TUTTI_CHECK(taken_, "there is no request to answer");
  try {
    answer(body());
  } catch (...) {
    taken_.reset();
    mailbox_.refuse(std::current_exception());
    throw;
  }
}

rpc::Message description(const Task& task, const Kernels& kernels) {
  return {
      {{"kernels", ps::to_json(Agreement{task.short_name(), kernels.lines()})}, {"on_cpu", kernels.on_cpu()}},
      {}};
}

Assignment::Assignment(const Json& head)
    : rank(static_cast<int>(ps::number_within(head, "rank", 0, ps::kMostWorkers))),
      workers(static_cast<int>(ps::number_within(head, "workers", rank + 1, ps::kMostWorkers))),
      lanes(ps::number_within(head, "lanes", 1, kMostLanes)) {}

LaneServer::LaneServer(Replica& replica, const Assignment& assignment)
    : replica_(replica),
      vectors_(replica.parameters(), assignment.lanes),
      lanes_(lanes_of(assignment.rank, assignment.workers, assignment.lanes)),
      sum_(vectors_, gradients_of(replica.parameters()), lanes_, assignment.lanes),
      word_(blocks_of(assignment.workers, assignment.lanes), assignment.lanes, kNumbers) {}

rpc::Message LaneServer::serve(const std::string& method, const rpc::Message& request, const Wishes& wishes) {
  if (method == "step") return step(request, wishes);
  if (method == "predictions") return predictions();
  if (method == "finish") {
    ps::Reader reader(request);
    take_into(reader, everything(replica_.parameters()));
    reader.end();
    return {};
  }
  // The master evaluates between two steps, in a hook, in which this worker takes no part.
  if (method == "note") return {};
  fail(ErrorKind::InvalidArgument, "'{}' is not supported during a step", method);
}

rpc::Message LaneServer::step(const rpc::Message& request, const Wishes& wishes) {
  const int64_t step = ps::number_in(request.head, "step");
  const Json& lanes = request.head.at("lanes");
  if (static_cast<int64_t>(lanes.size()) != lanes_.size())
    fail(ErrorKind::InvalidArgument, "the request is for {} lanes, but this worker has {}", lanes.size(),
         lanes_.size());
  ps::Reader reader(request);
  take_into(reader, everything(replica_.parameters()));
  const torch::Tensor losses =
      torch::full({lanes_.size()}, std::numeric_limits<double>::quiet_NaN(), torch::kDouble);
  predictions_.clear();
  const auto observe = [&](int64_t lane, const Batch&, const LossOutput& output) {
    losses[lane - lanes_.begin] = output.loss.to(torch::kDouble).cpu();
    if (output.prediction.defined()) predictions_.emplace_back(lane, output.prediction);
  };
  sum_.begin_step();
  int64_t lane = lanes_.begin;
  for (const Json& outline : lanes)
    replica_.run_lane(step, lane++, outline.is_null() ? Batch() : take_batch(reader, outline), sum_, observe);
  reader.end();
  const std::vector<TreeSum::Subtree> subtrees = sum_.finish();
  const torch::NoGradGuard no_grad;
  const torch::Tensor word = torch::zeros({word_.size()}, torch::kDouble);
  const Gradients gradients = replica_.options().nan_guard ? sum_.gradients_in(subtrees) : Gradients::Finite;
  word_.write(word, step, wishes, kNoRate, subtrees, gradients);
  rpc::Message answer{{{"predictions", !predictions_.empty()}}, {}};
  append(answer, {losses, word});
  bool any = false;
  for (const TreeSum::Subtree& subtree : subtrees) {
    if (!subtree.values) continue;
    any = true;
    // The last vector holds the numbers, which are in the word.
    append(answer, {subtree.values->begin(), subtree.values->end() - 1});
  }
  if (any) append(answer, vectors_.counters());
  return answer;
}

rpc::Message LaneServer::predictions() {
  rpc::Message answer;
  Json lanes = Json::array();
  for (const auto& [lane, prediction] : predictions_)
    lanes.push_back({{"lane", lane}, {"batch", append(answer, Batch({{"prediction", prediction}}))}});
  answer.head["lanes"] = std::move(lanes);
  return answer;
}

}  // namespace tutti::passive

namespace tutti {
namespace {

using passive::LaneServer;
using passive::MasterConnection;

constexpr std::chrono::milliseconds kBetweenLooks{100};

// Freezes what is frozen in the master, whose groups of the optimiser are not known here.
Trainable frozen_as_in(const Json& head, const Trainable& model) {
  auto parameters = model.module->named_parameters();
  for (const std::string& name : ps::lines_in(head, "frozen")) {
    if (torch::Tensor* parameter = parameters.find(name)) parameter->set_requires_grad(false);
  }
  return model;
}

// The state of this worker for one master.
struct Run {
  std::unique_ptr<Replica> replica;
  std::unique_ptr<LaneServer> server;
  Kernels kernels;
};

// Returns the model in the message. The script is the last of the pieces.
Trainable model_of(const Context& context, const rpc::Message& message) {
  const Json& head = message.head;
  const std::string name = context.task().short_name();
  if (!head.contains("script") || message.pieces.empty()) {
    fail(ErrorKind::InvalidArgument,
         "{} is a bare server and does not have the model: give the trainer a script_model(), or start the "
         "master's own program there",
         name);
  }
  if (!context.config().security.allow_programs) {
    fail(ErrorKind::InvalidArgument,
         "{} does not run programs that other tasks send. Start it with --allow-programs if everyone who can "
         "connect to it may run programs there",
         name);
  }
  const rpc::Piece& piece = message.pieces.back();
  const std::string content(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
  if (ps::text_in(head, "script") == "module") return script_model(Script::from_bytes(content));
  return script_model(module_of(head.at("outline")), Script::from_text(content));
}

std::unique_ptr<Replica> replica_of(const Context& context, const Trainable& model, const Json& head) {
  const ReplicaOptions options{
      .precision = parse_precision(ps::text_in(head, "precision")),
      .layout = head.at("channels_last").get<bool>() ? Layout::ChannelsLast : Layout::Contiguous,
      .seed = ps::number_in(head, "seed"),
      .device = context.device(),
      .nan_guard = head.at("nan_guard").get<bool>()};
  // The master updates the parameters, so the optimiser here is not used.
  return std::make_unique<Replica>(model, torch::optim::SGDOptions(1), options);
}

Run begin(const Context& context, const std::optional<Trainable>& model, const rpc::Message& message) {
  const Json& head = message.head;
  // With another number of threads, kernels may add in another order.
  const auto threads = static_cast<int>(std::clamp<int64_t>(ps::number_in(head, "threads"), 1, 4096));
  set_threads(threads);
  Run run;
  run.kernels = find_kernels(context.device(), threads, ps::text_in(head, "precision"));
  run.replica = replica_of(context, frozen_as_in(head, model ? *model : model_of(context, message)), head);
  if (model)
    require_same({"the master", ps::lines_in(head, "plan")},
                 {context.task().short_name(), run.replica->parameters().plan()});
  ps::Reader reader(message);
  passive::take_into(reader, passive::frozen(run.replica->parameters()));
  run.server = std::make_unique<LaneServer>(*run.replica, passive::Assignment(head));
  return run;
}

// The first task of a cluster is the program that trains, and is called by nobody.
void require_no_master(const Context& context) {
  const std::vector<Task> tasks = workers_of(context.cluster());
  if (tasks.empty() || tasks.front() != context.task()) return;
  std::vector<std::string> others;
  for (const Task& task : passive::tasks_of(context.cluster())) others.push_back(task.short_name());
  fail(
      ErrorKind::InvalidArgument,
      "{} is the first task of the cluster and so the master of --strategy in-graph, the client that trains: "
      "start your program with these flags instead. Only the tasks that compute for it are servers: {}",
      context.task().short_name(),
      others.empty() ? "there are none here" : fmt::format("{}", fmt::join(others, ", ")));
}

// Serves one master until it ends or a signal arrives. Returns true if the job is done.
bool follow(const Context& context, const std::optional<Trainable>& model, MasterConnection& connection,
            const StopSignals& signals, const MasterConnection::Request& beginning) {
  Run run;
  connection.answer_with([&]() -> rpc::Message {
    run = begin(context, model, *beginning.message);
    return passive::description(context.task(), run.kernels);
  });
  context.log().info("driven by {}", connection.master());
  while (!signals.received()) {
    const auto request = connection.next(kBetweenLooks);
    if (!request) continue;
    if (request->method == "end" || request->method == "stop") {
      connection.answer({});
      return true;
    }
    connection.answer_with([&] { return run.server->serve(request->method, *request->message, {}); });
  }
  return false;
}

}  // namespace

void follow_master(const Context& context, const std::optional<Trainable>& model) {
  require_no_master(context);
  const StopSignals signals(context.config());
  MasterConnection connection(context, MasterConnection::Stop::ByAnybody);
  context.log().info("serving at {}", context.cluster().address(context.task().job, context.task().index));
  Reminder reminder(context.log(), milliseconds_of(context.config().network.start_timeout));
  while (!signals.received()) {
    const auto request = connection.next_beginning(kBetweenLooks);
    if (!request) {
      reminder.still_missing({connection.missing_master()});
      continue;
    }
    static_cast<void>(reminder.nobody_is_missing());
    if (request->method == "stop") {
      connection.answer({});
      return;
    }
    try {
      if (follow(context, model, connection, signals, *request)) {
        context.log().info("the job is done");
        return;
      }
    } catch (const std::exception& error) {
      // The master has received the error too, or has left.
      context.log().warning("{}; waiting for a master. `tutti stop` ends this server", error.what());
    }
  }
  const int signal = *signals.received();
  throw Interrupted(signal,
                    fmt::format("{} stopped by {}", context.task().short_name(), signal_name(signal)));
}

}  // namespace tutti
