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

#include "tutti/base/deadline.h"
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

// Returns a random, unique name of a run.
std::string new_run() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

void append(Tensors& to, const Tensors& more) { to.insert(to.end(), more.begin(), more.end()); }

// Returns the parameters in row-major order on the CPU.
Tensors on_host(std::span<const Parameters::View> views) {
  Tensors all;
  for (const Parameters::View& view : views) all.push_back(view.tensor.detach().cpu().contiguous());
  return all;
}

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
      in_step_(context.config().training.strategy == "ps-sync"),
      peers_(context, servers_of(context.cluster()), "parameter servers", std::move(arena)) {
  for (size_t i = 0; i < peers_.size(); ++i) parts_.push_back(placement.parts_of(static_cast<int>(i)));
}

Client::~Client() = default;

Json Client::head() const { return {{"run", run_}, {"patience", peers_.timeout().count()}}; }

// Calls a server and writes the pieces of its answer into `into`.
Json Client::call(size_t server, const char* method, const rpc::Message& request, const Tensors& into,
                  rpc::CallOptions options) {
  const Places places(into);
  options.into = places.spans();
  Json head = peers_.call(server, method, request, options).head;
  places.take_over();
  return head;
}

std::vector<Json> Client::states_of_all() {
  std::vector<Json> states(peers_.size());
  peers_.for_all(
      [&](size_t i) { states[i] = peers_.call(i, "state", {}, peers_.patience("its state")).head; });
  return states;
}

std::optional<Client::Standing> Client::standing() {
  const std::vector<Json> states = states_of_all();
  furthest_step_ = 0;
  without_run_.clear();
  bool all = true;
  for (size_t i = 0; i < states.size(); ++i) {
    const bool begun = states[i].value("begun", false);
    if (begun)
      furthest_step_ = std::max(furthest_step_, number_in(states[i], "step"));
    else
      without_run_.push_back(static_cast<int>(i));
    all = all && begun && states[i].value("run", "") == states[0].value("run", "");
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

double Client::cpu_seconds() {
  double seconds = 0;
  for (const Json& state : states_of_all()) seconds += state.at("cpu_seconds").get<double>();
  return seconds;
}

Tensors Client::parts_of(size_t server, const Tensors& blocks) const {
  Tensors parts;
  for (const Placement::Part& part : parts_[server])
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

// Returns the tensors into which a server's answer is written.
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
  const Json ranges = tutti::to_json(ranges_of(parameters_, options.optimizer.groups));
  peers_.for_all([&](size_t i) {
    std::vector<Shard::Part> parts;
    Optimizer::State mine{.steps = state.steps, .slots = {}};
    for (const Placement::Part& part : parts_[i]) {
      parts.push_back(
          {part.block, part.begin, part.end, parameters_.blocks()[part.block].values.scalar_type()});
      for (Optimizer::Slot& slot : part_of(state, part.block, part.begin, part.end))
        mine.slots.push_back(std::move(slot));
    }
    const Extras extras = i == 0 ? extras_ : Extras{};
    const Tensors frozen = i == 0 ? on_host(parameters_.frozen()) : Tensors{};
    rpc::Message message{{{"run", run},
                          {"plan", plan},
                          {"workers", context_.world()},
                          {"strategy", options.strategy},
                          {"lanes", options.lanes},
                          {"backup", options.backup},
                          {"staleness", options.staleness},
                          {"redo", options.clipped || peers_.size() > 1},
                          {"optimizer", tutti::to_json(options.optimizer)},
                          {"ranges", ranges},
                          {"step", standing.step},
                          {"progress", standing.progress},
                          {"parts", to_json(parts)},
                          {"buffers", to_json(extras.buffers)},
                          {"counters", to_json(extras.counters)},
                          {"frozen", to_json(frozen)},
                          {"state", outline_of(mine)}},
                         pieces_of(places(i, own_values(), extras_))};
    for (rpc::Piece& piece : pieces_of(frozen)) message.pieces.push_back(std::move(piece));
    for (rpc::Piece& piece : pieces_of(vectors_of(mine))) message.pieces.push_back(std::move(piece));
    peers_.call(i, "begin", message, peers_.patience("the parameters", standing.step));
  });
}

Client::Standing Client::join(const std::vector<std::string>& plan) {
  constexpr milliseconds kPause{100};
  const auto deadline = deadline_after(peers_.start_timeout());
  for (;; std::this_thread::sleep_for(kPause)) {
    const std::vector<Json> answers =
        join_each(plan, std::chrono::ceil<milliseconds>(deadline - Clock::now()));
    run_ = text_in(answers[0], "run");
    const bool one_run = std::all_of(answers.begin(), answers.end(),
                                     [&](const Json& answer) { return text_in(answer, "run") == run_; });
    if (one_run) return {.step = number_in(answers[0], "step"), .progress = answers[0].at("progress")};
    if (Clock::now() >= deadline) {
      fail(ErrorKind::Timeout,
           "the parameter servers are not in the same run: one was restarted, and the chief has not restored "
           "the others within {:g} s (--start-timeout)",
           context_.config().network.start_timeout);
    }
  }
}

std::vector<Json> Client::join_each(const std::vector<std::string>& plan, milliseconds wait) {
  std::vector<Json> answers(peers_.size());
  const rpc::Message message{
      {{"rank", context_.rank()}, {"plan", plan}, {"patience", std::max(wait, milliseconds(1)).count()}}, {}};
  rpc::CallOptions options = peers_.patience("start of the run");
  options.timeout += wait;
  const auto join_one = [&](size_t i) { answers[i] = peers_.call(i, "join", message, options).head; };
  // If two tasks have the same index, the first server accepts one; the other does not reach the other
  // servers.
  try {
    join_one(0);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::InvalidArgument || error.kind() == ErrorKind::Overloaded)
      hear_from_others(join_one);
    throw;
  }
  peers_.for_all([&](size_t i) {
    if (i > 0) join_one(i);
  });
  return answers;
}

// If the first server refuses the run as a whole, and not only this task, joins the other servers too, so
// that they end the run as well and their waiting callers get the error.
void Client::hear_from_others(const std::function<void(size_t)>& join_one) {
  try {
    if (peers_.call(0, "state", {}, peers_.patience("its state")).head.at("begun").get<bool>()) return;
    peers_.for_all([&](size_t i) {
      if (i > 0) join_one(i);
    });
  } catch (const Error&) {
    // The caller rethrows the error of the first server.
  }
}

void Client::pull_frozen() {
  const torch::NoGradGuard no_grad;
  Tensors received;
  for (const Parameters::View& view : parameters_.frozen())
    received.push_back(torch::empty(view.tensor.sizes(), torch::TensorOptions().dtype(view.tensor.dtype())));
  if (received.empty()) return;
  call(0, "frozen", {head(), {}}, received, peers_.patience("the frozen parameters"));
  for (size_t i = 0; i < received.size(); ++i)
    torch::Tensor(parameters_.frozen()[i].tensor).detach().copy_(received[i]);
}

// ps-sync: some servers may have made a step that others have not; in that case pulls the values before it.
int64_t Client::pull(int64_t at_least) {
  if (!in_step_) return pull_at({});
  const auto deadline = deadline_after(peers_.timeout());
  for (int64_t step = std::max(common_step(), at_least);;) {
    try {
      return pull_at(step);
    } catch (const Error& error) {
      // With backup workers, steps go on without this one: after common_step(), a server may already have
      // dropped the values of that step.
      if (error.kind() != ErrorKind::PeerLost || !peers_.are_connected() || Clock::now() >= deadline) throw;
      const int64_t now = common_step();
      if (now <= step) throw;
      step = now;
    }
  }
}

// Returns the last step that all servers have reached, or -1 if one of them is not in this run.
int64_t Client::common_step() {
  int64_t step = std::numeric_limits<int64_t>::max();
  for (const Json& state : states_of_all())
    step = std::min(step, state.value("run", "") == run_ ? number_in(state, "step") : -1);
  return step;
}

int64_t Client::pull_at(std::optional<int64_t> step) {
  rpc::Message request{head(), {}};
  if (step) request.head["step"] = std::max<int64_t>(0, *step);
  std::vector<Json> answers(peers_.size());
  peers_.for_all([&](size_t i) {
    answers[i] =
        call(i, "pull", request, places(i, own_values(), extras_), peers_.patience("the parameters"));
  });
  return number_in(answers[0], "step");
}

torch::Tensor Client::push_synchronous(const Push& push, int64_t workers) {
  std::vector<torch::Tensor> words(peers_.size());
  peers_.for_all([&](size_t i) {
    rpc::Message message{head(), {piece_of(push.word)}};
    message.head["step"] = push.step;
    message.head["expected"] = workers;
    message.head["scaled"] = push.scaled;
    if (push.learning_rate) message.head["rate"] = *push.learning_rate;
    for (rpc::Piece& piece : pieces_of(push.pieces[i])) message.pieces.push_back(std::move(piece));
    words[i] = torch::empty({push.word.numel() * context_.world()}, torch::kDouble);
    Tensors into = {words[i]};
    append(into, places(i, push.scaled ? own_gradients() : own_values(), extras_));
    call(i, "push", message, into, peers_.patience("gradients", push.step));
  });
  return words[0];
}

void Client::scale(int64_t step, double factor) {
  peers_.for_all([&](size_t i) {
    rpc::Message message{head(), {}};
    message.head["step"] = step;
    message.head["factor"] = factor;
    call(i, "scale", message, places(i, own_values(), extras_), peers_.patience("the parameters", step));
  });
}

// Only the first server decides. A worker that has lost another server enters no more steps and waits until
// all join again; therefore checks every half second that all servers are still in the run.
std::optional<int64_t> Client::enter(int64_t step) {
  constexpr milliseconds kBetweenLooks{500};
  const auto deadline = deadline_after(peers_.timeout());
  rpc::Message message{head(), {}};
  message.head["step"] = step;
  for (;;) {
    message.head["patience"] = std::min(kBetweenLooks, peers_.timeout()).count();
    try {
      const Json answer = peers_.call(0, "enter", message, peers_.patience("start of the step", step)).head;
      if (answer.at("late").get<bool>()) return std::nullopt;
      return number_in(answer, "expected");
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Timeout || Clock::now() >= deadline) throw;
    }
    if (!peers_.are_connected() || common_step() < 0) {
      fail(ErrorKind::PeerLost,
           "this worker cannot take part in step {}: a parameter server has lost its part of the parameters, "
           "or all were restored from a checkpoint",
           step);
    }
  }
}

Client::Applied Client::push_asynchronous(const Update& update, const Tensors& values, const Extras& extras) {
  const auto push_to = [&](size_t i) {
    rpc::Message message{head(), pieces_of(places(i, update.gradients, update.results))};
    if (i == 0) {
      message.head["of"] = update.of;
      message.head["examples"] = update.examples;
      message.head["end"] = update.end;
    }
    if (update.learning_rate) message.head["rate"] = *update.learning_rate;
    return call(i, "push", message, places(i, values, extras), peers_.patience("gradients", step_));
  };
  // Server 0 is asked first: if it refuses the update, no other server is asked to apply it.
  std::vector<Json> answers(peers_.size());
  const Json& answer = answers[0] = push_to(0);
  Applied applied{answer.at("made").get<bool>(), answer.value("made_step", int64_t{-1}),
                  number_in(answer, "step")};
  peers_.for_all([&](size_t i) {
    if (i == 0) return;
    if (applied.made) {
      answers[i] = push_to(i);
      return;
    }
    answers[i] = call(i, "pull", {head(), {}}, places(i, values, extras), peers_.patience("the parameters"));
  });
  step_ = applied.now;
  // Waits only now that all servers have the update, so that a snapshot in the meantime is consistent.
  const auto is_ahead = [](const Json& each) { return each.value("too_far_ahead", false); };
  if (std::none_of(answers.begin(), answers.end(), is_ahead)) return applied;
  peers_.for_all([&](size_t i) {
    if (!is_ahead(answers[i])) return;
    peers_.call(i, "go_on", {head(), {}}, peers_.patience("the slowest worker", applied.step));
    answers[i] = call(i, "pull", {head(), {}}, places(i, values, extras), peers_.patience("the parameters"));
  });
  step_ = applied.now = number_in(answer, "step");
  return applied;
}

// Returns nullopt if a server was ahead of the others, because a worker was lost in the middle of a step; the
// worker that replaces it will complete the step.
std::optional<std::vector<rpc::Message>> Client::try_to_snapshot(Slots slots) {
  rpc::Message request{head(), {}};
  request.head["keep"] = slots == Slots::Keep;
  std::vector<rpc::Message> answers(peers_.size());
  const auto release = [&] { peers_.call(0, "release", {head(), {}}, peers_.patience("a snapshot")); };
  request.head.update(peers_.call(0, "hold", request, peers_.patience("a snapshot")).head);
  try {
    peers_.for_all(
        [&](size_t i) { answers[i] = peers_.call(i, "snapshot", request, peers_.patience("a snapshot")); });
  } catch (const Error&) {
    try {
      release();
    } catch (const Error&) {
      // The server is lost too, so it holds no updates back.
    }
    throw;
  }
  release();
  const bool is_ahead = std::any_of(answers.begin(), answers.end(), [](const rpc::Message& answer) {
    return answer.head.value("is_ahead", false);
  });
  return is_ahead ? std::nullopt : std::optional(std::move(answers));
}

Client::Snapshot Client::snapshot(Slots slots) {
  constexpr milliseconds kPause{100};
  const auto deadline = Clock::now() + peers_.timeout();
  std::optional<std::vector<rpc::Message>> found = try_to_snapshot(slots);
  for (; !found; found = try_to_snapshot(slots)) {
    if (Clock::now() >= deadline)
      fail(ErrorKind::Timeout,
           "cannot take a snapshot of the parameter servers: some have made a step that the others have not, "
           "because a worker was lost during this step and has not been replaced");
    std::this_thread::sleep_for(kPause);
  }
  const std::vector<rpc::Message>& answers = *found;
  Snapshot snapshot{
      .step = number_in(answers[0].head, "step"), .progress = answers[0].head.at("progress"), .state = {}};
  for (size_t i = 0; i < peers_.size(); ++i) {
    Reader reader(answers[i]);
    reader.take_into(places(i, own_values(), extras_));
    Optimizer::State state = state_of(answers[i].head.at("state"));
    snapshot.state.steps = std::max(snapshot.state.steps, state.steps);
    if (slots == Slots::Send) {
      reader.take_into(vectors_of(state));
      for (const Optimizer::Slot& slot : state.slots) put(snapshot.state, parameters_, slot);
    } else {
      snapshot.kept.push_back(std::move(state.slots));
    }
    reader.end();
  }
  return snapshot;
}

bool Client::all_share(const std::string& mark) {
  std::vector<int> share(peers_.size());
  peers_.for_all([&](size_t i) {
    const Json answer =
        peers_.call(i, "shares", {{{"mark", mark}}, {}}, peers_.patience("the folder of a checkpoint")).head;
    share[i] = answer.at("shares").get<bool>() ? 1 : 0;
  });
  return std::all_of(share.begin(), share.end(), [](int one) { return one == 1; });
}

void Client::write(int server, const std::string& mark, const std::string& file,
                   const std::vector<std::vector<store::NamedTensor>>& tensors) {
  rpc::Message request{head(), {}};
  request.head["mark"] = mark;
  request.head["name"] = file;
  request.head["tensors"] = Json::array();
  for (size_t slot = 0; slot < tensors.size(); ++slot) {
    for (const auto& [name, tensor] : tensors[slot])
      request.head["tensors"].push_back({{"slot", slot},
                                         {"name", name},
                                         {"begin", tensor.storage_offset()},
                                         {"shape", tensor.sizes().vec()},
                                         {"strides", tensor.strides().vec()}});
  }
  peers_.call(static_cast<size_t>(server), "write", request, peers_.patience("its part of a checkpoint"));
}

void Client::agree(const std::string& key, const std::vector<std::string>& lines) {
  peers_.for_all([&](size_t i) {
    rpc::Message message{head(), {}};
    message.head["key"] = key;
    message.head["plan"] = lines;
    peers_.call(i, "agree", message, peers_.patience("the plan"));
  });
}

void Client::note(const std::string& key, const Json& value) {
  peers_.call(0, "note", {{{"key", key}, {"value", value}}, {}}, peers_.patience("a note"));
}

Json Client::read(const std::string& key) { return read_with(head(), key); }

Json Client::read_from_any_run(const std::string& key) {
  Json any = head();
  any.erase("run");
  return read_with(std::move(any), key);
}

Json Client::read_with(Json head, const std::string& key) {
  constexpr int kTimeouts = 10;
  rpc::Message message{std::move(head), {}};
  message.head["key"] = key;
  message.head["patience"] = number_in(message.head, "patience") * kTimeouts;
  rpc::CallOptions options = peers_.patience(key.c_str());
  options.timeout *= kTimeouts;
  // Readers also wait while the chief writes a checkpoint, which may take long.
  options.give_up = {};
  return peers_.call(0, "read", message, options).head.at("value");
}

void Client::set_progress(const Json& progress) {
  peers_.for_all([&](size_t i) {
    rpc::Message message{head(), {}};
    message.head["progress"] = progress;
    peers_.call(i, "progress", message, peers_.patience("the progress"));
  });
}

void Client::finish(int64_t fits) {
  peers_.for_all([&](size_t i) {
    rpc::Message message{head(), {}};
    message.head["fits"] = fits;
    peers_.call(i, "finish", message, peers_.patience("end of the fit"));
  });
}

void Client::await_others(int64_t fits) {
  constexpr milliseconds kBetweenLooks{500};
  const auto begin = Clock::now();
  const auto deadline = begin + peers_.timeout();
  rpc::Message message{head(), {}};
  message.head["fits"] = fits;
  message.head["patience"] = std::min(kBetweenLooks, peers_.timeout()).count();
  rpc::CallOptions options = peers_.patience("the last updates");
  options.give_up = {};
  for (;;) {
    try {
      peers_.call(0, "await_finish", message, options);
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Timeout) throw;
      if (Clock::now() < deadline && !peers_.gives_up(begin)) continue;
      context_.log().warning("continuing without the other workers: {}", error.what());
      return;
    }
  }
}

void Client::end() {
  peers_.for_all([&](size_t i) { peers_.call(i, "end", {}, peers_.patience("end of the job")); });
}

void Client::leave() {
  peers_.for_all([&](size_t i) { peers_.call(i, "leave", {}, peers_.patience("end of this worker")); });
}

}  // namespace tutti::ps
