#include "tools/launch/host_link.h"

#include <array>
#include <csignal>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"

namespace tutti::host_link_test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

class Link : public ::testing::Test {
 protected:
  Link() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    read_end_ = FileDescriptor(ends[0]);
    write_end_ = FileDescriptor(ends[1]);
  }
  void send(std::string_view text) const {
    EXPECT_EQ(write(write_end_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void expect_kill(LauncherOrders& orders) {
    const auto order = orders.next();
    ASSERT_TRUE(order);
    EXPECT_EQ(order->signal, SIGKILL);
    EXPECT_EQ(orders.descriptor(), -1);
    EXPECT_FALSE(orders.next());
  }

  FileDescriptor read_end_;
  FileDescriptor write_end_;
};

HostJob some_job() {
  return {.host = "b",
          .directory = "/tmp/a b",
          .command = {"prog", "line\nbreak", ""},
          .variables = {{"A", "=\n\"'"}},
          .cluster = ClusterSpec::parse("ps|a:1,worker|a:2;b:3"),
          .launch = "key",
          .tasks = {{.job = "worker", .index = 1}},
          .store_port = 7,
          .evaluator_restarts = 2,
          .grace = milliseconds(1500)};
}

TEST_F(Link, a_job_arrives_as_it_was_sent) {
  send(to_line(some_job()));
  const HostJob sent = some_job();
  const HostJob job = LauncherOrders(read_end_.get()).await_job(milliseconds(60'000));
  EXPECT_EQ(job.host, sent.host);
  EXPECT_EQ(job.directory, sent.directory);
  EXPECT_EQ(job.command, sent.command);
  EXPECT_EQ(job.variables, sent.variables);
  EXPECT_EQ(job.cluster, sent.cluster);
  EXPECT_EQ(job.launch, sent.launch);
  EXPECT_EQ(job.tasks, sent.tasks);
  EXPECT_EQ(job.store_port, sent.store_port);
  EXPECT_EQ(job.evaluator_restarts, sent.evaluator_restarts);
  EXPECT_EQ(job.grace, sent.grace);
}

TEST_F(Link, a_job_that_is_damaged_or_missing_is_an_error) {
  LauncherOrders orders(read_end_.get());
  expect_error(ErrorKind::PeerLost, HasSubstr("no job within 0.01 s"),
               [&] { orders.await_job(milliseconds(10)); });
  for (const char* line : {"x\n", "{}\n", "{\"host\": 1}\n", "[]\n"}) {
    send(line);
    expect_error(ErrorKind::DataLoss, HasSubstr("the message of a launcher"),
                 [&] { orders.await_job(milliseconds(60'000)); });
  }
  write_end_ = FileDescriptor();
  expect_error(ErrorKind::PeerLost, HasSubstr("is gone"), [&] { orders.await_job(milliseconds(60'000)); });
}

TEST_F(Link, texts_that_are_not_UTF_8_are_refused) {
  HostJob job = some_job();
  job.command.emplace_back("\xff");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("UTF-8"), [&] { to_line(job); });
}

TEST_F(Link, orders_come_one_by_one_and_the_end_of_the_stream_is_one_to_kill) {
  LauncherOrders orders(read_end_.get());
  EXPECT_FALSE(orders.next());
  send(std::string(kHeartbeat) + to_line(Order{SIGINT, milliseconds(30'000)}) + "nonsense\n1 2 3\n15 20");
  auto order = orders.next();
  ASSERT_TRUE(order);
  EXPECT_EQ(order->signal, SIGINT);
  EXPECT_EQ(order->grace, milliseconds(30'000));
  EXPECT_FALSE(orders.next());
  send("00\n");
  order = orders.next();
  ASSERT_TRUE(order);
  EXPECT_EQ(order->signal, SIGTERM);
  EXPECT_EQ(order->grace, milliseconds(2000));
  write_end_ = FileDescriptor();
  expect_kill(orders);
}

// A broken connection does not end, but is silent.
TEST_F(Link, silence_is_an_order_to_kill) {
  LauncherOrders orders(read_end_.get(), milliseconds(0));
  usleep(1000);
  expect_kill(orders);
}

TEST(HostLines, are_told_apart_from_output) {
  const auto ready = read_ready(
      "tutti-run-host/1 ready "
      "{\"version\":\"1\",\"ports\":[5,6],\"client\":\"c\",\"own\":\"o\"}");
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->version, "1");
  EXPECT_THAT(ready->ports, ElementsAre(5, 6));
  EXPECT_EQ(to_line(*ready),
            "tutti-run-host/1 ready "
            "{\"version\":\"1\",\"ports\":[5,6],\"client\":\"c\",\"own\":\"o\"}\n");
  EXPECT_EQ(end_line(7), "tutti-run-host/1 end 7\n");
  EXPECT_EQ(read_end("tutti-run-host/1 end 7"), 7);
  for (const char* line : {"", "tutti-run-host/1 end", "tutti-run-host/1 end x", " tutti-run-host/1 end 7",
                           "[worker/0] tutti-run-host/1 end 7"}) {
    EXPECT_FALSE(read_end(line)) << line;
    EXPECT_FALSE(read_ready(line)) << line;
  }
  expect_error(ErrorKind::DataLoss, HasSubstr("launcher"), [] { read_ready("tutti-run-host/1 ready {}"); });
}

}  // namespace
}  // namespace tutti::host_link_test
