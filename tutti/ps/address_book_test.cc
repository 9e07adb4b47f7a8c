#include "tutti/ps/address_book.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/cluster/identity.h"
#include "tutti/cluster/roles.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

rpc::Caller server(uint64_t id) {
  return {id, {{"task", "ps/0"}, {"host", "here"}, {"pid", 100 + id}}, "nowhere"};
}

rpc::Message announcement(int port) { return {{{"task", "ps/0"}, {"port", port}}, {}}; }

int64_t port_in(AddressBook& book, const std::string& task) {
  return book.serve(server(9), "find", {{{"task", task}}, {}}).head.at("port").get<int64_t>();
}

TEST(AddressBook, knows_those_who_are_there) {
  AddressBook book(ClusterSpec::parse("ps|a:0;a:0,worker|a:1"));
  EXPECT_EQ(port_in(book, "ps/0"), 0);
  book.serve(server(1), "announce", announcement(4711));
  book.serve(server(1), "announce", announcement(4711));
  EXPECT_EQ(port_in(book, "ps/0"), 4711);
  EXPECT_EQ(port_in(book, "ps/1"), 0);
  book.gone(server(2));
  EXPECT_EQ(port_in(book, "ps/0"), 4711);
  book.gone(server(1));
  EXPECT_EQ(port_in(book, "ps/0"), 0);
  book.serve(server(3), "announce", announcement(4712));
  EXPECT_EQ(port_in(book, "ps/0"), 4712);
}

TEST(AddressBook, refuses_a_second_task_of_one_name_and_what_is_not_for_it) {
  AddressBook book(ClusterSpec::parse("ps|a:0;a:0,worker|a:1"));
  book.serve(server(1), "announce", announcement(4711));
  expect_error(ErrorKind::InvalidArgument, "ps/0 is already registered: ps/0 (host here, pid 101)",
               [&] { book.serve(server(2), "announce", announcement(4712)); });
  EXPECT_EQ(port_in(book, "ps/0"), 4711);
  for (const char* stranger : {"ps/2", "worker/0", ""}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("the chief's cluster has no"),
                 [&] { port_in(book, stranger); });
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'pull'"),
               [&] { book.serve(server(2), "pull", announcement(0)); });
  for (const int port : {0, -1, 65536}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("port"),
                 [&] { book.serve(server(3), "announce", announcement(port)); });
  }
}

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
  std::string find(milliseconds patience) const {
    return find_address(*channel_to_chief(cluster_, {}), cluster_, {.job = "ps", .index = 0}, patience);
  }

  const ClusterSpec cluster_ =
      ClusterSpec::parse(fmt::format("ps|127.0.0.1:0,worker|127.0.0.1:{}", free_ports(1).front()));
  const Context chief_ = task("worker");
  const Context server_ = task("ps");
};

TEST_F(OpenBook, is_asked_before_the_chief_is_there_and_again_by_one_that_came_back) {
  const Announcement announcement(server_, 4711);
  for (int life = 0; life < 2; ++life) {
    const OpenAddressBook book(chief_);
    EXPECT_EQ(find(milliseconds(60000)), "127.0.0.1:4711");
  }
}

TEST_F(OpenBook, lets_the_second_of_one_name_fail) {
  const OpenAddressBook book(chief_);
  const Announcement first(server_, 4711);
  EXPECT_EQ(find(milliseconds(60000)), "127.0.0.1:4711");
  const Announcement second(server_, 4712);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("ps/0 is already registered"), [&] {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      second.check();
      std::this_thread::yield();
    }
  });
  first.check();
  EXPECT_EQ(find(milliseconds(60000)), "127.0.0.1:4711");
}

TEST_F(OpenBook, says_who_has_not_told_its_port) {
  expect_error(ErrorKind::Timeout, HasSubstr("worker/0 (127.0.0.1:"), [&] { find(milliseconds(100)); });
  const OpenAddressBook book(chief_);
  expect_error(ErrorKind::Timeout,
               AllOf(HasSubstr("ps/0 (127.0.0.1:0) has not reported its port to worker/0 (127.0.0.1:"),
                     HasSubstr(", the chief")),
               [&] { find(milliseconds(100)); });
}

}  // namespace
}  // namespace tutti::ps
