#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/address.h"
#include "tutti/base/file.h"

namespace tutti {

// A TCP connection to another launcher, or to an unknown program. It is closed at the end of the stream and
// after every error. Not thread-safe.
class LineSocket {
 public:
  // Takes ownership of a connected non-blocking socket. `peer` is the name of the other end.
  LineSocket(FileDescriptor socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}

  bool is_open() const { return socket_.get() >= 0; }
  int descriptor() const { return socket_.get(); }  // for poll(2), which ignores a closed one's -1
  const std::string& peer() const { return peer_; }
  void close() { socket_ = FileDescriptor(); }

  // Reads without waiting. Returns the next line without its newline, or everything received so far if that
  // is more than `longest` bytes; nullopt if there is neither yet.
  std::optional<std::string> read_line(size_t longest);
  // Sends the text. If the other end does not accept all within `patience`, closes and returns false.
  bool send(std::string_view text, std::chrono::milliseconds patience);

 private:
  bool take_some();

  FileDescriptor socket_;
  std::string peer_;
  std::string received_;
};

// Listens at the port of this address, at all addresses of this machine unless it is a loopback one. Throws
// InvalidArgument if the port is in use. `what` describes the purpose of the port in errors.
FileDescriptor listen_at(const Address& address, std::string_view what);

// Accepts the next connection; nullopt if there is none.
std::optional<LineSocket> accept_at(const FileDescriptor& listener);

}  // namespace tutti
