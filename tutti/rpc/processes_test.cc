// Tests that need several processes: shared memory between them, and killed processes.
#include <csignal>
#include <cstdlib>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/address.h"
#include "tutti/base/test_errors.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/test_peer.h"
#include "tutti/rpc/test_raw_socket.h"
#include "tutti/rpc/test_service.h"

namespace tutti::rpc {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr size_t kLarge = size_t{64} << 20;

TEST(Processes, bytes_go_and_come_over_the_wire) {
  const Peer server({"serve"});
  Channel channel(server.word());
  const auto bytes = pattern(kLarge);
  EXPECT_TRUE(equal(channel.call("echo", {{}, {{bytes}}}).pieces.at(0).bytes, bytes));
}

TEST(Processes, a_host_that_has_run_out_of_descriptors_lets_callers_in_when_some_are_free_again) {
  const Peer server({"serve", "100"});
  {
    std::vector<std::unique_ptr<RawSocket>> idle;
    for (int i = 0; i < 200; ++i)
      idle.push_back(std::make_unique<RawSocket>(parse_address(server.word()).port));
    while (server.descriptors() < 60) std::this_thread::yield();
  }
  Channel channel(server.word());
  EXPECT_NO_THROW(channel.connect(kEventually));
}

TEST(Processes, an_arena_is_seen_by_the_other) {
  const Peer server({"serve"});
  const auto arena = std::make_shared<Arena>();
  Channel channel(server.word(), {.arena = arena});
  const auto bytes = pattern(kLarge);
  const auto from = arena->allocate(kLarge);
  const auto to = arena->allocate(kLarge);
  std::copy(bytes.begin(), bytes.end(), from.begin());
  channel.call("echo", {{}, {{from}}}, {.into = {to}});
  EXPECT_TRUE(equal(to, bytes));
}

// The caller is killed repeatedly while it sends and receives.
TEST(Processes, a_host_lives_on_when_callers_are_killed) {
  TestService service;
  const Host host({}, service);
  const std::string size = std::to_string(kLarge);
  for (size_t round = 1; round <= 6; ++round) {
    std::vector<std::string> arguments = {"echo", address_of(host), size};
    if (round % 2 == 0) arguments.emplace_back("arena");
    Peer caller(arguments);
    EXPECT_EQ(caller.word(), "going");
    service.await_served(round * 3);
    caller.kill();
    service.await_gone(round);
  }
  Channel channel(address_of(host));
  EXPECT_NO_THROW(channel.call("nothing", {}));
}

TEST(Processes, a_caller_that_is_killed_is_told_of_while_its_request_is_served) {
  TestService service;
  const Host host({}, service);
  Peer caller({"wait", address_of(host)});
  service.await_waiting(1);
  caller.kill();
  service.await_gone(1);
}

class Killed : public testing::TestWithParam<bool> {};

TEST_P(Killed, a_server_is_lost_and_can_come_back) {
  Peer server({"serve"});
  const auto arena = std::make_shared<Arena>();
  Channel channel(server.word(), {.who = "ps/0", .arena = GetParam() ? arena : nullptr});
  std::vector<std::byte> heap(2 * kLarge);
  const Bytes memory = GetParam() ? arena->allocate(2 * kLarge) : Bytes(heap);
  std::promise<void> going;
  auto failed = std::async(std::launch::async, [&] {
    return error_of(ErrorKind::PeerLost, [&] {
      for (int i = 0;; ++i) {
        channel.call("echo", {{}, {{memory.first(kLarge)}}}, {.into = {memory.last(kLarge)}});
        if (i == 2) going.set_value();
      }
    });
  });
  going.get_future().wait();
  server.kill();
  EXPECT_THAT(failed.get(), HasSubstr("ps/0: the connection ended during 'echo'"));
}

INSTANTIATE_TEST_SUITE_P(Arena, Killed, testing::Bool());

// The server stops while a request is being sent: nothing may refer to the request when the call has thrown.
TEST(Processes, a_server_that_is_stopped_is_a_timeout) {
  Peer server({"serve"});
  Channel channel(server.word(), {.who = "ps/0"});
  channel.call("nothing", {});
  server.signal(SIGSTOP);
  auto bytes = std::make_unique<std::vector<std::byte>>(kLarge);
  expect_error(ErrorKind::Timeout, HasSubstr("ps/0: no answer to 'echo' for 0.5 s"), [&] {
    channel.call("echo", {{}, {{*bytes}}}, {.timeout = milliseconds(500)});
  });
  bytes.reset();
  expect_error(ErrorKind::Timeout, HasSubstr("ps/0"),
               [&] { channel.call("nothing", {}, {.timeout = milliseconds(300)}); });
  server.signal(SIGCONT);
  EXPECT_NO_THROW(channel.call("nothing", {}));
}

TEST(Processes, a_host_ends_also_when_a_caller_is_stopped_in_the_middle) {
  TestService service;
  auto host = std::make_unique<Host>(HostOptions{}, service);
  Peer caller({"echo", address_of(*host), std::to_string(4 * kLarge)});
  service.await_served(2);
  caller.signal(SIGSTOP);
  host.reset();
}

TEST(Processes, proxies_are_not_used) {
  TestService service;
  const Host host({}, service);
  const std::vector<const char*> names = {"http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY",
                                          "all_proxy"};
  for (const char* name : names) setenv(name, "http://127.0.0.1:1", 1);
  const Peer caller({"echo", "localhost:" + std::to_string(host.port()), "1000"});
  for (const char* name : names) unsetenv(name);
  EXPECT_EQ(caller.word(), "going");
}

}  // namespace
}  // namespace tutti::rpc
