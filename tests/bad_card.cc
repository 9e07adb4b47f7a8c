// A library to preload, which makes a bad network card of the system's: with the variable
// TUTTI_TEST_BAD_CARD, "FILE NUMBER BYTES", it changes one bit of what a process receives from the network,
// in the NUMBERth message of at least so many bytes. FILE is made then; once it is there, no other process
// changes anything.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

bool is_of_network(int socket) {
  int family = 0;
  socklen_t size = sizeof family;
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 && family == AF_INET;
}

bool is_due(ssize_t received) {
  static std::atomic<int> messages = 0;
  const char* const order = std::getenv("TUTTI_TEST_BAD_CARD");
  char file[1000];
  int number = 0;
  int bytes = 0;
  if (order == nullptr || std::sscanf(order, "%999s %d %d", file, &number, &bytes) != 3) return false;
  if (received < bytes || ++messages != number) return false;
  const int made = open(file, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (made >= 0) close(made);
  return made >= 0;
}

void change_last_byte(const msghdr& message, ssize_t received) {
  auto left = static_cast<size_t>(received);
  for (size_t i = 0; i < message.msg_iovlen; ++i) {
    const iovec& part = message.msg_iov[i];
    if (left <= part.iov_len) {
      static_cast<char*>(part.iov_base)[left - 1] ^= 1;
      return;
    }
    left -= part.iov_len;
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ssize_t recvmsg(int socket, msghdr* message, int flags) {
  using Function = ssize_t (*)(int, msghdr*, int);
  static const auto kReal = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "recvmsg"));
  const ssize_t received = kReal(socket, message, flags);
  if (received > 0 && is_of_network(socket) && is_due(received)) change_last_byte(*message, received);
  return received;
}
