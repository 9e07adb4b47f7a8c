#include "tutti/ps/client.h"

#include <algorithm>
#include <limits>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/cluster/roles.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/ps/peer.h"
#include "tutti/ps/wire.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<torch::Tensor>;

constexpr milliseconds kBetweenReminders{10000};

// Not to be guessed, and not twice.
std::string new_run() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

void append(Tensors& to, const Tensors& more) { to.insert(to.end(), more.begin(), more.end()); }

}  // namespace

Allocate arena_allocator(std::shared_ptr<rpc::Arena> arena) {
  return [arena](int64_t elements, const torch::TensorOptions& options) {
    const auto type = options.dtype().toScalarType();
    const auto bytes =
        arena->allocate(std::max<size_t>(1, static_cast<size_t>(elements) * c10::elementSize(type)));
    return torch::from_blob(
        bytes.data(), {elements}, [arena](void*) {}, torch::TensorOptions().dtype(type));
  };
}

Client::Client(const Context& context, Parameters& parameters, const Placement& placement,
               std::shared_ptr<rpc::Arena> arena)
    : context_(context),
      parameters_(parameters),
      placement_(placement),
      in_step_(context.flags().strategy == "ps-sync") {
  const std::vector<Task> tasks = servers_of(context.cluster());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const std::string& address = context.cluster().address(tasks[i].job, tasks[i].index);
    const std::string name = fmt::format("{} ({})", tasks[i].short_name(), address);
    rpc::ChannelOptions options{.credentials = rpc::credentials_of(context.flags()),
                                .hello = hello_of(context),
                                .who = name,
                                .arena = arena};
    servers_.push_back({name, std::make_unique<rpc::Channel>(address, options),
                        placement.parts_of(static_cast<int>(i)), std::make_unique<comm::Executor>()});
  }
}

Client::~Client() = default;

// For every server at once; the first that fails is what is thrown, when all are done.
template <class Body>
void Client::for_all(Body body) {
  std::vector<comm::Work> others;
  for (size_t i = 1; i < servers_.size(); ++i)
    others.push_back(servers_[i].thread->run([&body, i] {
      const torch::NoGradGuard no_grad;
      body(i);
    }));
  std::exception_ptr failure;
  const auto attempt = [&](const auto& call) {
    try {
      call();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  attempt([&] { body(size_t{0}); });
  for (const comm::Work& work : others) attempt([&] { work.wait(); });
  if (failure) std::rethrow_exception(failure);
}

// The server gives up first, and says for whom it has waited.
rpc::CallOptions Client::patience(const char* what, int64_t step) const {
  constexpr milliseconds kOnItsWay{5000};
  return {.timeout = milliseconds_of(context_.flags().timeout) + kOnItsWay,
          .into = {},
          .what = what,
          .step = step};
}

Json Client::head() const {
  return {{"run", run_}, {"patience", milliseconds_of(context_.flags().timeout).count()}};
}

void Client::connect() {
  const auto deadline = Clock::now() + milliseconds_of(context_.flags().start_timeout);
  std::vector<std::string> missing(servers_.size());
  for (bool reminded = false;; reminded = true) {
    const auto patience =
        std::min(kBetweenReminders, std::chrono::ceil<milliseconds>(deadline - Clock::now()));
    for_all([&](size_t i) {
      missing[i].clear();
      try {
        servers_[i].channel->connect(std::max(patience, milliseconds(1)));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::Timeout && error.kind() != ErrorKind::PeerLost) throw;
        missing[i] = error.what();
      }
    });
    std::vector<std::string> lines;
    std::copy_if(missing.begin(), missing.end(), std::back_inserter(lines),
                 [](const std::string& line) { return !line.empty(); });
    if (lines.empty()) {
      if (reminded) context_.log().info("all servers are there");
      return;
    }
    if (Clock::now() >= deadline) {
      fail(ErrorKind::Timeout,
           "{} of {} parameter servers did not come within {:g} s (--start-timeout):\n  {}", lines.size(),
           servers_.size(), context_.flags().start_timeout, fmt::join(lines, "\n  "));
    }
    context_.log().info("still waiting for {}", fmt::join(lines, "; "));
  }
}

std::vector<Json> Client::states_of_all() {
  std::vector<Json> states(servers_.size());
  for_all([&](size_t i) { states[i] = servers_[i].channel->call("state", {}, patience("its state")).head; });
  return states;
}

std::optional<Client::Standing> Client::standing() {
  const std::vector<Json> states = states_of_all();
  furthest_step_ = 0;
  bool all = true;
  for (const Json& state : states) {
    if (state.value("begun", false)) furthest_step_ = std::max(furthest_step_, number_in(state, "step"));
    all = all && state.value("begun", false) && state.value("run", "") == states[0].value("run", "");
  }
  if (!all) return std::nullopt;
  Standing standing{.step = number_in(states[0], "step"),
                    .progress = states[0].at("progress"),
                    .staleness = {},
                    .dropped = number_in(states[0], "dropped")};
  for (const auto& [steps, updates] : states[0].at("staleness").items())
    standing.staleness[std::stoll(steps)] = updates.get<int64_t>();
  return standing;
}

Tensors Client::parts_of(size_t server, const Tensors& blocks) const {
  Tensors parts;
  for (const Placement::Part& part : servers_[server].parts)
    parts.push_back(blocks[part.block].narrow(0, part.begin, part.end - part.begin));
  return parts;
}

Tensors Client::gradients_of(int server) const {
  return parts_of(static_cast<size_t>(server), own_gradients());
}

Tensors Client::own_gradients() const {
  Tensors gradients;
  for (const Stretch& block : parameters_.blocks()) gradients.push_back(block.grads);
  return gradients;
}

Tensors Client::own_values() const {
  Tensors values;
  for (const Stretch& block : parameters_.blocks()) values.push_back(block.values);
  return values;
}

// Where what a server sends back goes.
Tensors Client::places(size_t server, const Tensors& values, const Extras& extras) const {
  Tensors places = parts_of(server, values);
  if (server > 0) return places;
  append(places, extras.buffers);
  append(places, extras.counters);
  return places;
}

void Client::begin(const RunOptions& options, const Standing& standing, const Optimizer::State& state,
                   const std::vector<std::string>& plan) {
  const std::string run = new_run();
  for_all([&](size_t i) {
    std::vector<Shard::Part> parts;
    Optimizer::State mine{.steps = state.steps, .slots = {}};
    for (const Placement::Part& part : servers_[i].parts) {
      parts.push_back(
          {part.block, part.begin, part.end, parameters_.blocks()[part.block].values.scalar_type()});
      for (Optimizer::Slot& slot : part_of(state, part.block, part.begin, part.end))
        mine.slots.push_back(std::move(slot));
    }
    const Extras extras = i == 0 ? extras_ : Extras{};
    rpc::Message message{{{"run", run},
                          {"plan", plan},
                          {"workers", context_.world()},
                          {"strategy", options.strategy},
                          {"lanes", options.lanes},
                          {"backup", options.backup},
                          {"staleness", options.staleness},
                          {"redo", options.clipped || servers_.size() > 1},
                          {"optimizer", tutti::to_json(options.optimizer)},
                          {"step", standing.step},
                          {"progress", standing.progress},
                          {"parts", to_json(parts)},
                          {"buffers", to_json(extras.buffers)},
                          {"counters", to_json(extras.counters)},
                          {"state", outline_of(mine)}},
                         pieces_of(places(i, own_values(), extras_))};
    for (rpc::Piece& piece : pieces_of(vectors_of(mine))) message.pieces.push_back(std::move(piece));
    servers_[i].channel->call("begin", message, patience("the parameters", standing.step));
  });
}

Client::Standing Client::join(const std::vector<std::string>& plan) {
  constexpr milliseconds kPause{100};
  const auto deadline = Clock::now() + milliseconds_of(context_.flags().start_timeout);
  for (;; std::this_thread::sleep_for(kPause)) {
    const std::vector<Json> answers =
        join_each(plan, std::chrono::ceil<milliseconds>(deadline - Clock::now()));
    run_ = text_in(answers[0], "run");
    const bool one_run = std::all_of(answers.begin(), answers.end(),
                                     [&](const Json& answer) { return text_in(answer, "run") == run_; });
    if (one_run) return {.step = number_in(answers[0], "step"), .progress = answers[0].at("progress")};
    if (Clock::now() >= deadline) {
      fail(ErrorKind::Timeout,
           "the parameter servers are not in one run: one has started anew, and the chief has not set the "
           "others "
           "back within {:g} s (--start-timeout)",
           context_.flags().start_timeout);
    }
  }
}

std::vector<Json> Client::join_each(const std::vector<std::string>& plan, milliseconds wait) {
  std::vector<Json> answers(servers_.size());
  const rpc::Message message{
      {{"rank", context_.rank()}, {"plan", plan}, {"patience", std::max(wait, milliseconds(1)).count()}}, {}};
  for_all([&](size_t i) {
    rpc::CallOptions options = patience("to join");
    options.timeout += wait;
    answers[i] = servers_[i].channel->call("join", message, options).head;
  });
  return answers;
}

// Of servers that make a step together some may have made it, and some not: then as it was before.
int64_t Client::pull() {
  rpc::Message request{head(), {}};
  if (in_step_) {
    const std::vector<Json> states = states_of_all();
    int64_t step = std::numeric_limits<int64_t>::max();
    for (const Json& state : states) step = std::min(step, number_in(state, "step"));
    request.head["step"] = step;
  }
  std::vector<Json> answers(servers_.size());
  for_all([&](size_t i) {
    rpc::CallOptions options = patience("the parameters");
    options.into = places_of(places(i, own_values(), extras_));
    answers[i] = servers_[i].channel->call("pull", request, options).head;
  });
  return number_in(answers[0], "step");
}

torch::Tensor Client::push_synchronous(const Push& push, int64_t workers) {
  std::vector<torch::Tensor> words(servers_.size());
  for_all([&](size_t i) {
    rpc::Message message{head(), {piece_of(push.word)}};
    message.head["step"] = push.step;
    message.head["expected"] = workers;
    message.head["scaled"] = push.scaled;
    if (push.learning_rate) message.head["rate"] = *push.learning_rate;
    for (rpc::Piece& piece : pieces_of(push.pieces[i])) message.pieces.push_back(std::move(piece));
    words[i] = torch::empty({push.word.numel() * context_.world()}, torch::kDouble);
    Tensors into = {words[i]};
    append(into, places(i, push.scaled ? own_gradients() : own_values(), extras_));
    rpc::CallOptions options = patience("gradients", push.step);
    options.into = places_of(into);
    servers_[i].channel->call("push", message, options);
  });
  return words[0];
}

void Client::scale(int64_t step, double factor) {
  for_all([&](size_t i) {
    rpc::Message message{head(), {}};
    message.head["step"] = step;
    message.head["factor"] = factor;
    rpc::CallOptions options = patience("the parameters", step);
    options.into = places_of(places(i, own_values(), extras_));
    servers_[i].channel->call("scale", message, options);
  });
}

std::optional<int64_t> Client::enter(int64_t step) {
  rpc::Message message{head(), {}};
  message.head["step"] = step;
  const Json answer = servers_[0].channel->call("enter", message, patience("a place in the step", step)).head;
  if (answer.at("late").get<bool>()) return std::nullopt;
  return number_in(answer, "expected");
}

Client::Applied Client::push_asynchronous(const Tensors& gradients, const Extras& changes,
                                          const Tensors& values, const Extras& extras, int64_t examples,
                                          int64_t end, std::optional<double> learning_rate) {
  const auto push_to = [&](size_t i) {
    rpc::Message message{head(), pieces_of(places(i, gradients, changes))};
    message.head["examples"] = i == 0 ? examples : 0;
    if (i == 0) message.head["end"] = end;
    if (learning_rate) message.head["rate"] = *learning_rate;
    rpc::CallOptions options = patience("gradients", step_);
    options.into = places_of(places(i, values, extras));
    return servers_[i].channel->call("push", message, options).head;
  };
  // The first server counts: what it refuses, nobody is asked to apply.
  const Json answer = push_to(0);
  const Applied applied{answer.at("made").get<bool>(), answer.value("made_step", int64_t{-1}),
                        number_in(answer, "step")};
  for_all([&](size_t i) {
    if (i == 0) return;
    if (applied.made) {
      push_to(i);
      return;
    }
    rpc::CallOptions options = patience("the parameters");
    options.into = places_of(places(i, values, extras));
    servers_[i].channel->call("pull", {head(), {}}, options);
  });
  step_ = applied.now;
  return applied;
}

Client::Snapshot Client::snapshot() {
  std::vector<rpc::Message> answers(servers_.size());
  for_all([&](size_t i) {
    answers[i] = servers_[i].channel->call("snapshot", {head(), {}}, patience("a snapshot"));
  });
  Snapshot snapshot{
      .step = number_in(answers[0].head, "step"), .progress = answers[0].head.at("progress"), .state = {}};
  for (size_t i = 0; i < servers_.size(); ++i) {
    Reader reader(answers[i]);
    reader.take_into(places(i, own_values(), extras_));
    const Optimizer::State state = state_of(answers[i].head.at("state"));
    reader.take_into(vectors_of(state));
    reader.end();
    snapshot.state.steps = std::max(snapshot.state.steps, state.steps);
    for (const Optimizer::Slot& slot : state.slots) put(snapshot.state, parameters_, slot);
  }
  return snapshot;
}

void Client::note(const std::string& key, const Json& value) {
  servers_[0].channel->call("note", {{{"key", key}, {"value", value}}, {}}, patience("a note"));
}

Json Client::read(const std::string& key) {
  constexpr int kTimeouts = 10;
  rpc::Message message{head(), {}};
  message.head["key"] = key;
  message.head["patience"] = number_in(message.head, "patience") * kTimeouts;
  rpc::CallOptions options = patience(key.c_str());
  options.timeout *= kTimeouts;
  return servers_[0].channel->call("read", message, options).head.at("value");
}

void Client::set_progress(const Json& progress) {
  for_all([&](size_t i) {
    rpc::Message message{head(), {}};
    message.head["progress"] = progress;
    servers_[i].channel->call("progress", message, patience("the progress"));
  });
}

void Client::finish(int64_t fits) {
  for_all([&](size_t i) {
    rpc::Message message{head(), {}};
    message.head["fits"] = fits;
    servers_[i].channel->call("finish", message, patience("to finish"));
  });
}

void Client::await_others(int64_t fits) {
  rpc::Message message{head(), {}};
  message.head["fits"] = fits;
  try {
    servers_[0].channel->call("await_finish", message, patience("the last updates"));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Timeout) throw;
    context_.log().warning("going on without them: {}", error.what());
  }
}

void Client::end() {
  for_all([&](size_t i) { servers_[i].channel->call("end", {}, patience("to end")); });
}

}  // namespace tutti::ps
