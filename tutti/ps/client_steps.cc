#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/ps/client.h"
#include "tutti/ps/wire.h"
#include "tutti/step/lane_sum.h"

// The methods of a parameter client that exchange values and gradients.
namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<torch::Tensor>;

using embedding::RowShard;

// Takes what a server's answer has of sharded tables.
void take_rows(const Json& head, Reader& reader, Client::Snapshot& snapshot) {
  if (head.contains("rows")) {
    for (auto& named : unpack_named(head.at("rows"), reader)) snapshot.rows.push_back(std::move(named));
  }
  const Json counts = head.value("row_counts", Json::object());
  for (const auto& [table, of_server] : counts.items())
    snapshot.row_counts[table] += embedding::counts_of_json(of_server);
  snapshot.averaged_steps = std::max(snapshot.averaged_steps, head.value("averaged_steps", int64_t{0}));
  snapshot.changed_share = std::max(snapshot.changed_share, head.value("changed_share", 0.0));
}

void append(Tensors& to, const Tensors& more) { to.insert(to.end(), more.begin(), more.end()); }

}  // namespace

Tensors Client::elements_held_by(size_t server, const Tensors& blocks) const {
  Tensors elements;
  for (const BlockRange& range : block_ranges_[server])
    elements.push_back(blocks[range.block].narrow(0, range.begin, range.end - range.begin));
  return elements;
}

Tensors Client::gradients_of(int server) const {
  return elements_held_by(static_cast<size_t>(server), tutti::gradients_of(parameters_));
}

Tensors Client::own_values() const {
  Tensors values;
  for (const Section& block : parameters_.blocks()) values.push_back(block.values);
  return values;
}

// Returns the tensors into which a server's answer is written.
Tensors Client::places(size_t server, const Tensors& values, const Extras& extras) const {
  Tensors places = elements_held_by(server, values);
  if (server > 0) return places;
  append(places, extras.buffers);
  append(places, extras.counters);
  return places;
}

void Client::pull_frozen() {
  const torch::NoGradGuard no_grad;
  Tensors received;
  for (const Parameters::View& view : parameters_.frozen())
    received.push_back(torch::empty(view.tensor.sizes(), torch::TensorOptions().dtype(view.tensor.dtype())));
  if (received.empty()) return;
  call(0, "frozen", request(), received, peers_.patience("the frozen parameters"));
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
  const rpc::Message message = request(step ? Json{{"step", std::max<int64_t>(0, *step)}} : Json::object());
  std::vector<Json> answers(peers_.size());
  for_servers([&](size_t i) {
    answers[i] =
        call(i, "pull", message, places(i, own_values(), extras_), peers_.patience("the parameters"));
  });
  return number_in(answers[0], "step");
}

Client::Summed Client::push_synchronous(const Push& push, int64_t workers) {
  std::vector<torch::Tensor> control_words(peers_.size());
  std::vector<Json> answers(peers_.size());
  const auto message_to = [&](size_t i) {
    rpc::Message message =
        request({{"step", push.step}, {"expected", workers}, {"scaled", push.scaled}, {"copy", is_copy(i)}},
                {push.control_word});
    const size_t part = part_of(i);
    if (push.learning_rate) message.head["rate"] = *push.learning_rate;
    append_segments(message, push.gradients[part]);
    if (part == 0) ps::append(message, push.extras);
    if (!push.rows.empty()) append_rows(message, push.rows[part]);
    return message;
  };
  // The answers of the servers are written over the gradients and buffers that are sent.
  if (has_copies()) {
    peers_.for_all([&](size_t i) {
      if (is_copy(i)) call(i, "push", message_to(i), {}, peers_.patience("gradients", push.step));
    });
  }
  for_servers([&](size_t i) {
    const bool is_added_up = added_up_[i].step == push.step;
    control_words[i] = torch::empty(
        {is_added_up ? added_up_[i].numbers : push.control_word.numel() * group_.world}, torch::kDouble);
    Tensors into = {control_words[i]};
    append(into, places(i, push.scaled ? tutti::gradients_of(parameters_) : own_values(), extras_));
    answers[i] = call(i, "push", message_to(i), into, peers_.patience("gradients", push.step));
  });
  metrics::ExactSum row_squares;
  for (const Json& answer : answers) {
    if (answer.contains("row_squares"))
      row_squares.add(metrics::ExactSum::from(answer.at("row_squares").get<std::vector<double>>()));
  }
  const bool is_added_up = added_up_[0].step == push.step;
  return {control_words[0], is_added_up ? added_up_[0].workers : group_.world, is_added_up,
          row_squares.value()};
}

void Client::scale(int64_t step, double factor) {
  peers_.for_all([&](size_t i) {
    const rpc::Message message = request({{"step", step}, {"factor", factor}, {"copy", is_copy(i)}});
    call(i, "scale", message, is_copy(i) ? Tensors() : places(i, own_values(), extras_),
         peers_.patience("the parameters", step));
  });
}

// Only the first server decides. A worker that has lost another server enters no more steps and waits until
// all join again; therefore checks every half second that all servers are still in the run.
std::optional<int64_t> Client::enter(int64_t step) {
  constexpr milliseconds kBetweenLooks{500};
  const auto deadline = deadline_after(peers_.timeout());
  const rpc::Message message =
      request({{"step", step}, {"patience", std::min(kBetweenLooks, peers_.timeout()).count()}});
  for (;;) {
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
    rpc::Message message = request(Json::object(), places(i, update.gradients, update.results));
    if (i == 0) message.head.update({{"of", update.of}, {"examples", update.examples}, {"end", update.end}});
    if (update.learning_rate) message.head["rate"] = *update.learning_rate;
    if (!update.rows.empty()) {
      message.head["lanes"] = update.lanes;
      append_rows(message, update.rows[i]);
    }
    return call(i, "push", message, places(i, values, extras), peers_.patience("gradients", step_));
  };
  // Server 0 is asked first: if it refuses the update, no other server is asked to apply it.
  std::vector<Json> answers(peers_.size());
  const Json& answer = answers[0] = push_to(0);
  Applied applied{answer.at("made").get<bool>(), answer.value("made_step", int64_t{-1}),
                  number_in(answer, "step")};
  const auto pull_from = [&](size_t i) {
    return call(i, "pull", request(), places(i, values, extras), peers_.patience("the parameters"));
  };
  peers_.for_all([&](size_t i) {
    if (i > 0) answers[i] = applied.made ? push_to(i) : pull_from(i);
  });
  step_ = applied.now;
  // Waits only now that all servers have the update, so that a snapshot in the meantime is consistent.
  const auto is_ahead = [](const Json& each) { return each.value("too_far_ahead", false); };
  if (std::none_of(answers.begin(), answers.end(), is_ahead)) return applied;
  peers_.for_all([&](size_t i) {
    if (!is_ahead(answers[i])) return;
    peers_.call(i, "go_on", request(), peers_.patience("the slowest worker", applied.step));
    answers[i] = pull_from(i);
  });
  step_ = applied.now = number_in(answer, "step");
  return applied;
}

// Returns nullopt if a server was ahead of the others, because a worker was lost in the middle of a step; the
// worker that replaces it will complete the step.
std::optional<std::vector<rpc::Message>> Client::try_to_snapshot(Slots slots, RowShard::Which rows) {
  const auto ask = [&](size_t i, const char* method, const Json& more) {
    return peers_.call(i, method, request(more), peers_.patience("a snapshot"));
  };
  const auto release = [&] { ask(0, "release", Json::object()); };
  Json point = ask(0, "hold", Json::object()).head;
  point["keep"] = slots == Slots::Keep;
  point["changed_rows"] = rows == RowShard::Which::Changed;
  std::vector<rpc::Message> answers(static_cast<size_t>(servers()));
  try {
    for_servers([&](size_t i) { answers[i] = ask(i, "snapshot", point); });
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

Client::Snapshot Client::snapshot(Slots slots, RowShard::Which rows) {
  constexpr milliseconds kPause{100};
  const auto deadline = Clock::now() + peers_.timeout();
  std::optional<std::vector<rpc::Message>> found = try_to_snapshot(slots, rows);
  for (; !found; found = try_to_snapshot(slots, rows)) {
    if (Clock::now() >= deadline)
      fail(ErrorKind::Timeout,
           "cannot take a snapshot of the parameter servers: some have made a step that the others have not, "
           "because a worker was lost during this step and has not been replaced");
    std::this_thread::sleep_for(kPause);
  }
  const std::vector<rpc::Message>& answers = *found;
  Snapshot snapshot{
      .step = number_in(answers[0].head, "step"), .progress = answers[0].head.at("progress"), .state = {}};
  for (size_t i = 0; i < answers.size(); ++i) {
    Reader reader(answers[i]);
    reader.take_into(places(i, own_values(), extras_));
    const Json& outline = answers[i].head.at("state");
    Optimizer::State state = tutti::state_of(slots == Slots::Send ? unpack_snapshot(outline, reader)
                                                                  : store::empty_snapshot(outline));
    snapshot.state.steps = std::max(snapshot.state.steps, state.steps);
    if (slots == Slots::Send) {
      for (const Optimizer::Slot& slot : state.slots) put(snapshot.state, parameters_, slot);
    } else {
      snapshot.kept.push_back(std::move(state.slots));
    }
    take_rows(answers[i].head, reader, snapshot);
    reader.end();
  }
  return snapshot;
}

bool Client::all_share(const std::string& mark) {
  std::vector<int> share(static_cast<size_t>(servers()));
  for_servers([&](size_t i) {
    const Json answer =
        peers_.call(i, "shares", {{{"mark", mark}}, {}}, peers_.patience("the folder of a checkpoint")).head;
    share[i] = answer.at("shares").get<bool>() ? 1 : 0;
  });
  return std::all_of(share.begin(), share.end(), [](int one) { return one == 1; });
}

void Client::write(int server, const std::string& mark, const std::string& file, int64_t step,
                   const std::vector<store::NamedTensors>& tensors, const std::string& rows_file) {
  Json outlines = Json::array();
  for (size_t slot = 0; slot < tensors.size(); ++slot) {
    for (const auto& [name, tensor] : tensors[slot])
      outlines.push_back({{"slot", slot},
                          {"name", name},
                          {"begin", tensor.storage_offset()},
                          {"shape", tensor.sizes().vec()},
                          {"strides", tensor.strides().vec()}});
  }
  peers_.call(static_cast<size_t>(server), "write",
              request({{"mark", mark},
                       {"name", file},
                       {"step", step},
                       {"tensors", std::move(outlines)},
                       {"rows_name", rows_file}}),
              peers_.patience("its part of a checkpoint"));
}

}  // namespace tutti::ps
