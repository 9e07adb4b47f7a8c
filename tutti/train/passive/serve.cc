#include "tutti/train/passive/serve.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/interrupted.h"
#include "tutti/cluster/threads.h"
#include "tutti/params/agreement.h"
#include "tutti/ps/wire.h"
#include "tutti/train/hooks/nan_guard.h"
#include "tutti/train/passive/lane_server.h"
#include "tutti/train/passive/lane_wire.h"
#include "tutti/train/passive/line.h"
#include "tutti/train/script.h"
#include "tutti/train/stop_signals.h"

namespace tutti {
namespace {

using passive::LaneServer;
using passive::Line;
using std::chrono::milliseconds;

constexpr milliseconds kBetweenLooks{100};

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
      .check_loss = head.at("nan_guard").get<bool>() ? hooks::nan_guard() : LossCheck()};
  // The master updates the parameters, so the optimiser here is not used.
  return std::make_unique<Replica>(model, torch::optim::SGDOptions(1), options);
}

Run begin(const Context& context, const std::optional<Trainable>& model, const rpc::Message& message) {
  const Json& head = message.head;
  // With another number of threads, kernels may add in another order.
  set_threads(static_cast<int>(std::clamp<int64_t>(ps::number_in(head, "threads"), 1, 4096)));
  Run run;
  run.replica = replica_of(context, frozen_as_in(head, model ? *model : model_of(context, message)), head);
  if (model) {
    require_same_plan(ps::lines_in(head, "plan"), run.replica->parameters().plan(),
                      context.task().short_name());
  }
  ps::Reader reader(message);
  passive::take_into(reader, passive::frozen(run.replica->parameters()));
  run.server = std::make_unique<LaneServer>(*run.replica, passive::Place(head));
  return run;
}

// Serves one master until it ends or a signal arrives. Returns true if the job is done.
bool follow(const Context& context, const std::optional<Trainable>& model, Line& line,
            const StopSignals& signals, const Line::Request& beginning) {
  Run run;
  line.answer_with([&]() -> rpc::Message {
    run = begin(context, model, *beginning.message);
    return {};
  });
  context.log().info("driven by {}", line.master());
  while (!signals.received()) {
    const auto request = line.next(kBetweenLooks);
    if (!request) continue;
    if (request->method == "end" || request->method == "stop") {
      line.answer({});
      return true;
    }
    line.answer_with([&] { return run.server->serve(request->method, *request->message, {}); });
  }
  return false;
}

}  // namespace

void follow_master(const Context& context, const std::optional<Trainable>& model) {
  const StopSignals signals(context.config());
  Line line(context, Line::Stop::ByAnybody);
  context.log().info("waiting for a master at {}",
                     context.cluster().address(context.task().job, context.task().index));
  while (!signals.received()) {
    const auto request = line.next_beginning(kBetweenLooks);
    if (!request) continue;
    if (request->method == "stop") {
      line.answer({});
      return;
    }
    try {
      if (follow(context, model, line, signals, *request)) {
        context.log().info("the job is done");
        return;
      }
    } catch (const std::exception& error) {
      // The master has received the error too, or has left.
      context.log().warning("{}; waiting for a master", error.what());
    }
  }
  const int signal = *signals.received();
  throw Interrupted(signal,
                    fmt::format("{} stopped by {}", context.task().short_name(), signal_name(signal)));
}

}  // namespace tutti
