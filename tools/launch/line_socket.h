#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/file.h"

namespace tutti {

// A TCP connection to another launcher, or to whoever has come in its place. Closed at the end of the stream
// and at every fault. Not thread-safe.
class LineSocket {
 public:
  // Takes over a connected socket that does not block. `peer` is what the other end is called.
  LineSocket(FileDescriptor socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}

  bool is_open() const { return socket_.get() >= 0; }
  int descriptor() const { return socket_.get(); }  // for poll(2); -1, which it skips, where closed
  const std::string& peer() const { return peer_; }
  void close() { socket_ = FileDescriptor(); }

  // Takes what has arrived, without waiting. A whole line without its newline, or all that has come once that
  // is more than `longest` bytes; nothing where there is neither yet.
  std::optional<std::string> read_line(size_t longest);
  // False, and closed, where the other end does not take it all within `patience`.
  bool send(std::string_view text, std::chrono::milliseconds patience);

 private:
  bool take_some();

  FileDescriptor socket_;
  std::string peer_;
  std::string received_;
};

// A socket that others can connect to at this port of every address of this machine. InvalidArgument where
// the port is in use. `what` says in errors what the port is for.
FileDescriptor listen_at(int port, std::string_view what);

// The next who has connected; nothing where nobody has.
std::optional<LineSocket> accept_at(const FileDescriptor& listener);

}  // namespace tutti
