#include "tutti/ps/client.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/cluster/roles.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/params/plan.h"
#include "tutti/ps/peers.h"
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

// Returns the servers, and then for each the one that holds its copy.
std::vector<Task> called_tasks(const Context& context, int64_t replicas) {
  const std::vector<Task> servers = servers_of(context.cluster());
  std::vector<Task> tasks = servers;
  for (size_t i = 1; replicas > 0 && i <= servers.size(); ++i) tasks.push_back(servers[i % servers.size()]);
  return tasks;
}

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

Client::Client(const Context& context, Group group, Parameters& parameters, const Placement& placement,
               std::shared_ptr<rpc::Arena> arena, const ClientOptions& options)
    : context_(context),
      group_(std::move(group)),
      parameters_(parameters),
      placement_(placement),
      in_step_(context.config().training.strategy == "ps-sync"),
      same_bits_(in_step_ && context.config().servers.backup == 0),
      peers_(context, called_tasks(context, options.replicas), "parameter servers", std::move(arena), group_,
             options.replicas > 0 ? static_cast<size_t>(servers()) : 0) {
  for (size_t i = 0; i < peers_.size(); ++i)
    block_ranges_.push_back(placement.block_ranges_of(static_cast<int>(part_of(i))));
}

Client::~Client() = default;

void Client::enter_epoch(const Group& group) {
  group_ = group;
  epoch_ = static_cast<int64_t>(group.epoch);
}

std::string Client::common_run() {
  std::string run;
  std::vector<bool> is_there(static_cast<size_t>(servers()));
  const std::vector<Json> states = note_states();
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string of_peer = states[i].value("run", "");
    if (of_peer.empty()) continue;
    if (!run.empty() && of_peer != run) return "";
    run = of_peer;
    is_there[part_of(i)] = true;
  }
  return std::find(is_there.begin(), is_there.end(), false) == is_there.end() ? run : "";
}

void Client::abandon(const std::string& why) noexcept {
  constexpr milliseconds kMost{2000};
  try {
    peers_.for_all([&](size_t i) {
      if (!peers_.is_connected(i)) return;
      rpc::CallOptions options = peers_.patience("the end of an epoch");
      options.timeout = std::min(options.timeout, kMost);
      peers_.call(i, "abandon", request({{"why", why}}), options);
    });
  } catch (const std::exception&) {
    // The server will find out by itself, or is lost too.
  }
}

// Nothing is handed over before all that have the run have entered the epoch, so that no step is made
// meanwhile.
void Client::regroup(const std::string& run) {
  run_ = run;
  const std::vector<Json> states = states_of_all();
  const auto has_run = [&](size_t i) { return states[i].value("run", "") == run; };
  peers_.for_all([&](size_t i) {
    if (!has_run(i)) return;
    peers_.call(i, "regroup", request({{"workers", group_.world}}), peers_.patience("the next epoch"));
  });
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!has_run(i)) hand_over((i + static_cast<size_t>(servers())) % peers_.size(), i);
  }
}

void Client::hand_over(size_t from, size_t to) {
  const char* const what = "the part of a lost server";
  peers_.call(to, "begin", peers_.call(from, "hand_over", request(), peers_.patience(what)),
              peers_.patience(what));
  if (!is_copy(to))
    context_.log().info("{} has its part of the parameters again, from its copy on {}", peers_.name(to),
                        peers_.name(from));
}

rpc::Message Client::request(const Json& more, const Tensors& tensors) const {
  rpc::Message message{{{"run", run_}, {"epoch", epoch_}, {"patience", peers_.timeout().count()}},
                       pieces_of(tensors)};
  message.head.update(more);
  return message;
}

void Client::tell_all(const char* method, const Json& more, const char* what) {
  peers_.for_all([&](size_t i) { peers_.call(i, method, request(more), peers_.patience(what)); });
}

// Calls a server and writes the pieces of its answer into `into`.
Json Client::call(size_t server, const char* method, const rpc::Message& request, const Tensors& into,
                  rpc::CallOptions options) {
  const Places places(into);
  options.into = places.spans();
  Json head = peers_.call(server, method, request, options).head;
  places.take_over();
  return head;
}

// Returns what this task says of its kernels; nothing where the bits depend on the speed of the tasks.
Agreement Client::kernels() const {
  if (!same_bits_) return {};
  return {context_.task().short_name(), context_.kernels().lines()};
}

// Returns the kernels with which all servers have to make updates: the kernels of this task or, if it
// computes on a GPU, of the first server.
Agreement Client::kernels_of_updates() {
  if (!same_bits_) return {};
  if (context_.kernels().on_cpu())
    return {context_.task().short_name(), context_.kernels().lines_of_updates()};
  return agreement_in(peers_.call(0, "state", {}, peers_.patience("its state")).head, "kernels");
}

std::vector<Json> Client::states_of_all() {
  std::vector<Json> states(peers_.size());
  peers_.for_all(
      [&](size_t i) { states[i] = peers_.call(i, "state", {}, peers_.patience("its state")).head; });
  return states;
}

// Returns the states of all, after it has noted who is in no run, and the furthest step.
std::vector<Json> Client::note_states() {
  std::vector<Json> states = states_of_all();
  furthest_step_ = 0;
  without_run_.clear();
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].value("begun", false))
      furthest_step_ = std::max(furthest_step_, number_in(states[i], "step"));
    else if (!is_copy(i))
      without_run_.push_back(static_cast<int>(i));
  }
  return states;
}

std::optional<Client::Standing> Client::standing() {
  const std::vector<Json> states = note_states();
  const std::string run = states[0].value("run", "");
  const auto is_elsewhere = [&](const Json& state) { return state.value("run", "") != run; };
  if (run.empty() || std::any_of(states.begin(), states.end(), is_elsewhere)) return std::nullopt;
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
  const std::vector<Json> states = states_of_all();
  for (size_t i = 0; i < states.size(); ++i)
    seconds += is_copy(i) ? 0 : states[i].at("cpu_seconds").get<double>();
  return seconds;
}

void Client::begin(const RunOptions& options, const Standing& standing, const Optimizer::State& state,
                   const std::vector<std::string>& plan) {
  const std::string run = new_run();
  without_run_.clear();
  const Json ranges = tutti::to_json(ranges_of(parameters_, options.optimizer.groups));
  const Json kernels_of_all = to_json(kernels());
  const Json of_servers = to_json(kernels_of_updates());
  std::vector<std::string> mixes(peers_.size());
  peers_.for_all([&](size_t i) {
    Optimizer::State mine{.steps = state.steps, .slots = {}};
    for (const BlockRange& range : block_ranges_[i]) {
      for (Optimizer::Slot& slot : slots_in(state, range.block, range.begin, range.end))
        mine.slots.push_back(std::move(slot));
    }
    const Extras extras = part_of(i) == 0 ? extras_ : Extras{};
    const Tensors frozen = part_of(i) == 0 ? on_host(parameters_.frozen()) : Tensors{};
    std::vector<rpc::Piece> pieces = pieces_of(elements_held_by(i, own_values()));
    rpc::Message message{{{"run", run},
                          {"plan", plan},
                          {"kernels", kernels_of_all},
                          {"updates", of_servers},
                          {"mixed", context_.config().compute.mixed_machines},
                          {"epoch", epoch_},
                          {"workers", group_.world},
                          {"strategy", options.strategy},
                          {"lanes", options.lanes},
                          {"backup", options.backup},
                          {"staleness", options.staleness},
                          {"redo", options.clipped || peers_.size() > 1 || epoch_ >= 0},
                          {"optimizer", tutti::to_json(options.optimizer)},
                          {"tables", options.has_rows},
                          {"ranges", ranges},
                          {"step", standing.step},
                          {"progress", standing.progress},
                          {"block_ranges", to_json(block_ranges_[i])},
                          {"buffers", pack(extras.buffers, pieces)},
                          {"counters", pack(extras.counters, pieces)},
                          {"frozen", pack(frozen, pieces)},
                          {"state", pack_snapshot(snapshot_of(mine), pieces)}},
                         {}};
    message.pieces = std::move(pieces);
    const Json answer =
        peers_.call(i, "begin", message, peers_.patience("the parameters", standing.step)).head;
    mixes[i] = text_in(answer, "mix");
  });
  for (const std::string& mix : mixes) warn_of_mix(context_, mix);
}

Client::Standing Client::join(const std::vector<std::string>& plan) {
  constexpr milliseconds kPause{100};
  const std::vector<Task> workers = workers_of(context_.cluster());
  const Task& first = workers.at(static_cast<size_t>(group_.rank_in_job(group_.chief)));
  const std::string chief = name_with_address(context_.cluster(), first);
  for (Waiting waiting = peers_.wait_for_start();; std::this_thread::sleep_for(kPause)) {
    await_nobody(waiting, Json::object(), "the chief has begun the training");
    const std::vector<Json> answers = join_each(plan, waiting.left());
    run_ = text_in(answers[0], "run");
    added_up_.clear();
    for (const Json& answer : answers)
      added_up_.push_back({number_in(answer, "added_up"),
                           static_cast<int>(number_in(answer, "workers_added_up")),
                           number_in(answer, "numbers_added_up")});
    const bool one_run = std::all_of(answers.begin(), answers.end(),
                                     [&](const Json& answer) { return text_in(answer, "run") == run_; });
    warn_of_mix(context_, text_in(answers[0], "mix"));
    if (one_run) return {.step = number_in(answers[0], "step"), .progress = answers[0].at("progress")};
    waiting.go_on({fmt::format("the chief, {}, to restore servers that were restarted", chief)});
  }
}

void Client::await_workers() {
  Waiting waiting = peers_.wait_for_start();
  await_nobody(waiting, {{"run", run_}, {"epoch", epoch_}}, "all workers are there");
}

// Asks all servers, because one that was restarted meanwhile says that it has lost the run.
void Client::await_nobody(Waiting& waiting, const Json& head, std::string_view end) {
  constexpr milliseconds kBetweenLooks{500};
  for (const auto begin = Clock::now();;) {
    const milliseconds patience = std::min(kBetweenLooks, waiting.patience());
    std::vector<std::vector<std::string>> of_each(peers_.size());
    peers_.for_all([&](size_t i) {
      rpc::Message question{head, {}};
      question.head["patience"] = patience.count();
      rpc::CallOptions options = peers_.patience("start of the run");
      options.timeout += patience;
      of_each[i] = lines_in(peers_.call(i, "await", question, options).head, "missing");
    });
    std::vector<std::string> missing;
    for (const auto& lines : of_each) {
      for (const std::string& line : lines) {
        if (std::find(missing.begin(), missing.end(), line) == missing.end()) missing.push_back(line);
      }
    }
    if (missing.empty()) return waiting.end(end);
    if (peers_.gives_up(begin)) fail(ErrorKind::Timeout, "stopped waiting for {}", fmt::join(missing, "; "));
    waiting.go_on(missing);
  }
}

std::vector<Json> Client::join_each(const std::vector<std::string>& plan, milliseconds wait) {
  std::vector<Json> answers(peers_.size());
  const rpc::Message message{{{"rank", group_.rank},
                              {"epoch", epoch_},
                              {"plan", plan},
                              {"kernels", to_json(kernels())},
                              {"patience", std::max(wait, milliseconds(1)).count()}},
                             {}};
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

void Client::agree(const std::string& key, const std::vector<std::string>& lines) {
  tell_all("agree", {{"key", key}, {"plan", lines}}, "the plan");
}

void Client::note(const std::string& key, const Json& value) {
  peers_.call(0, "note", {{{"key", key}, {"value", value}}, {}}, peers_.patience("a note"));
}

Json Client::read(const std::string& key, const std::string& run) {
  constexpr int kTimeouts = 10;
  rpc::Message message = request({{"key", key}, {"patience", peers_.timeout().count() * kTimeouts}});
  message.head["run"] = run;
  rpc::CallOptions options = peers_.patience(key.c_str());
  options.timeout *= kTimeouts;
  // Readers also wait while the chief writes a checkpoint, which may take long.
  options.give_up = {};
  return peers_.call(0, "read", message, options).head.at("value");
}

void Client::set_progress(const Json& progress) {
  tell_all("progress", {{"progress", progress}}, "the progress");
}

void Client::finish(int64_t fits) { tell_all("finish", {{"fits", fits}}, "end of the fit"); }

void Client::await_others(int64_t fits) {
  constexpr milliseconds kBetweenLooks{500};
  const auto begin = Clock::now();
  const auto deadline = begin + peers_.timeout();
  const rpc::Message message =
      request({{"fits", fits}, {"patience", std::min(kBetweenLooks, peers_.timeout()).count()}});
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

void Client::end() { tell_all("end", Json::object(), "end of the job"); }

void Client::leave() { tell_all("leave", Json::object(), "end of this worker"); }

}  // namespace tutti::ps
