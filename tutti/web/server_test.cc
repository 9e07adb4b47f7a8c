#include "tutti/web/server.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <memory>
#include <stdexcept>
#include <sys/socket.h>

#include <gmock/gmock.h>

#include "tutti/base/net.h"
#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"

namespace tutti::web::server_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kLong{60000};

Answer echo(const Request& request) {
  if (request.path == "/throw") throw std::runtime_error("broken");
  return {.body = request.method + " " + request.path};
}

std::string local(int port) { return "127.0.0.1:" + std::to_string(port); }

// A caller that sends what it likes, when it likes.
class Caller {
 public:
  explicit Caller(int port) {
    socket_ = connect_within(resolve("127.0.0.1", port).addresses.front(), kLong).socket;
    const int flags = fcntl(socket_.get(), F_GETFL);
    fcntl(socket_.get(), F_SETFL, flags & ~O_NONBLOCK);
  }
  void send(const std::string& bytes) const {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t some = ::send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (some < 0) return;
      sent += static_cast<size_t>(some);
    }
  }
  // Returns what comes until the end of the connection.
  std::string rest() const {
    std::string all;
    std::array<char, 4096> bytes{};
    for (ssize_t got = 1; got > 0;) {
      got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (got > 0) all.append(bytes.data(), static_cast<size_t>(got));
    }
    return all;
  }

 private:
  FileDescriptor socket_;
};

TEST(Server, answers_and_refuses) {
  const Server server("127.0.0.1:0", echo);
  const std::string address = local(server.port());
  EXPECT_EQ(get(address, "/x", "", kLong).body, "GET /x");
  EXPECT_EQ(get(address, "/throw", "", kLong).status, 500);
  EXPECT_EQ(get(address, "/throw", "", kLong).body, "broken\n");
  EXPECT_EQ(get(address, "no path", "", kLong).status, 400);
  const Server secret("127.0.0.1:0", echo, {.admission = {.secret = "s"}});
  EXPECT_EQ(get(local(secret.port()), "/x", "", kLong).status, 401);
  EXPECT_EQ(get(local(secret.port()), "/x", "other", kLong).status, 401);
  EXPECT_EQ(get(local(secret.port()), "/x", "s", kLong).status, 200);
}

TEST(Server, takes_a_request_byte_by_byte) {
  const Server server("127.0.0.1:0", echo);
  const Caller caller(server.port());
  for (const char c : std::string("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")) caller.send({c});
  EXPECT_THAT(caller.rest(), HasSubstr("\r\n\r\nGET /slow"));
}

TEST(Server, answers_others_while_a_caller_is_silent_and_closes_that_one) {
  const Server server("127.0.0.1:0", echo, {.patience = milliseconds(2000)});
  const Caller silent(server.port());
  const Caller slow(server.port());
  slow.send("GET /");
  EXPECT_EQ(get(local(server.port()), "/x", "", kLong).body, "GET /x");
  EXPECT_EQ(silent.rest(), "");
  EXPECT_EQ(slow.rest(), "");
}

TEST(Server, closes_the_oldest_of_too_many_connections) {
  const Server server("127.0.0.1:0", echo, {.patience = kLong, .most_connections = 2});
  const Caller first(server.port());
  const Caller second(server.port());
  const Caller third(server.port());
  EXPECT_EQ(first.rest(), "");
  EXPECT_EQ(get(local(server.port()), "/x", "", kLong).body, "GET /x");
  EXPECT_EQ(second.rest(), "");
  third.send("GET /third HTTP/1.0\r\n\r\n");
  EXPECT_THAT(third.rest(), HasSubstr("GET /third"));
}

TEST(Server, refuses_what_is_too_long_and_the_caller_gets_the_answer) {
  const Server server("127.0.0.1:0", echo);
  const Caller caller(server.port());
  caller.send("GET /" + std::string(1 << 20, 'a'));
  EXPECT_THAT(caller.rest(), HasSubstr("HTTP/1.1 431 "));
}

TEST(Server, ends_while_callers_are_connected) {
  auto server = std::make_unique<Server>("127.0.0.1:0", echo, ServerOptions{.patience = kLong});
  const Caller silent(server->port());
  EXPECT_EQ(get(local(server->port()), "/x", "", kLong).status, 200);
  server.reset();
  EXPECT_EQ(silent.rest(), "");
}

TEST(Server, names_the_obstacle) {
  const Server server("127.0.0.1:0", echo);
  error_of(ErrorKind::Overloaded, [&] { const Server second(local(server.port()), echo); });
  error_of(ErrorKind::PeerLost, [&] { get(local(free_ports(1).front()), "/", "", kLong); });
}

}  // namespace
}  // namespace tutti::web::server_test
