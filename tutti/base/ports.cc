#include "tutti/base/ports.h"

#include <arpa/inet.h>
#include <cerrno>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti {
namespace {

// A port stays taken for as long as its socket lives, so that the next one is another.
struct BoundPort {
  FileDescriptor socket;
  int port;
};

BoundPort bind_any() {
  FileDescriptor descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (descriptor.get() < 0) fail_errno(errno, "opening a socket to find a free port");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(descriptor.get(), generic, size) != 0 || getsockname(descriptor.get(), generic, &size) != 0) {
    fail(ErrorKind::Overloaded, "no free port on 127.0.0.1: {}; `tutti doctor` shows the range",
         errno_text(errno));
  }
  return {std::move(descriptor), ntohs(address.sin_port)};
}

}  // namespace

std::vector<int> free_ports(int count) {
  std::vector<BoundPort> bound;
  std::vector<int> ports;
  for (int i = 0; i < count; ++i) {
    bound.push_back(bind_any());
    ports.push_back(bound.back().port);
  }
  return ports;
}

}  // namespace tutti
