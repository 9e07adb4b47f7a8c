// Tests callers and servers that are other programs, or other versions of Tutti.
#include <string>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/version.h"
#include "tutti/net/listener.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/frame.h"
#include "tutti/rpc/test_raw_socket.h"
#include "tutti/rpc/test_service.h"

namespace tutti::rpc {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns all that a host says to a caller that says this.
std::string told(const Host& host, std::string_view bytes) {
  const RawSocket socket(host.port());
  socket.say(bytes);
  std::string all;
  for (std::string more = socket.hear(); !more.empty(); more = socket.hear()) all += more;
  return all;
}

class Foreign : public testing::Test {
 protected:
  TestService service_;
  const Host host_{{}, service_};
};

TEST_F(Foreign, callers_of_another_protocol_are_told_both_versions) {
  EXPECT_THAT(told(host_, "tutti-rpc 99 9.8.7\n"), AllOf(HasSubstr("Tutti 9.8.7"), HasSubstr("protocol 99"),
                                                         HasSubstr(fmt::format("Tutti {}", version())),
                                                         HasSubstr(fmt::format("protocol {}", kProtocol))));
}

TEST_F(Foreign, callers_that_are_not_tutti_are_told_so) {
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("PRI * HTTP/2.0\r\n\r\n"),
        "tutti-rpc 1" + std::string(200, '0'), std::string("x")})
    EXPECT_THAT(told(host_, words), HasSubstr("another program")) << words;
}

TEST_F(Foreign, callers_with_tls_are_told_that_there_is_none) {
  EXPECT_THAT(told(host_, std::string_view("\x16\x03\x01\x02\x00", 5)), HasSubstr("--tls-"));
}

// Answers every connection with these bytes, and reads what comes until the caller has gone.
class OtherServer {
 public:
  explicit OtherServer(std::string bytes)
      : listener_("127.0.0.1:0"), thread_([this, bytes = std::move(bytes)] {
          FileDescriptor socket;
          while (socket.get() < 0) socket = listener_.accept(std::chrono::milliseconds(100));
          const RawSocket raw(std::move(socket));
          raw.say(bytes);
          while (!raw.hear().empty()) std::this_thread::yield();
        }) {}
  ~OtherServer() { thread_.join(); }
  OtherServer(const OtherServer&) = delete;
  OtherServer& operator=(const OtherServer&) = delete;
  std::string address() const { return "127.0.0.1:" + std::to_string(listener_.port()); }

 private:
  const net::Listener listener_;
  std::thread thread_;
};

TEST(ForeignServer, is_an_error_that_says_so) {
  for (const std::string& bytes :
       {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("SSH-2.0-x\r\n"),
        std::string("\x00\x00\x12\x04\x00\x00\x00\x00\x00", 9)}) {
    const OtherServer server(bytes);
    Channel channel(server.address(), {.who = "ps/0"});
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("ps/0: "), HasSubstr("not one of Tutti")),
                 [&] { channel.connect(kEventually); });
  }
}

TEST(ForeignServer, of_another_version_is_named) {
  const OtherServer server("tutti-rpc 99 9.8.7\n");
  Channel channel(server.address(), {.who = "ps/0"});
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("ps/0: "), HasSubstr("Tutti 9.8.7"), HasSubstr("run the same version")),
               [&] { channel.connect(kEventually); });
}

}  // namespace
}  // namespace tutti::rpc
