#include "tutti/base/net.h"

#include <cerrno>
#include <fstream>
#include <netinet/in.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tutti/base/ports.h"
#include "tutti/base/secret.h"
#include "tutti/base/this_host.h"

namespace tutti::net_test {
namespace {

using std::chrono::milliseconds;

FileDescriptor listen_on_loopback(SocketAddress& address) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  address = resolve("127.0.0.1", 0).addresses.at(0);
  EXPECT_EQ(bind(socket.get(), address.get(), address.size), 0);
  EXPECT_EQ(listen(socket.get(), 1), 0);
  EXPECT_EQ(getsockname(socket.get(), address.get(), &address.size), 0);
  return socket;
}

TEST(Net, resolves_names_and_numbers) {
  const Resolved found = resolve("127.0.0.1", 2222);
  ASSERT_EQ(found.addresses.size(), 1U);
  EXPECT_EQ(numeric(found.addresses[0]), "127.0.0.1");
  EXPECT_EQ(port_of(found.addresses[0]), 2222);
  EXPECT_EQ(numeric(resolve("::1", 1).addresses.at(0)), "::1");
  EXPECT_EQ(numeric(resolve("::ffff:10.0.0.3", 1).addresses.at(0)), "10.0.0.3");
  const Resolved none = resolve("no-such-host.invalid", 1);
  EXPECT_TRUE(none.addresses.empty());
  EXPECT_NE(none.trouble, "");
}

TEST(Net, connects_or_says_why_not) {
  SocketAddress address;
  const FileDescriptor listener = listen_on_loopback(address);
  // This is longer than poll(2) can count.
  const Connected connected = connect_within(address, std::chrono::hours(24 * 365));
  EXPECT_EQ(connected.error, 0);
  EXPECT_GE(connected.socket.get(), 0);
  const SocketAddress nobody = resolve("127.0.0.1", free_ports(1)[0]).addresses.at(0);
  EXPECT_EQ(connect_within(nobody, milliseconds(1000)).error, ECONNREFUSED);
}

TEST(Net, gives_up_an_address_that_does_not_answer) {
  SocketAddress address;
  const FileDescriptor listener = listen_on_loopback(address);
  // Opens more connections than the backlog holds: the kernel then leaves connections unanswered.
  std::vector<Connected> waiting;
  for (int i = 0; i < 5 && (waiting.empty() || waiting.back().error == 0); ++i)
    waiting.push_back(connect_within(address, milliseconds(100)));
  EXPECT_EQ(waiting.back().error, ETIMEDOUT);
}

TEST(ThisHost, leaves_out_addresses_that_others_cannot_reach) {
  for (const std::string& address : own_addresses()) {
    EXPECT_NE(address.substr(0, 4), "127.");
    EXPECT_NE(address.substr(0, 4), "fe80");
    EXPECT_EQ(resolve(address, 1).addresses.size(), 1U) << address;
  }
}

// The number of the first process namespace is the same on all machines, so this number does not suffice.
TEST(ThisHost, is_told_from_others_by_its_boot) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  ASSERT_TRUE(file >> boot);
  EXPECT_TRUE(host_identity().starts_with(boot + "/")) << host_identity();
}

TEST(RandomKey, is_another_one_every_time) {
  EXPECT_EQ(random_key().size(), 32U);
  EXPECT_EQ(random_key().find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(random_key(), random_key());
}

}  // namespace
}  // namespace tutti::net_test
