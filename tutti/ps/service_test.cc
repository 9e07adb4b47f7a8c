// The server without a network: what it makes of messages, sensible ones and others.
#include "tutti/ps/service.h"

#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/ps/test_messages.h"
#include "tutti/ps/wire.h"

namespace tutti::ps {
namespace {

using ::testing::HasSubstr;

class ServiceOf : public ::testing::Test {
 protected:
  ServiceOf() : service_(Log(LogLevel::Off)) {}
  rpc::Message call(uint64_t id, const char* method, const rpc::Message& request) {
    return service_.serve(caller(id), method, request);
  }
  void start(const char* strategy, int workers, int64_t staleness = -1) {
    call(0, "begin", begin(strategy, workers, staleness));
    for (int rank = 0; rank < workers; ++rank) call(static_cast<uint64_t>(rank), "join", join(rank));
  }
  Service service_;
};

TEST_F(ServiceOf, ps_async_applies_what_comes_and_counts_how_old_it_is) {
  start("ps-async", 2);
  for (const uint64_t id : {0, 1}) call(id, "pull", {head(), {}});
  EXPECT_TRUE(torch::equal(values_in(call(0, "push", push(0.25))), torch::full({kSize}, 0.75)));
  const rpc::Message answer = call(1, "push", push(0.25));
  EXPECT_TRUE(torch::equal(values_in(answer), torch::full({kSize}, 0.5)));
  EXPECT_EQ(answer.head.at("made_step"), 1);
  // Made while its last push was under way: of the values from before it, which it had pulled first.
  call(0, "push", push(0, 0));
  call(0, "push", push(0, 2));
  const Json state = call(0, "state", {}).head;
  EXPECT_EQ(state.at("step"), 4);
  EXPECT_EQ(state.at("staleness"), Json({{"0", 1}, {"1", 2}, {"2", 1}}));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("of"), [&] { call(0, "push", push(0, 5)); });
}

TEST_F(ServiceOf, ps_async_writes_the_values_where_they_are_wanted) {
  start("ps-async", 1);
  const torch::Tensor place = torch::zeros({kSize});
  const torch::Tensor too_short = torch::zeros({kSize - 1});
  for (const torch::Tensor& wanted : {place, too_short, torch::zeros({0})}) {
    rpc::Message request = push(0.25);
    request.into = Places({wanted}).spans();
    const rpc::Message answer = call(0, "push", request);
    EXPECT_EQ(answer.pieces.at(0).bytes.data() == bytes_of(wanted).data(), wanted.is_same(place));
    EXPECT_EQ(values_in(answer)[0].item<float>(),
              1 - 0.25 * (1 + answer.head.at("made_step").get<int64_t>()));
  }
  EXPECT_TRUE(torch::equal(place, torch::full({kSize}, 0.75)));
  EXPECT_TRUE(torch::equal(too_short, torch::zeros({kSize - 1})));
}

TEST_F(ServiceOf, ps_async_makes_no_step_beyond_the_last) {
  start("ps-async", 1);
  rpc::Message last = push(0.5);
  last.head["end"] = 1;
  EXPECT_TRUE(call(0, "push", last).head.at("made").get<bool>());
  const rpc::Message refused = call(0, "push", last);
  EXPECT_FALSE(refused.head.at("made").get<bool>());
  EXPECT_TRUE(torch::equal(values_in(refused), torch::full({kSize}, 0.5)));
}

TEST_F(ServiceOf, ps_async_holds_back_who_is_too_far_ahead_until_the_slowest_comes_or_goes) {
  start("ps-async", 2, 0);
  bool went_on = false;
  std::thread fast([&] {
    call(0, "push", push(0));
    went_on = true;
  });
  call(1, "push", push(0));
  fast.join();
  EXPECT_TRUE(went_on);
  std::thread alone([&] { call(0, "push", push(0)); });
  service_.gone(caller(1));
  alone.join();
}

TEST_F(ServiceOf, names_who_is_missing_when_patience_ends) {
  start("ps-async", 2, 0);
  rpc::Message impatient = push(0);
  impatient.head["patience"] = 1;
  expect_error(ErrorKind::Timeout, HasSubstr("worker/1 (host here, pid 101)"),
               [&] { call(0, "push", impatient); });
}

TEST_F(ServiceOf, wakes_whoever_waits_when_it_is_gone_itself) {
  start("ps-async", 2, 0);
  std::thread waiting(
      [&] { expect_error(ErrorKind::PeerLost, HasSubstr("is gone"), [&] { call(0, "push", push(0)); }); });
  // Either before or in the middle of it.
  while (call(7, "state", {}).head.at("step") == 0) {
  }
  service_.gone(caller(0));
  waiting.join();
}

torch::Tensor values_behind_words(const rpc::Message& answer) {
  return values_in({answer.head, {answer.pieces.begin() + 1, answer.pieces.end()}});
}

// It had pushed to this server, and was killed before it had pushed to another.
TEST_F(ServiceOf, ps_sync_scales_no_gradient_that_is_still_on_its_way_to_another) {
  start("ps-sync", 1);
  rpc::Message request = push_of_step(0, 0.5);
  request.head["scaled"] = true;
  const rpc::Message answer = call(0, "push", request);
  rpc::Message scale{head(), {}};
  scale.head["step"] = 0;
  scale.head["factor"] = 0.5;
  call(0, "scale", scale);
  EXPECT_TRUE(torch::equal(values_behind_words(answer), torch::full({kSize}, 0.5)));
}

// Three workers, of whom two make a step.
class ServiceWithBackup : public ServiceOf {
 protected:
  ServiceWithBackup() {
    rpc::Message beginning = begin("ps-sync", 3);
    beginning.head["backup"] = 1;
    call(0, "begin", beginning);
    for (int rank = 0; rank < 3; ++rank) call(static_cast<uint64_t>(rank), "join", join(rank));
  }
  std::future<Json> enter(uint64_t id, int64_t step) {
    rpc::Message request{head(), {}};
    request.head["step"] = step;
    return std::async(std::launch::async, [this, id, request] { return call(id, "enter", request).head; });
  }
  // Gives up at once.
  void expect_no_place_yet(uint64_t id, int64_t step) {
    rpc::Message request{head(), {}};
    request.head["step"] = step;
    request.head["patience"] = 1;
    expect_error(ErrorKind::Timeout, HasSubstr("needs 2 workers"), [&] { call(id, "enter", request); });
  }
  rpc::Message push_expecting_two(int64_t step) {
    rpc::Message request = push_of_step(step, 0.5);
    request.head["expected"] = 2;
    return request;
  }
  const Json in_step_ = {{"late", false}, {"expected", 2}};
};

TEST_F(ServiceWithBackup, has_who_is_late_wait_for_the_end_of_the_step_and_counts_it) {
  auto first = enter(0, 0);
  EXPECT_EQ(enter(2, 0).get(), in_step_);
  EXPECT_EQ(first.get(), in_step_);
  expect_no_place_yet(1, 0);
  auto late = enter(1, 0);
  auto push = std::async(std::launch::async, [&] { call(0, "push", push_expecting_two(0)); });
  call(2, "push", push_expecting_two(0));
  push.get();
  EXPECT_EQ(late.get(), Json({{"late", true}, {"step", 1}}));
  EXPECT_EQ(call(0, "state", {}).head.at("dropped"), 1);
}

TEST_F(ServiceWithBackup, gives_the_place_of_who_is_gone_to_another) {
  auto first = enter(0, 0);
  EXPECT_EQ(enter(2, 0).get(), in_step_);
  EXPECT_EQ(first.get(), in_step_);
  auto substitute = enter(1, 0);
  service_.gone(caller(2));
  EXPECT_EQ(substitute.get(), in_step_);
  EXPECT_EQ(call(0, "state", {}).head.at("dropped"), 0);
}

TEST_F(ServiceWithBackup, lets_nobody_get_ahead) {
  expect_no_place_yet(1, 1);
  rpc::Message pull{head(), {}};
  pull.head["step"] = 1;
  pull.head["patience"] = 1;
  expect_error(ErrorKind::Timeout, HasSubstr("has not come to step 1"), [&] { call(1, "pull", pull); });
}

TEST_F(ServiceOf, ps_sync_lets_a_worker_that_comes_back_do_its_last_step_again) {
  start("ps-sync", 1);
  EXPECT_TRUE(
      torch::equal(values_behind_words(call(0, "push", push_of_step(0, 0.5))), torch::full({kSize}, 0.5)));
  service_.gone(caller(0));
  call(1, "join", join(0));
  rpc::Message pull{head(), {}};
  pull.head["step"] = 0;
  EXPECT_TRUE(torch::equal(values_in(call(1, "pull", pull)), torch::ones({kSize})));
  EXPECT_TRUE(
      torch::equal(values_behind_words(call(1, "push", push_of_step(0, 0.5))), torch::full({kSize}, 0.5)));
  EXPECT_TRUE(
      torch::equal(values_behind_words(call(1, "push", push_of_step(1, 0.25))), torch::full({kSize}, 0.25)));
  expect_error(ErrorKind::PeerLost, HasSubstr("knows nothing of step 0"), [&] { call(1, "pull", pull); });
}

TEST_F(ServiceOf, refuses_what_belongs_to_another_run) {
  start("ps-async", 1);
  rpc::Message old = push(0);
  old.head["run"] = "another";
  expect_error(ErrorKind::PeerLost, HasSubstr("set back"), [&] { call(0, "push", old); });
}

TEST_F(ServiceOf, refuses_what_comes_before_its_time) {
  expect_error(ErrorKind::PeerLost, HasSubstr("started anew"), [&] { call(0, "push", push(0)); });
  expect_error(ErrorKind::Timeout, HasSubstr("has not begun"), [&] { call(0, "join", join(0)); });
  call(0, "begin", begin("ps-async", 1));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has not joined"), [&] { call(5, "push", push(0)); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("counts 1 workers"), [&] { call(5, "join", join(1)); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("does not know how"), [&] { call(5, "dance", {}); });
}

TEST_F(ServiceOf, names_the_first_difference_between_two_plans) {
  call(0, "begin", begin("ps-async", 2));
  rpc::Message other = join(1);
  other.head["plan"] = {"six parameters"};
  expect_error(ErrorKind::InvalidArgument,
               HasSubstr("'six parameters' where the chief has 'five parameters'"),
               [&] { call(1, "join", other); });
}

TEST_F(ServiceOf, refuses_pieces_that_do_not_fit_and_stays_as_it_is) {
  start("ps-async", 1);
  for (const std::vector<torch::Tensor>& wrong :
       {std::vector<torch::Tensor>{}, {torch::ones({kSize - 1})}, {torch::ones({kSize}, torch::kFloat64)}})
    EXPECT_THROW(call(0, "push", {head(), pieces_of(wrong)}), Error);
  EXPECT_TRUE(torch::equal(values_in(call(0, "pull", {head(), {}})), torch::ones({kSize})));
}

// Whatever is left out or replaced: an error, and the server lives on.
TEST_F(ServiceOf, refuses_heads_that_make_no_sense) {
  const std::vector<Json> nonsense = {
      nullptr, -1, int64_t{1} << 60, "text", Json::array({1, 2}), Json::object(), 1.5, true};
  const rpc::Message right = begin("ps-sync", 2);
  for (const auto& [name, value] : right.head.items()) {
    for (const Json& other : nonsense) {
      rpc::Message wrong = right;
      wrong.head[name] = other;
      try {
        call(0, "begin", wrong);
      } catch (const Error&) {
      }
    }
    rpc::Message without = right;
    without.head.erase(name);
    EXPECT_THROW(call(0, "begin", without), Error) << name;
  }
  call(0, "begin", begin("ps-async", 1));
  call(0, "join", join(0));
  EXPECT_TRUE(torch::equal(values_in(call(0, "pull", {head(), {}})), torch::ones({kSize})));
}

// A server that was started anew had fallen over it.
TEST_F(ServiceOf, that_knows_of_no_training_is_not_asked_who_has_finished) {
  rpc::Message question{head(), {}};
  question.head["fits"] = 1;
  expect_error(ErrorKind::PeerLost, HasSubstr("started anew"), [&] { call(0, "await_finish", question); });
}

TEST_F(ServiceOf, that_is_set_back_forgets_who_had_finished_and_what_was_noted) {
  start("ps-async", 1);
  rpc::Message fits{head(), {}};
  fits.head.update({{"fits", 1}, {"patience", 1}, {"key", "k"}, {"value", 5}});
  for (const char* method : {"finish", "note", "await_finish", "read"})
    EXPECT_NO_THROW(call(0, method, fits));
  call(0, "begin", begin("ps-async", 1));
  expect_error(ErrorKind::Timeout, HasSubstr("not finished"), [&] { call(0, "await_finish", fits); });
  expect_error(ErrorKind::Timeout, HasSubstr("has not told"), [&] { call(0, "read", fits); });
}

TEST(Service, waits_at_the_end_for_a_worker_that_was_lost_before_it_had_left) {
  Service service(Log(LogLevel::Off), std::chrono::hours(1));
  service.serve(caller(0), "begin", begin("ps-async", 1));
  service.serve(caller(0), "join", join(0));
  service.serve(caller(0), "end", {});
  service.gone(caller(0));
  EXPECT_FALSE(service.join_for(std::chrono::milliseconds(0)));
  service.serve(caller(1), "join", join(0));
  service.serve(caller(1), "leave", {});
  EXPECT_FALSE(service.join_for(std::chrono::milliseconds(0)));
  service.gone(caller(1));
  EXPECT_TRUE(service.join_for(std::chrono::milliseconds(0)));
}

TEST_F(ServiceOf, is_done_when_all_have_left_after_the_end) {
  start("ps-async", 2);
  call(0, "end", {});
  EXPECT_FALSE(service_.join_for(std::chrono::milliseconds(0)));
  for (const uint64_t id : {0, 1}) service_.gone(caller(id));
  EXPECT_TRUE(service_.join_for(std::chrono::milliseconds(0)));
}

}  // namespace
}  // namespace tutti::ps
