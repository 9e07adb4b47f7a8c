#include "tutti/transport/board/launcher_store.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLauncherPause{20};
constexpr milliseconds kLauncherConnectTime{3000};  // for each of several addresses

// Waits until the launcher listens, and connects to it.
FileDescriptor await_launcher(const Address& launcher, Clock::time_point deadline, milliseconds timeout) {
  std::string why;
  while (true) {
    const Resolved found = resolve(launcher.host, launcher.port);
    if (found.addresses.empty()) why = found.trouble;
    for (const SocketAddress& address : found.addresses) {
      Connected connected = connect_within(address, std::min(until(deadline), kLauncherConnectTime));
      if (connected.error == 0) return std::move(connected.socket);
      why = errno_text(connected.error);
    }
    if (Clock::now() >= deadline)
      fail(ErrorKind::Timeout,
           "the launcher (torchrun) did not answer at {} within {:g} s ({}). Check that it is running, that "
           "MASTER_ADDR is its host, and that no firewall blocks the connection; or raise --timeout",
           to_string(launcher), seconds(timeout), why);
    std::this_thread::sleep_for(std::min(kLauncherPause, until(deadline)));
  }
}

// A client of the store: each call is one byte, followed by its arguments, with numbers in the byte order of
// the machine. Keys and values have their length before them. A call is sent as a whole, since the store
// closes a connection of whose greeting it has read a part only.
class Store {
 public:
  Store(FileDescriptor connection, Clock::time_point deadline)
      : connection_(std::move(connection)), deadline_(deadline) {
    constexpr uint32_t kGreeting = 0x3C85F7CE;
    call(Call::Greet);
    append(&kGreeting, sizeof(kGreeting));
    send();
  }

  void set(const std::string& key, const std::string& value) {
    call(Call::Set);
    append_text(key);
    append_text(value);
    send();
  }
  bool has(const std::string& key) {
    call(Call::Check);
    append_number(1);
    append_text(key);
    send();
    uint8_t missing = 0;
    receive(&missing, sizeof(missing));
    return missing == 0;
  }
  std::string get(const std::string& key) {
    constexpr uint64_t kLongest = 1 << 20;
    call(Call::Get);
    append_text(key);
    send();
    uint64_t size = 0;
    receive(&size, sizeof(size));
    if (size > kLongest) fail(ErrorKind::DataLoss, "it sends a text of {} bytes", size);
    std::string value(size, '\0');
    receive(value.data(), size);
    return value;
  }

 private:
  enum class Call : uint8_t { Greet = 0, Set = 1, Get = 3, Check = 5 };

  void call(Call what) { append(&what, sizeof(what)); }
  void append(const void* bytes, size_t size) { unsent_.append(static_cast<const char*>(bytes), size); }
  void append_number(uint64_t number) { append(&number, sizeof(number)); }
  void append_text(const std::string& text) {
    append_number(text.size());
    unsent_ += text;
  }
  void send() {
    const std::string call = std::exchange(unsent_, {});
    move(POLLOUT, call.size(), [&](size_t done) {
      return ::send(connection_.get(), call.data() + done, call.size() - done, MSG_NOSIGNAL);
    });
  }
  void receive(void* bytes, size_t size) {
    move(POLLIN, size, [&](size_t done) {
      return ::recv(connection_.get(), static_cast<char*>(bytes) + done, size - done, 0);
    });
  }

  template <class Some>
  void move(short direction, size_t size, const Some& some) {
    for (size_t done = 0; done < size;) {
      pollfd ready{connection_.get(), direction, 0};
      if (::poll(&ready, 1, poll_time(deadline_)) == 0) fail(ErrorKind::Timeout, "it does not answer");
      const ssize_t count = some(done);
      if (count > 0) {
        done += static_cast<size_t>(count);
      } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        fail(ErrorKind::PeerLost, "{}", count == 0 ? "connection closed" : errno_text(errno));
      }
    }
  }

  const FileDescriptor connection_;
  const Clock::time_point deadline_;
  std::string unsent_;  // of the call that is being made
};

// Returns nullopt if rank 0 has not set the text in time.
std::optional<std::string> share(Store& store, const std::string& key, const std::optional<std::string>& text,
                                 Clock::time_point deadline) {
  if (text) {
    store.set(key, *text);
    // The answer tells that the store has it.
    return store.has(key) ? text : std::nullopt;
  }
  while (!store.has(key)) {
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(kLauncherPause);
  }
  return store.get(key);
}

}  // namespace

std::string share_through_launcher(const Address& launcher, const std::string& key,
                                   const std::optional<std::string>& text, milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  Store store(await_launcher(launcher, deadline, timeout), deadline);
  try {
    if (const auto shared = share(store, key, text, deadline)) return *shared;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Timeout)
      fail(ErrorKind::PeerLost,
           "the board of the launcher (torchrun) at {} was lost, or another program listens there: {}. Its "
           "own output says why",
           to_string(launcher), error.what());
  }
  fail(ErrorKind::Timeout,
       "nothing from rank 0 through the board of the launcher (torchrun) at {} for {:g} s. Look at rank 0's "
       "output, or raise --timeout",
       to_string(launcher), seconds(timeout));
}

}  // namespace tutti::comm
