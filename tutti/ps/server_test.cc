// Tests a parameter server that several groups of workers share, without a network.
#include "tutti/ps/server.h"

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/ps/test_messages.h"
#include "tutti/ps/wire.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ServiceOptions four_workers() {
  return {.workers = {{"worker/0", "h:1"}, {"worker/1", "h:2"}, {"worker/2", "h:3"}, {"worker/3", "h:4"}}};
}

// A worker of a group, whose id is its rank in the job.
rpc::Caller member(int rank, const std::vector<int>& group) {
  rpc::Caller worker = caller(static_cast<uint64_t>(rank));
  worker.hello["group"] = group;
  return worker;
}

class Groups : public ::testing::Test {
 protected:
  explicit Groups(const ServiceOptions& options = four_workers()) : services_(Log(LogLevel::Off), options) {}
  rpc::Message call(const rpc::Caller& worker, const char* method, const rpc::Message& request = {}) {
    return services_.serve(worker, method, request);
  }
  void start(const char* strategy, const std::vector<int>& group) {
    call(member(group.front(), group), "begin", begin(strategy, static_cast<int>(group.size())));
    for (size_t rank = 0; rank < group.size(); ++rank)
      call(member(group[rank], group), "join", join(static_cast<int>(rank)));
  }
  void finish(const std::vector<int>& group) {
    call(member(group.front(), group), "end");
    for (const int rank : group) {
      call(member(rank, group), "leave");
      services_.gone(member(rank, group));
    }
  }
  bool is_over() { return services_.join_for(milliseconds(0)); }

  const std::vector<int> even_ = {0, 2};
  const std::vector<int> odd_ = {1, 3};
  GroupServices services_;
};

TEST_F(Groups, have_parameters_and_settings_of_their_own) {
  start("ps-async", even_);
  start("ps-sync", odd_);
  EXPECT_TRUE(
      torch::equal(values_in(call(member(2, even_), "push", push(0.25))), torch::full({kSize}, 0.75)));
  EXPECT_TRUE(torch::equal(values_in(call(member(3, odd_), "pull", {head(), {}})), torch::ones({kSize})));
  EXPECT_FALSE(services_.takes_incoming(member(2, even_), "push"));
  EXPECT_TRUE(services_.takes_incoming(member(3, odd_), "push"));
}

TEST_F(Groups, have_a_copy_of_another_servers_part_beside_their_own) {
  rpc::Caller of_copy = caller(4);
  of_copy.hello["copy"] = true;
  call(of_copy, "begin", begin("ps-sync", 1));
  call(of_copy, "join", join(0));
  EXPECT_TRUE(services_.takes_incoming(of_copy, "push"));
  rpc::Message push = push_of_step(0, 0.25);
  push.head["copy"] = true;
  EXPECT_TRUE(call(of_copy, "push", push).pieces.empty()) << "it has no answer to anybody";
  EXPECT_EQ(call(of_copy, "state").head.at("step"), 1);
  EXPECT_FALSE(call(caller(0), "state").head.at("begun").get<bool>());
  EXPECT_EQ(services_.callers(), 1) << "the job does not wait for those of the copy";
}

TEST_F(Groups, have_notes_of_their_own) {
  start("ps-async", even_);
  start("ps-async", odd_);
  rpc::Message note{head(), {}};
  note.head.update({{"key", "k"}, {"value", 5}, {"patience", 1}});
  call(member(0, even_), "note", note);
  EXPECT_EQ(call(member(2, even_), "read", note).head.at("value"), 5);
  expect_error(ErrorKind::Timeout, HasSubstr("the chief, worker/1"),
               [&] { call(member(3, odd_), "read", note); });
}

TEST_F(Groups, name_the_chief_of_their_own_that_has_not_come) {
  const auto missing = call(member(3, odd_), "await", {{{"patience", 1}}, {}}).head.at("missing");
  EXPECT_EQ(missing, Json({"the chief, worker/1 (h:2), which has not connected"}));
}

TEST_F(Groups, end_the_server_when_every_worker_has_finished_in_one) {
  start("ps-async", even_);
  finish(even_);
  EXPECT_FALSE(is_over());
  start("ps-async", odd_);
  EXPECT_FALSE(is_over());
  finish(odd_);
  EXPECT_TRUE(is_over());
}

TEST_F(Groups, are_told_apart_from_those_of_other_workers_that_split_differently) {
  start("ps-async", even_);
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("worker/1"), HasSubstr("in the group of worker/1, worker/2 and worker/3"),
                     HasSubstr("in the group of worker/0 and worker/2")),
               [&] {
                 call(member(1, {1, 2, 3}), "state");
               });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("in the group of all workers"),
               [&] { call(caller(3), "state"); });
  EXPECT_NO_THROW(call(member(1, odd_), "state"));
}

TEST_F(Groups, may_be_others_at_the_next_start_after_a_mismatch) {
  call(member(0, even_), "begin", begin("ps-sync", 2));
  call(member(0, even_), "join", join(0));
  rpc::Message other = join(1);
  other.head["plan"] = {"six parameters"};
  EXPECT_THROW(call(member(2, even_), "join", other), Error);
  services_.gone(member(2, even_));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("in the group of worker/0 and worker/2"), [&] {
    call(member(1, {1, 2}), "state");
  });
  services_.gone(member(0, even_));
  EXPECT_NO_THROW(start("ps-sync", {1, 2}));
}

TEST_F(Groups, that_make_no_sense_are_refused) {
  for (const Json& group : {Json::array(), Json({1, 1}), Json({2, 1}), Json({4}), Json({-1}), Json("all"),
                            Json({0.5}), Json(nullptr), Json({uint64_t{1} << 63})}) {
    rpc::Caller worker = caller(1);
    worker.hello["group"] = group;
    expect_error(ErrorKind::InvalidArgument, HasSubstr("has 4 workers"), [&] { call(worker, "state"); });
    services_.gone(worker);
  }
}

TEST_F(Groups, with_a_mismatch_end_alone_and_are_named) {
  start("ps-async", even_);
  call(member(1, odd_), "begin", begin("ps-async", 2));
  call(member(1, odd_), "join", join(0));
  rpc::Message other = join(1);
  other.head["plan"] = {"six parameters"};
  const auto text = AllOf(HasSubstr("the group of worker/1 and worker/3: "), HasSubstr("six parameters"));
  expect_error(ErrorKind::InvalidArgument, text, [&] { call(member(3, odd_), "join", other); });
  expect_error(ErrorKind::InvalidArgument, text, [&] { call(member(1, odd_), "push", push(0.25)); });
  EXPECT_NO_THROW(call(member(0, even_), "push", push(0.25)));
  for (const int rank : odd_) services_.gone(member(rank, odd_));
  finish(even_);
  EXPECT_FALSE(is_over());
  start("ps-async", odd_);
  finish(odd_);
  EXPECT_TRUE(is_over());
}

TEST_F(Groups, are_all_stopped_at_once) {
  start("ps-async", even_);
  start("ps-async", odd_);
  rpc::Caller tool = caller(9);
  call(tool, "stop");
  EXPECT_FALSE(is_over());  // the caller still has to get its answer
  services_.gone(tool);
  EXPECT_TRUE(is_over());
}

TEST_F(Groups, are_not_waited_for_when_the_server_is_told_to_end) {
  start("ps-async", even_);
  services_.end();
  EXPECT_FALSE(is_over());
  for (const int rank : even_) services_.gone(member(rank, even_));
  EXPECT_TRUE(is_over());
}

class GroupsInLittleMemory : public Groups {
 protected:
  // The gradients of a worker take 20 bytes, and a buffer for them 22.
  GroupsInLittleMemory() : Groups(options()) {}
  static ServiceOptions options() {
    ServiceOptions options = four_workers();
    options.shared = std::make_shared<SharedByGroups>(30);
    return options;
  }
};

TEST_F(GroupsInLittleMemory, share_it) {
  start("ps-sync", {0});
  expect_error(ErrorKind::Overloaded, AllOf(HasSubstr("need 20 B"), HasSubstr("at most 8 B")),
               [&] { start("ps-sync", {1}); });
  services_.gone(member(1, {1}));
  services_.gone(member(0, {0}));
  EXPECT_NO_THROW(start("ps-sync", {1}));
}

class ImpatientGroups : public Groups {
 protected:
  ImpatientGroups() : Groups(options()) {}
  static ServiceOptions options() {
    ServiceOptions options = four_workers();
    options.patience = milliseconds(1);
    return options;
  }
};

TEST_F(ImpatientGroups, do_not_end_the_others_when_one_has_lost_a_worker_at_its_end) {
  start("ps-async", even_);
  start("ps-async", odd_);
  call(member(0, even_), "end");
  call(member(0, even_), "leave");
  for (const int rank : even_) services_.gone(member(rank, even_));
  for (int look = 0; look < 5; ++look) EXPECT_FALSE(services_.join_for(milliseconds(1)));
  EXPECT_NO_THROW(call(member(1, odd_), "push", push(0.25)));
  finish(odd_);
  expect_error(ErrorKind::Timeout, AllOf(HasSubstr("worker/2"), Not(HasSubstr("worker/1"))), [&] {
    while (!services_.join_for(milliseconds(1))) {
    }
  });
}

}  // namespace
}  // namespace tutti::ps
