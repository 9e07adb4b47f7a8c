// Tests the parameter server without a network, with valid and invalid messages.
#include "tutti/ps/service.h"

#include <array>
#include <atomic>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/ps/test_messages.h"
#include "tutti/ps/wire.h"
#include "tutti/store/safetensors.h"
#include "tutti/store/shared_files.h"

namespace tutti::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  // Computed while its last push was pending, from the values before that push, which it had pulled first.
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
  EXPECT_TRUE(call(0, "push", push(0)).head.at("too_far_ahead").get<bool>());
  std::thread fast([&] { call(0, "go_on", {head(), {}}); });
  EXPECT_FALSE(call(1, "push", push(0)).head.at("too_far_ahead").get<bool>());
  fast.join();
  call(0, "push", push(0));
  std::thread alone([&] { call(0, "go_on", {head(), {}}); });
  service_.gone(caller(1));
  alone.join();
}

TEST_F(ServiceOf, names_who_is_missing_when_patience_ends) {
  start("ps-async", 2, 0);
  call(0, "push", push(0));
  rpc::Message impatient{head(), {}};
  impatient.head["patience"] = 1;
  expect_error(ErrorKind::Timeout, HasSubstr("worker/1 (host here, pid 101)"),
               [&] { call(0, "go_on", impatient); });
}

TEST_F(ServiceOf, wakes_whoever_waits_when_it_is_gone_itself) {
  start("ps-async", 2, 0);
  rpc::Message question{head(), {}};
  question.head["key"] = "k";
  std::atomic<bool> woken = false;
  std::thread waiting([&] {
    expect_error(ErrorKind::PeerLost, HasSubstr("is gone"), [&] { call(0, "read", question); });
    woken = true;
  });
  // A host may also call gone() before the service has begun to wait.
  while (!woken) service_.gone(caller(0));
  waiting.join();
}

// The chief takes a snapshot, and the next push changes the optimiser's state before it is written.
TEST_F(ServiceOf, writes_the_state_of_the_snapshot_whatever_comes_later) {
  rpc::Message beginning = begin("ps-async", 1);
  beginning.head["optimizer"] = tutti::to_json(torch::optim::SGDOptions(1.0).momentum(0.9));
  call(0, "begin", beginning);
  call(0, "join", join(0));
  call(0, "push", push(0.5));
  rpc::Message request{head(), {}};
  request.head.update(call(0, "hold", request).head);
  request.head["keep"] = true;
  const rpc::Message answer = call(0, "snapshot", request);
  EXPECT_EQ(answer.pieces.size(), 1U);  // the values
  EXPECT_EQ(answer.head.at("state").at("tensors").size(), 1U);
  call(0, "release", {head(), {}});
  call(0, "push", push(2));

  const TestFolder folder;
  const store::FolderMark mark(folder.path());
  const auto shares = [&](const std::string& path) {
    return call(0, "shares", {{{"mark", path}}, {}}).head.at("shares").get<bool>();
  };
  EXPECT_TRUE(shares(mark.path()));
  EXPECT_FALSE(shares(folder / "manifest.json"));
  rpc::Message write{head(), {}};
  write.head["mark"] = mark.path();
  write.head["name"] = "part";
  write.head["step"] = 1;
  write.head["tensors"] = {
      {{"slot", 0}, {"name", "m/a"}, {"begin", 0}, {"shape", {2, 2}}, {"strides", {2, 1}}},
      {{"slot", 0}, {"name", "m/b"}, {"begin", 4}, {"shape", {1}}, {"strides", {1}}}};
  for (const char* key : {"mark", "name"}) {
    rpc::Message elsewhere = write;
    elsewhere.head[key] = std::string(key) == "mark" ? "/tmp/shared-by-nobody" : "../part";
    expect_error(ErrorKind::InvalidArgument, HasSubstr("cannot write"), [&] { call(0, "write", elsewhere); });
  }
  call(0, "write", write);
  const auto files = store::await_shared_files(
      folder.path(), {.files = {{.part = "m", .name = "part", .writer = "ps/0"}}}, 1);
  EXPECT_EQ(files.size(), 1U);
  const store::SafetensorsFile file(folder / "part");
  EXPECT_TRUE(torch::equal(file.read("m/a"), torch::full({2, 2}, 0.5)));
  EXPECT_TRUE(torch::equal(file.read("m/b"), torch::full({1}, 0.5)));
  expect_error(ErrorKind::PeerLost, HasSubstr("its part"), [&] { call(0, "write", write); });
  // A copy is not kept for a chief that is gone.
  request.head.update(call(0, "hold", request).head);
  call(0, "snapshot", request);
  service_.gone(caller(0));
  call(0, "join", join(0));
  expect_error(ErrorKind::PeerLost, HasSubstr("its part"), [&] { call(0, "write", write); });
}

torch::Tensor values_behind_control_words(const rpc::Message& answer) {
  return values_in({answer.head, {answer.pieces.begin() + 1, answer.pieces.end()}});
}

rpc::Message scale(int64_t step, double factor) {
  rpc::Message request{head(), {}};
  request.head.update({{"step", step}, {"factor", factor}});
  return request;
}

// The worker had pushed to this server, but was killed before it had pushed to another.
TEST_F(ServiceOf, ps_sync_scales_no_gradient_that_is_still_on_its_way_to_another) {
  start("ps-sync", 1);
  rpc::Message request = push_of_step(0, 0.5);
  request.head["scaled"] = true;
  const rpc::Message answer = call(0, "push", request);
  call(0, "scale", scale(0, 0.5));
  EXPECT_TRUE(torch::equal(values_behind_control_words(answer), torch::full({kSize}, 0.5)));
}

// The first worker may have made the update before the answer to another is put together.
TEST_F(ServiceOf, ps_sync_gives_the_mean_without_its_scale_also_after_the_update) {
  start("ps-sync", 1);
  rpc::Message request = push_of_step(0, 0.5);
  request.head["scaled"] = true;
  call(0, "push", request);
  call(0, "scale", scale(0, 0.5));
  EXPECT_TRUE(torch::equal(values_behind_control_words(call(0, "push", request)), torch::full({kSize}, 0.5)));
}

TEST_F(ServiceOf, ps_sync_tells_all_workers_that_their_learning_rates_differ_and_stays_as_it_is) {
  start("ps-sync", 2);
  const auto expect_refused = [&](uint64_t worker, const rpc::Message& request) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("different learning rates at step 0"),
                 [&] { call(worker, "push", request); });
  };
  std::thread other([&] { expect_refused(1, push_without_lane(0, 0.25)); });
  expect_refused(0, push_of_step(0, 0.5, 0.125));
  other.join();
  std::thread again([&] { call(1, "push", push_without_lane(0, 0.125)); });
  EXPECT_TRUE(torch::equal(values_behind_control_words(call(0, "push", push_of_step(0, 0.5, 0.125))),
                           torch::full({kSize}, 0.5)));
  again.join();
}

// Two workers that may change, of which the first one has the only lane.
class ServiceOfEpochs : public ServiceOf {
 protected:
  ServiceOfEpochs() {
    rpc::Message beginning = of(0, begin("ps-sync", 2));
    beginning.head["lanes"] = 1;
    call(0, "begin", beginning);
    for (const int rank : {0, 1}) call(static_cast<uint64_t>(rank), "join", of(0, join(rank)));
  }
  static rpc::Message of(int64_t epoch, rpc::Message message) {
    message.head["epoch"] = epoch;
    return message;
  }
  static rpc::Message regroup(int64_t epoch, int workers) {
    rpc::Message message = of(epoch, {head(), {}});
    message.head["workers"] = workers;
    return message;
  }
  void expect_lost(const char* text, uint64_t id, const char* method, const rpc::Message& request) {
    expect_error(ErrorKind::PeerLost, HasSubstr(text), [&] { call(id, method, request); });
  }
};

TEST_F(ServiceOfEpochs, goes_on_with_others_and_takes_nothing_of_an_earlier_epoch) {
  std::thread waiting([&] { expect_lost("worker/1", 0, "push", of(0, push_of_step(0, 0.25))); });
  service_.gone(caller(1));
  waiting.join();
  expect_lost("worker/1", 0, "pull", of(0, {head(), {}}));
  call(0, "regroup", regroup(2, 1));
  expect_lost("epoch 0 came in epoch 2", 0, "push", of(0, push_of_step(0, 0.25)));
  expect_lost("epoch 1 have changed", 5, "regroup", regroup(1, 2));
  expect_lost("epoch 1 have changed", 5, "begin", of(1, begin("ps-sync", 2)));
  expect_lost("epoch 0 came in epoch 2", 5, "join", of(0, join(1)));
  call(0, "join", of(2, join(0)));
  EXPECT_TRUE(torch::equal(values_behind_control_words(call(0, "push", of(2, push_of_step(0, 0.5)))),
                           torch::full({kSize}, 0.5)));
}

// Another server may not have made it, and the workers that are left did not get the result.
TEST_F(ServiceOfEpochs, gives_the_result_of_a_step_of_an_earlier_epoch_again) {
  std::thread other([&] { call(1, "push", of(0, push_without_lane(0, 0.125))); });
  const rpc::Message made = call(0, "push", of(0, push_of_step(0, 0.5, 0.125)));
  other.join();
  call(0, "regroup", regroup(1, 1));
  const Json joined = call(0, "join", of(1, join(0))).head;
  EXPECT_EQ(joined.at("added_up"), 0);
  EXPECT_EQ(joined.at("workers_added_up"), 2);
  rpc::Message question = of(1, {head(), {}});
  question.head["step"] = 0;
  EXPECT_TRUE(torch::equal(values_in(call(0, "pull", question)), torch::ones({kSize})));
  const rpc::Message again = call(0, "push", of(1, push_of_step(0, 0.5, 0.125)));
  EXPECT_EQ(again.pieces.at(0).bytes.size(), made.pieces.at(0).bytes.size());
  EXPECT_EQ(again.pieces.at(0).bytes.size(), joined.at("numbers_added_up").get<size_t>() * sizeof(double));
  EXPECT_TRUE(torch::equal(values_behind_control_words(again), torch::full({kSize}, 0.5)));
  EXPECT_EQ(call(0, "state", {}).head.at("step"), 1);
}

TEST_F(ServiceOfEpochs, ends_an_epoch_for_all_when_one_worker_gives_up_or_is_late) {
  std::thread waiting([&] { expect_lost("gave up: its reason", 0, "push", of(0, push_of_step(0, 0.25))); });
  rpc::Message why = of(0, {head(), {}});
  why.head["why"] = "its reason";
  call(1, "abandon", why);
  waiting.join();
  call(0, "regroup", regroup(1, 2));
  for (const int rank : {0, 1}) call(static_cast<uint64_t>(rank), "join", of(1, join(rank)));
  rpc::Message impatient = of(1, push_of_step(0, 0.25));
  impatient.head["patience"] = 1;
  expect_error(ErrorKind::Timeout, HasSubstr("worker/1"), [&] { call(0, "push", impatient); });
  expect_lost("no gradients for step 0 from worker/1", 1, "pull", of(1, {head(), {}}));
}

std::vector<std::byte> bytes_in(const rpc::Message& message) {
  std::vector<std::byte> all;
  for (const rpc::Piece& piece : message.pieces)
    all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
  return all;
}

// Before a step, when its sum is known, and after it.
TEST_F(ServiceOfEpochs, hands_over_everything_to_a_server_that_goes_on_with_the_same_bits) {
  for (const int calls : {0, 1, 2}) {
    std::array<Service, 2> services = {Service(Log(LogLevel::Off)), Service(Log(LogLevel::Off))};
    const auto call_one = [&](size_t i, const char* method, int64_t epoch, const rpc::Message& request) {
      return services.at(i).serve(caller(0), method, of(epoch, request));
    };
    const auto push_at = [](int64_t step) {
      const double rate = step == 0 ? 1 : 0.25;
      rpc::Message request = push_of_step(step, 0.5 + static_cast<double>(step), rate);
      request.head.update({{"scaled", true}, {"rate", rate}});
      return request;
    };
    rpc::Message beginning = begin("ps-sync", 1);
    beginning.head["optimizer"] = tutti::to_json(torch::optim::SGDOptions(1.0).momentum(0.9));
    call_one(0, "begin", 0, beginning);
    call_one(0, "join", 0, join(0));
    call_one(0, "push", 0, push_at(0));
    call_one(0, "scale", 0, scale(0, 0.5));
    if (calls > 0) call_one(0, "push", 0, push_at(1));
    if (calls > 1) call_one(0, "scale", 0, scale(1, 0.75));
    call_one(0, "regroup", 1, regroup(1, 1));
    call_one(1, "begin", 1, call_one(0, "hand_over", 1, {head(), {}}));
    const auto expect_same = [&](const char* method, const rpc::Message& request) {
      const rpc::Message one = call_one(0, method, 1, request);
      const rpc::Message other = call_one(1, method, 1, request);
      EXPECT_EQ(one.head, other.head) << method;
      EXPECT_EQ(bytes_in(one), bytes_in(other)) << method;
    };
    rpc::Message pull{head(), {}};
    pull.head["step"] = 1;
    expect_same("join", join(0));
    expect_same("pull", pull);
    for (const int64_t step : {1, 2}) {
      expect_same("push", push_at(step));
      expect_same("scale", scale(step, 0.75));
    }
    expect_same("hand_over", {head(), {}});
  }
}

// Three workers, of which two make a step.
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
  // Gives up after one millisecond.
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

TEST_F(ServiceWithBackup, answers_a_worker_that_scales_after_the_others_have_made_the_next_step) {
  for (const int64_t step : {0, 1}) {
    rpc::Message request = push_of_step(step, 0.5);
    request.head.update({{"expected", 1}, {"scaled", true}});
    call(0, "push", request);
    call(0, "scale", scale(step, 0.5));
  }
  EXPECT_EQ(call(1, "scale", scale(0, 0.25)).head.at("step"), 2);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("at step 2"), [&] { call(1, "scale", scale(2, 1)); });
}

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

// The chief takes a snapshot: pending steps are finished first, and no new one begins.
TEST_F(ServiceWithBackup, holds_steps_back_while_a_snapshot_is_taken) {
  auto first = enter(0, 0);
  EXPECT_EQ(enter(2, 0).get(), in_step_);
  EXPECT_EQ(first.get(), in_step_);
  rpc::Message impatient{head(), {}};
  impatient.head["patience"] = 1;
  expect_error(ErrorKind::Timeout, HasSubstr("no gradients for step 0 from worker/0"),
               [&] { call(1, "hold", impatient); });
  auto push = std::async(std::launch::async, [&] { call(0, "push", push_expecting_two(0)); });
  call(2, "push", push_expecting_two(0));
  push.get();
  rpc::Message at = {head(), {}};
  at.head["step"] = call(1, "hold", {head(), {}}).head.at("step");
  EXPECT_EQ(at.head["step"], 1);
  expect_no_place_yet(0, 1);
  EXPECT_FALSE(call(1, "snapshot", at).head.contains("is_ahead"));
  at.head["step"] = 0;
  EXPECT_TRUE(call(1, "snapshot", at).head.at("is_ahead").get<bool>());
  auto held_back = enter(0, 1);
  call(1, "release", {head(), {}});
  EXPECT_EQ(enter(2, 1).get(), in_step_);
  EXPECT_EQ(held_back.get(), in_step_);
}

TEST_F(ServiceOf, lets_updates_go_on_when_whoever_held_them_back_is_gone) {
  start("ps-async", 2);
  call(1, "hold", {head(), {}});
  rpc::Message impatient = push(0);
  impatient.head["patience"] = 1;
  expect_error(ErrorKind::Timeout, HasSubstr("snapshot"), [&] { call(0, "push", impatient); });
  service_.gone(caller(1));
  EXPECT_NO_THROW(call(0, "push", impatient));
}

TEST_F(ServiceWithBackup, lets_nobody_get_ahead) {
  expect_no_place_yet(1, 1);
  rpc::Message pull{head(), {}};
  pull.head["step"] = 1;
  pull.head["patience"] = 1;
  expect_error(ErrorKind::Timeout, HasSubstr("has not reached step 1"), [&] { call(1, "pull", pull); });
}

TEST_F(ServiceOf, ps_sync_lets_a_worker_that_comes_back_do_its_last_step_again) {
  start("ps-sync", 1);
  EXPECT_TRUE(torch::equal(values_behind_control_words(call(0, "push", push_of_step(0, 0.5))),
                           torch::full({kSize}, 0.5)));
  service_.gone(caller(0));
  call(1, "join", join(0));
  rpc::Message pull{head(), {}};
  pull.head["step"] = 0;
  EXPECT_TRUE(torch::equal(values_in(call(1, "pull", pull)), torch::ones({kSize})));
  EXPECT_TRUE(torch::equal(values_behind_control_words(call(1, "push", push_of_step(0, 0.5))),
                           torch::full({kSize}, 0.5)));
  EXPECT_TRUE(torch::equal(values_behind_control_words(call(1, "push", push_of_step(1, 0.25))),
                           torch::full({kSize}, 0.25)));
  expect_error(ErrorKind::PeerLost, HasSubstr("no longer has the results of step 0"),
               [&] { call(1, "pull", pull); });
}

TEST_F(ServiceOf, refuses_what_belongs_to_another_run) {
  start("ps-async", 1);
  rpc::Message old = push(0);
  old.head["run"] = "another";
  expect_error(ErrorKind::PeerLost, HasSubstr("returned to an earlier checkpoint"),
               [&] { call(0, "push", old); });
}

TEST_F(ServiceOf, refuses_what_comes_before_its_time) {
  expect_error(ErrorKind::PeerLost, HasSubstr("was restarted"), [&] { call(0, "push", push(0)); });
  expect_error(ErrorKind::PeerLost, HasSubstr("was restarted"), [&] { call(0, "join", join(0)); });
  call(0, "begin", begin("ps-async", 1));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has not joined"), [&] { call(5, "push", push(0)); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has 1 workers"), [&] { call(5, "join", join(1)); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("does not support"), [&] { call(5, "dance", {}); });
}

TEST_F(ServiceOf, names_the_first_difference_between_two_plans) {
  call(0, "begin", begin("ps-async", 2));
  rpc::Message other = join(1);
  other.head["plan"] = {"six parameters"};
  expect_error(
      ErrorKind::InvalidArgument,
      HasSubstr("the chief has 'five parameters', worker/1 (host here, pid 101) has 'six parameters'"),
      [&] { call(1, "join", other); });
}

TEST_F(ServiceOf, refuses_pieces_that_do_not_fit_and_stays_as_it_is) {
  start("ps-async", 1);
  for (const std::vector<torch::Tensor>& wrong :
       {std::vector<torch::Tensor>{}, {torch::ones({kSize - 1})}, {torch::ones({kSize}, torch::kFloat64)}})
    EXPECT_THROW(call(0, "push", {head(), pieces_of(wrong)}), Error);
  EXPECT_TRUE(torch::equal(values_in(call(0, "pull", {head(), {}})), torch::ones({kSize})));
}

// Each missing or replaced field gives an error, and the server goes on.
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

// A restarted server used to crash here.
TEST_F(ServiceOf, that_knows_of_no_training_is_not_asked_who_has_finished) {
  rpc::Message question{head(), {}};
  question.head["fits"] = 1;
  expect_error(ErrorKind::PeerLost, HasSubstr("was restarted"), [&] { call(0, "await_finish", question); });
}

TEST_F(ServiceOf, that_is_set_back_forgets_who_had_finished_and_what_was_noted) {
  start("ps-async", 1);
  rpc::Message fits{head(), {}};
  fits.head.update({{"fits", 1}, {"patience", 1}, {"key", "k"}, {"value", 5}});
  for (const char* method : {"finish", "note", "await_finish", "read"})
    EXPECT_NO_THROW(call(0, method, fits));
  call(0, "begin", begin("ps-async", 1));
  expect_error(ErrorKind::Timeout, HasSubstr("not finished"), [&] { call(0, "await_finish", fits); });
  expect_error(ErrorKind::Timeout, HasSubstr("has not stored"), [&] { call(0, "read", fits); });
}

TEST(Service, waits_at_the_end_for_a_worker_that_was_lost_before_it_had_left) {
  Service service(Log(LogLevel::Off), {.patience = std::chrono::hours(1)});
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

// A worker that is stopped in its last step, or after it, is named.
TEST(Service, says_at_the_end_who_has_not_finished_or_not_left) {
  const auto end_without = [](const ServiceOptions& options, bool connected) {
    Service service(Log(LogLevel::Off), options);
    const auto call = [&](uint64_t id, const char* method, const rpc::Message& request) {
      service.serve(caller(id), method, request);
    };
    call(0, "begin", begin("ps-async", 2));
    for (int rank = 0; rank < 2; ++rank) call(static_cast<uint64_t>(rank), "join", join(rank));
    rpc::Message fits{head(), {}};
    fits.head["fits"] = 1;
    call(0, "finish", fits);
    if (!connected) call(1, "finish", fits);
    call(0, "end", {});
    call(0, "leave", {});
    service.gone(caller(0));
    if (!connected) service.gone(caller(1));
    while (!service.join_for(std::chrono::milliseconds(1))) {
    }
  };
  using std::chrono::hours;
  using std::chrono::milliseconds;
  expect_error(ErrorKind::Timeout, HasSubstr("worker/1 (host here, pid 101) has not finished"),
               [&] { end_without({.patience = hours(1), .timeout = milliseconds(2)}, true); });
  expect_error(ErrorKind::Timeout, HasSubstr("worker/1 (host here, pid 101) is gone"),
               [&] { end_without({.patience = milliseconds(2), .timeout = hours(1)}, false); });
}

TEST_F(ServiceOf, refuses_the_second_task_of_one_index_when_the_first_is_heard_from) {
  start("ps-async", 2);
  rpc::Message patient = join(1);
  patient.head["patience"] = 60000;
  auto twin = std::async(std::launch::async, [&] {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("two tasks have the same index: worker/1"),
                 [&] { call(5, "join", patient); });
  });
  while (twin.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) call(1, "state", {});
  twin.get();
  EXPECT_NO_THROW(call(1, "push", push(0)));
}

TEST_F(ServiceOf, lets_a_worker_that_was_killed_come_back_in_its_place) {
  start("ps-async", 2);
  rpc::Message patient = join(1);
  patient.head["patience"] = 60000;
  auto next = std::async(std::launch::async, [&] { call(5, "join", patient); });
  service_.gone(caller(1));
  next.get();
  EXPECT_NO_THROW(call(5, "push", push(0)));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has not joined"), [&] { call(1, "push", push(0)); });
}

TEST_F(ServiceOf, tells_all_that_a_worker_has_another_plan) {
  call(0, "begin", begin("ps-sync", 3));
  for (int rank = 0; rank < 2; ++rank) call(static_cast<uint64_t>(rank), "join", join(rank));
  rpc::Message question{head(), {}};
  question.head["key"] = "k";
  auto waiting = std::async(std::launch::async, [&] {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("'six parameters'"),
                 [&] { call(0, "read", question); });
  });
  rpc::Message other = join(2);
  other.head["plan"] = {"six parameters"};
  expect_error(ErrorKind::InvalidArgument, HasSubstr("worker/2"), [&] { call(2, "join", other); });
  waiting.get();
  expect_error(ErrorKind::InvalidArgument, HasSubstr("worker/2"), [&] { call(1, "pull", {head(), {}}); });
  // Tasks that connect after all have gone wait for their chief.
  for (const uint64_t id : {0, 1, 2}) service_.gone(caller(id));
  expect_error(ErrorKind::PeerLost, HasSubstr("has not received the parameters"),
               [&] { call(2, "join", join(2)); });
  call(0, "begin", begin("ps-sync", 3));
  EXPECT_NO_THROW(call(2, "join", join(2)));
}

TEST_F(ServiceOf, forgets_the_workers_that_a_smaller_run_does_not_have) {
  start("ps-sync", 3);
  call(0, "begin", begin("ps-sync", 1));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has not joined"),
               [&] { call(2, "push", push_of_step(0, 0.5)); });
  service_.gone(caller(2));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has 1 workers"), [&] { call(3, "join", join(2)); });
}

// Worker 1 gives up before worker 2 does.
TEST_F(ServiceOf, ps_sync_has_all_who_wait_name_the_same_missing_worker) {
  start("ps-sync", 3);
  const auto error_of_push = [this](uint64_t worker, int patience) {
    rpc::Message request = push_without_lane(0, 0.125);
    request.head["patience"] = patience;
    try {
      call(worker, "push", request);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  auto other = std::async(std::launch::async, error_of_push, 2, 2000);
  std::string first = error_of_push(1, 1);
  while (first.find("worker/2") != std::string::npos) first = error_of_push(1, 1);
  EXPECT_THAT(first, HasSubstr("no gradients for step 0 from worker/0"));
  EXPECT_THAT(first, ::testing::Not(HasSubstr("worker/1")));
  EXPECT_EQ(other.get(), first);
}

TEST(Service, names_who_is_missing_at_the_start_with_the_address) {
  Service service(Log(LogLevel::Off), {.workers = {{"worker/0", "h:1"}, {"worker/1", "h:2"}}});
  const auto missing = [&](Json question) {
    question["patience"] = 1;
    return service.serve(caller(7), "await", {question, {}})
        .head.at("missing")
        .get<std::vector<std::string>>();
  };
  const Json for_chief = Json::object();
  EXPECT_THAT(missing(for_chief), ElementsAre("the chief, worker/0 (h:1), which has not connected"));
  service.serve(caller(0), "state", {});
  EXPECT_THAT(missing(for_chief), ElementsAre("the chief, worker/0 (host here, pid 100), which is connected "
                                              "but has not begun the training"));
  service.serve(caller(0), "begin", begin("ps-sync", 2));
  EXPECT_THAT(missing(for_chief), IsEmpty());
  service.serve(caller(0), "join", join(0));
  service.gone(caller(1));
  EXPECT_THAT(missing(head()), ElementsAre("worker/1 (h:2), which has not connected"));
  service.serve(caller(1), "join", join(1));
  EXPECT_THAT(missing(head()), IsEmpty());
  // Who has joined and was lost does not keep a worker from its first step.
  service.gone(caller(1));
  EXPECT_THAT(missing(head()), IsEmpty());
}

TEST_F(ServiceOf, ps_sync_does_not_wait_at_the_start_for_a_worker_that_no_step_needs) {
  rpc::Message beginning = begin("ps-sync", 3);
  beginning.head["backup"] = 1;
  call(0, "begin", beginning);
  for (int rank = 0; rank < 2; ++rank) call(static_cast<uint64_t>(rank), "join", join(rank));
  EXPECT_THAT(call(0, "await", {head(), {}}).head.at("missing"), IsEmpty());
}

TEST_F(ServiceOf, tells_the_chief_who_was_lost_and_who_has_come_back) {
  start("ps-async", 2);
  const auto news = [&](uint64_t id) { return call(id, "state", {}).head.value("news", Json::array()); };
  EXPECT_THAT(news(0), IsEmpty());
  service_.gone(caller(1));
  EXPECT_EQ(news(0), Json({"worker/1 (host here, pid 101) is gone"}));
  EXPECT_THAT(news(0), IsEmpty());
  call(5, "join", join(1));
  EXPECT_THAT(news(5), IsEmpty());
  EXPECT_EQ(news(0), Json({"worker/5 (host here, pid 105) is back"}));
}

TEST(Service, logs_who_has_come_back_and_that_it_waits_for_the_next_start_after_a_mismatch) {
  testing::internal::CaptureStderr();
  Service service{Log()};
  service.serve(caller(0), "begin", begin("ps-sync", 2));
  for (int life = 0; life < 2; ++life) {
    service.serve(caller(0), "join", join(0));
    service.gone(caller(0));
  }
  rpc::Message other = join(1);
  other.head["plan"] = {"six parameters"};
  EXPECT_THROW(service.serve(caller(1), "join", other), Error);
  service.gone(caller(1));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("worker/0 (host here, pid 100) is back"));
  EXPECT_THAT(log, HasSubstr("waiting for the next start of the job. `tutti stop` ends this server"));
}

TEST(Service, mentions_whom_its_host_has_refused_where_a_worker_has_never_come) {
  const auto shared = std::make_shared<SharedByGroups>();
  Service service(Log(LogLevel::Off), {.shared = shared});
  const auto call = [&](uint64_t id, const char* method, const rpc::Message& request) {
    return service.serve(caller(id), method, request);
  };
  call(0, "begin", begin("ps-async", 2, 0));
  call(0, "join", join(0));
  shared->refused()->note("10.0.0.3:4711 was refused: the caller has another secret than this server");
  rpc::Message fits{head(), {}};
  fits.head.update({{"fits", 1}, {"patience", 1}});
  expect_error(ErrorKind::Timeout, HasSubstr("another secret"), [&] { call(0, "await_finish", fits); });
}

// The gradients of both workers would wait for room that the other one takes.
TEST(Service, says_before_the_first_step_that_the_gradients_of_all_do_not_fit) {
  Service service(Log(LogLevel::Off),
                  {.shared = std::make_shared<SharedByGroups>(3 * kSize * sizeof(float) / 2)});
  const auto call = [&](uint64_t id, bool shares_memory) {
    rpc::Caller worker = caller(id);
    worker.shares_memory = shares_memory;
    return service.serve(worker, "join", join(static_cast<int>(id) - 1));
  };
  service.serve(caller(1), "begin", begin("ps-sync", 3));
  EXPECT_NO_THROW(call(1, false));
  EXPECT_NO_THROW(call(2, true));
  expect_error(ErrorKind::Overloaded,
               ::testing::AllOf(HasSubstr("40 B"), HasSubstr("30 B"), HasSubstr("--ps")),
               [&] { call(3, false); });
  rpc::Message pull{head(), {}};
  expect_error(ErrorKind::InvalidArgument, HasSubstr("not enough memory for the gradients of"),
               [&] { service.serve(caller(1), "pull", pull); });
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
