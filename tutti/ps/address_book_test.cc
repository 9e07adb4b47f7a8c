#include "tutti/ps/address_book.h"

#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/cluster/identity.h"
#include "tutti/cluster/roles.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(AddressBook, is_needed_where_a_port_is_0_and_has_a_known_place) {
  const auto cluster = ClusterSpec::parse("ps|a:0;a:1,worker|a:2;a:0");
  EXPECT_TRUE(chooses_its_port(cluster, {"ps", 0}));
  EXPECT_FALSE(chooses_its_port(cluster, {"ps", 1}));
  EXPECT_TRUE(chooses_its_port(cluster, {"worker", 1}));
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("ps/0 has port 0"), HasSubstr("worker/0")), [] {
    chooses_its_port(ClusterSpec::parse("ps|a:0,worker|a:0"), {"ps", 0});
  });
}

class OpenBook : public ::testing::Test {
 protected:
  Context task(const std::string& job) const {
    RunConfig config;
    config.output.log_level = "off";
    config.network.start_timeout = 1;
    return {config, identity_in(cluster_, {.job = job, .index = 0}, "the test")};
  }
  std::string find(milliseconds patience, const Task& wanted = {.job = "ps", .index = 0}) const {
    return find_address(cluster_, wanted, {}, patience);
  }
  // Waits until the announcement has been refused.
  static void await_refusal(const Announcement& announcement) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      announcement.check();
      std::this_thread::yield();
    }
  }

  const ClusterSpec cluster_ =
      ClusterSpec::parse(fmt::format("ps|127.0.0.1:0,worker|127.0.0.1:{}", free_ports(1).front()));
  const Context chief_ = task("worker");
  const Context server_ = task("ps");
};

TEST_F(OpenBook, is_asked_before_the_chief_is_there_and_again_by_one_that_came_back) {
  const Announcement announcement(server_, 4711);
  for (int life = 0; life < 2; ++life) {
    const auto book = open_address_book(chief_);
    EXPECT_EQ(find(milliseconds(60000)), "127.0.0.1:4711");
  }
}

TEST_F(OpenBook, lets_the_second_of_one_name_fail) {
  const auto book = open_address_book(chief_);
  const Announcement first(server_, 4711);
  EXPECT_EQ(find(milliseconds(60000)), "127.0.0.1:4711");
  const Announcement second(server_, 4712);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("ps/0 is already registered: ps/0 (host "),
               [&] { await_refusal(second); });
  first.check();
  EXPECT_EQ(find(milliseconds(60000)), "127.0.0.1:4711");
}

TEST_F(OpenBook, says_who_has_not_told_its_port) {
  expect_error(ErrorKind::Timeout, HasSubstr("worker/0 (127.0.0.1:"), [&] { find(milliseconds(100)); });
  const auto book = open_address_book(chief_);
  expect_error(ErrorKind::Timeout,
               AllOf(HasSubstr("ps/0 (127.0.0.1:0) has not reported its port to worker/0 (127.0.0.1:"),
                     HasSubstr(", the chief")),
               [&] { find(milliseconds(100)); });
}

TEST_F(OpenBook, forgets_those_who_have_gone) {
  const auto book = open_address_book(chief_);
  {
    const Announcement announcement(server_, 4711);
    EXPECT_EQ(find(milliseconds(60000)), "127.0.0.1:4711");
  }
  while (book.board->peek("ps/0")) std::this_thread::yield();
  const Announcement next(server_, 4712);
  EXPECT_EQ(find(milliseconds(60000)), "127.0.0.1:4712");
}

TEST_F(OpenBook, refuses_those_that_are_not_in_the_cluster_of_the_chief) {
  const auto book = open_address_book(chief_);
  expect_error(ErrorKind::InvalidArgument, "the chief's cluster has no worker/0 with port 0",
               [&] { find(milliseconds(60000), {.job = "worker", .index = 0}); });
}

}  // namespace
}  // namespace tutti::ps
