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

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/waiting.h"
#include "tutti/cluster/chosen_kernels.h"
#include "tutti/cluster/roles.h"
#include "tutti/cluster/threads.h"
#include "tutti/ps/peers.h"
#include "tutti/train/coverage.h"
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

rpc::HostOptions host_options(const Context& context, const std::shared_ptr<rpc::RefusedCallers>& refused) {
  rpc::HostOptions options = ps::host_at_own_address(context, refused);
  options.silence = std::min(options.silence, milliseconds_of(context.config().network.timeout));
  return options;
}

}  // namespace

std::vector<torch::Tensor> everything(const Parameters& parameters) {
  std::vector<torch::Tensor> all;
  for (const Section& block : parameters.blocks()) all.push_back(block.values.detach());
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
    torch::Tensor(tensor).copy_(
        reader.take_tensor(tensor.numel(), tensor.scalar_type()).view(tensor.sizes()));
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

Worker::Assignment::Assignment(Replica& own, int rank, int workers, int64_t of, std::string of_master)
    : replica(own),
      lanes(of),
      range(lanes_of(rank, workers, of)),
      vectors(own.parameters(), of),
      sum(vectors, gradients_of(own.parameters()), range, of),
      control(lanes_of_all(workers, of), of, kNumbers),
      kernels(std::move(of_master)) {}

Worker::Worker(const Context& context, Stop stop)
    : context_(context),
      stop_(stop),
      host_(host_options(context, refused_), mailbox_),
      announcement_(context, host_.port()) {}

// Refuses the pending request, so that no caller is left waiting: the host ends when all are answered.
Worker::~Worker() {
  if (!mailbox_.owes_answer()) return;
  mailbox_.refuse(std::make_exception_ptr(
      Error(ErrorKind::PeerLost, fmt::format("{} has ended", context_.task().short_name()))));
}

std::optional<Mailbox::Request> Worker::next_request(milliseconds patience) {
  announcement_.check();
  return mailbox_.next(patience);
}

std::optional<Worker::Request> Worker::next(milliseconds patience) {
  const auto deadline = deadline_after(patience);
  do {
    const bool connected = mailbox_.is_there(master_);
    const auto taken = next_request(std::min(until(deadline), kBetweenLooks));
    if (!taken && !connected) fail(ErrorKind::PeerLost, "{} has left", master_name_);
    if (!taken) continue;
    const bool from_master = taken->caller->id == master_;
    if (from_master && *taken->method == kRefuse) {
      const std::string why = ps::text_in(taken->message->head, "why");
      answer();
      fail(ErrorKind::InvalidArgument, "{}", why);
    }
    if (from_master || is_stop(*taken)) return Request{*taken->method, taken->message};
    if (*taken->method == kBegin && !mailbox_.is_there(master_))
      fail(ErrorKind::PeerLost, "{} has left, and is starting again", master_name_);
    refuse(*taken);
  } while (std::chrono::steady_clock::now() < deadline);
  return std::nullopt;
}

std::optional<Worker::Request> Worker::next_beginning(milliseconds patience) {
  const auto deadline = deadline_after(patience);
  do {
    const auto taken = next_request(until(deadline));
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

Worker::Request Worker::await_beginning() {
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

std::string Worker::missing_master() const {
  if (!master_name_.empty())
    return fmt::format(
        "the master, {}, whose connection has ended: it was killed, is stopped, or has failed. Look at its "
        "output",
        master_name_);
  return fmt::format("the master, {}, which has not connected to {}{}",
                     name_with_address(context_.cluster(), workers_of(context_.cluster()).front()),
                     name_with_address(context_.cluster(), context_.task()), refused_->text());
}

bool Worker::is_stop(const Mailbox::Request& taken) const {
  return stop_ == Stop::ByAnybody && *taken.method == kStop;
}

void Worker::refuse(const Mailbox::Request& taken) {
  const std::string why =
      *taken.method == kStop
          ? fmt::format("{} runs its own program and is not a bare server: end its process instead",
                        context_.task().short_name())
      : master_ != 0 && mailbox_.is_there(master_)
          ? fmt::format("{} is already driven by {}, and can have only one master",
                        context_.task().short_name(), master_name_)
          : fmt::format("{} is a passive worker without a master: '{}' was called too early",
                        context_.task().short_name(), *taken.method);
  mailbox_.refuse(std::make_exception_ptr(Error(ErrorKind::InvalidArgument, why)));
}

void Worker::answer(const std::function<rpc::Message()>& body) {
  std::optional<rpc::Message> message;
  std::exception_ptr error;
  try {
    message = body();
  } catch (...) {
    error = std::current_exception();
  }
  if (message) return mailbox_.answer(std::move(*message));
  mailbox_.refuse(error);
  std::rethrow_exception(error);
}

rpc::Message Worker::begin(Replica& replica, const Kernels& kernels, const rpc::Message& beginning) {
  const Json& head = beginning.head;
  const auto rank = static_cast<int>(ps::number_within(head, "rank", 0, ps::kMostWorkers));
  const auto workers = static_cast<int>(ps::number_within(head, "workers", rank + 1, ps::kMostWorkers));
  assignment_.emplace(replica, rank, workers, ps::number_within(head, "lanes", 1, kMostLanes),
                      ps::text_in(head, "kernels"));
  ps::Reader reader(beginning);
  take_into(reader, frozen(replica.parameters()));
  return {{{"kernels", ps::to_json(Agreement{context_.task().short_name(), kernels.lines()})},
           {"on_cpu", kernels.on_cpu()}},
          {}};
}

rpc::Message Worker::serve(const Request& request, const Wishes& wishes) {
  const std::string& method = request.method;
  if (method == "step") {
    rpc::Message answer = step(*request.message, wishes);
    name_not_covered(context_.log(), assignment_->kernels, ps::number_in(request.message->head, "step"));
    return answer;
  }
  if (method == "predictions") return predictions();
  if (method == "finish") {
    ps::Reader reader(*request.message);
    take_into(reader, everything(assignment_->replica.parameters()));
    reader.end();
    return {};
  }
  // The master evaluates between two steps, in a hook, in which this worker takes no part.
  if (method == "note") return {};
  fail(ErrorKind::InvalidArgument, "'{}' is not supported during a step", method);
}

rpc::Message Worker::step(const rpc::Message& request, const Wishes& wishes) {
  Assignment& assignment = *assignment_;
  const int64_t step = ps::number_in(request.head, "step");
  const Json& lanes = request.head.at("lanes");
  if (static_cast<int64_t>(lanes.size()) != assignment.range.size())
    fail(ErrorKind::InvalidArgument, "the request is for {} lanes, but this worker has {}", lanes.size(),
         assignment.range.size());
  ps::Reader reader(request);
  take_into(reader, everything(assignment.replica.parameters()));
  const torch::Tensor losses =
      torch::full({assignment.range.size()}, std::numeric_limits<double>::quiet_NaN(), torch::kDouble);
  assignment.predictions.clear();
  const auto observe = [&](int64_t lane, const Batch&, const LossOutput& output) {
    losses[lane - assignment.range.begin] = output.loss.to(torch::kDouble).cpu();
    if (output.prediction.defined()) assignment.predictions.emplace_back(lane, output.prediction);
  };
  assignment.sum.begin_step();
  int64_t lane = assignment.range.begin;
  for (const Json& outline : lanes)
    assignment.replica.run_lane(step, lane++, outline.is_null() ? Batch() : take_batch(reader, outline),
                                assignment.sum, observe);
  reader.end();
  const std::vector<TreeSum::Subtree> subtrees = assignment.sum.finish();
  const torch::NoGradGuard no_grad;
  const torch::Tensor control_word = torch::zeros({assignment.control.size()}, torch::kDouble);
  const Gradients gradients =
      assignment.replica.options().nan_guard ? assignment.sum.gradients_in(subtrees) : Gradients::Finite;
  assignment.control.write(control_word, step, wishes, kNoRate, subtrees, gradients);
  rpc::Message answer{{{"predictions", !assignment.predictions.empty()}}, {}};
  append(answer, {losses, control_word});
  bool any = false;
  for (const TreeSum::Subtree& subtree : subtrees) {
    if (!subtree.values) continue;
    any = true;
    // The last vector holds the numbers, which are in the control word.
    append(answer, {subtree.values->begin(), subtree.values->end() - 1});
  }
  if (any) append(answer, assignment.vectors.counters());
  return answer;
}

rpc::Message Worker::predictions() {
  rpc::Message answer;
  Json lanes = Json::array();
  for (const auto& [lane, prediction] : assignment_->predictions)
    lanes.push_back({{"lane", lane}, {"batch", append(answer, Batch({{"prediction", prediction}}))}});
  answer.head["lanes"] = std::move(lanes);
  return answer;
}

}  // namespace tutti::passive

namespace tutti {
namespace {

using passive::Worker;

constexpr std::chrono::milliseconds kBetweenLooks{100};

// Freezes what is frozen in the master, whose groups of the optimiser are not known here.
Trainable frozen_as_in(const Json& head, const Trainable& model) {
  auto parameters = model.module->named_parameters();
  for (const std::string& name : ps::lines_in(head, "frozen")) {
    if (torch::Tensor* parameter = parameters.find(name)) parameter->set_requires_grad(false);
  }
  return model;
}

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

// With what a worker computes for a master.
struct Machinery {
  std::shared_ptr<kernels::SameKernels> same_kernels;  // if the master has asked for them
  std::unique_ptr<Replica> replica;
};

// Begins with a master.
Machinery begin(const Context& context, const std::optional<Trainable>& model, Worker& worker,
                const rpc::Message& message) {
  Machinery machinery;
  worker.answer([&] {
    const Json& head = message.head;
    // With another number of threads, kernels may add in another order.
    const auto threads = static_cast<int>(std::clamp<int64_t>(ps::number_in(head, "threads"), 1, 4096));
    set_threads(threads);
    machinery.same_kernels = chosen_kernels(ps::text_in(head, "kernels"), context.device(), context.log());
    const Kernels kernels = find_kernels(context.device(), threads, ps::text_in(head, "precision"));
    machinery.replica =
        replica_of(context, frozen_as_in(head, model ? *model : model_of(context, message)), head);
    if (model)
      require_same({"the master", ps::lines_in(head, "plan")},
                   {context.task().short_name(), machinery.replica->parameters().plan()});
    return worker.begin(*machinery.replica, kernels, message);
  });
  return machinery;
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
bool follow(const Context& context, const std::optional<Trainable>& model, Worker& worker,
            const StopSignals& signals, const rpc::Message& beginning) {
  const Machinery machinery = begin(context, model, worker, beginning);
  context.log().info("driven by {}", worker.master());
  while (!signals.received()) {
    const auto request = worker.next(kBetweenLooks);
    if (!request) continue;
    if (request->method == "end" || request->method == "stop") {
      worker.answer();
      return true;
    }
    worker.answer([&] { return worker.serve(*request, {}); });
  }
  return false;
}

}  // namespace

void follow_master(const Context& context, const std::optional<Trainable>& model) {
  require_no_master(context);
  const StopSignals signals(context.config());
  Worker worker(context, Worker::Stop::ByAnybody);
  context.log().info("serving at {}", context.cluster().address(context.task().job, context.task().index));
  Reminder reminder(context.log(), milliseconds_of(context.config().network.start_timeout));
  while (!signals.received()) {
    const auto request = worker.next_beginning(kBetweenLooks);
    if (!request) {
      reminder.still_missing({worker.missing_master()});
      continue;
    }
    static_cast<void>(reminder.nobody_is_missing());
    if (request->method == "stop") {
      worker.answer();
      return;
    }
    try {
      if (follow(context, model, worker, signals, *request->message)) {
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
