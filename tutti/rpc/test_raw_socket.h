#pragma once

#include <array>
#include <cerrno>
#include <netinet/in.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/time.h>
#include <utility>

#include <gtest/gtest.h>

#include "tutti/base/file.h"

namespace tutti::rpc {

// For tests: a raw TCP connection.
class RawSocket {
 public:
  explicit RawSocket(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval timeout{60, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  explicit RawSocket(FileDescriptor connected) : socket_(std::move(connected)) {}
  int descriptor() const { return socket_.get(); }
  void say(std::string_view bytes) const { send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Closes the sending direction.
  void fall_silent() const { shutdown(socket_.get(), SHUT_WR); }
  // Waits for at least one byte and returns what has arrived; "" at the end.
  std::string hear() const {
    std::string bytes(1 << 16, '\0');
    const ssize_t size = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return bytes;
  }
  // Returns when the other side has closed the connection.
  void await_end() const {
    std::array<char, 4096> bytes{};
    ssize_t size = 0;
    do {
      size = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    } while (size > 0);
    EXPECT_TRUE(size == 0 || errno == ECONNRESET) << errno_text(errno);
  }

 private:
  const FileDescriptor socket_;
};

}  // namespace tutti::rpc
