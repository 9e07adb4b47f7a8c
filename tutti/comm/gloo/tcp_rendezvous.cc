#include "tutti/comm/gloo/tcp_rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/comm/gloo/c10d_compat.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How long a table may take to answer: it has a thread to itself, but its machine may be busy.
constexpr milliseconds kPatience{5000};
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{50};

milliseconds until(Clock::time_point deadline) {
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

double seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

// Carries out one call after the other in a thread of its own: c10d waits for an answer without end, and a
// server may have been stopped. A call that does so keeps the thread, which is then left behind with all that
// it uses.
class Line {
 public:
  Line() : shared_(std::make_shared<Shared>()), thread_([shared = shared_] { shared->carry_out(); }) {}

  ~Line() {
    bool stuck = false;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->closed = true;
      stuck = shared_->busy;
    }
    shared_->changed.notify_all();
    if (stuck) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // nullopt where there is no answer in time.
  template <class Result>
  std::optional<Result> call(std::function<Result()> function, milliseconds patience) {
    // Shared: the task may outlive this call.
    auto task = std::make_shared<std::packaged_task<Result()>>(std::move(function));
    auto result = task->get_future();
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->calls.push_back([task] { (*task)(); });
    }
    shared_->changed.notify_all();
    if (result.wait_for(patience) != std::future_status::ready) return std::nullopt;
    return result.get();
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> calls;  // all below: guarded by mutex
    bool busy = false;
    bool closed = false;

    void carry_out() {
      std::unique_lock lock(mutex);
      while (true) {
        changed.wait(lock, [&] { return closed || !calls.empty(); });
        if (closed) return;
        const auto call = std::move(calls.front());
        calls.pop_front();
        busy = true;
        lock.unlock();
        call();
        lock.lock();
        busy = false;
      }
    }
  };

  const std::shared_ptr<Shared> shared_;  // shared: a thread that is stuck outlives the line
  std::thread thread_;
};

// Values have a sign in front, so that none is empty: c10d's compareSet replaces what equals the expected
// value, and takes a key that is missing for an empty one.
std::vector<uint8_t> to_bytes(const std::string& value) {
  const std::string marked = "=" + value;
  return {marked.begin(), marked.end()};
}

std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin() + 1, bytes.end()}; }

class TcpRendezvous final : public Rendezvous {
 public:
  TcpRendezvous(c10::intrusive_ptr<c10d::TCPStore> store, std::string address)
      : store_(std::move(store)), address_(std::move(address)) {}

  void set(const std::string& key, const std::string& value) override {
    ask<bool>([store = store_, key, bytes = to_bytes(value)] {
      store->set(key, bytes);
      return true;
    });
  }

  std::optional<std::string> peek(const std::string& key) override {
    return ask<std::optional<std::string>>([store = store_, key]() -> std::optional<std::string> {
      // Keys are never removed, so that get() finds it at once.
      if (!store->check({key})) return std::nullopt;
      return to_text(store->get(key));
    });
  }

  // Not c10d's own wait, which keeps all other calls of this process waiting too.
  std::string get(const std::string& key, milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      if (auto value = peek(key)) return *value;
      if (Clock::now() >= deadline)
        fail(ErrorKind::Timeout,
             "nobody has set '{}' in the table at {} for {:g} s: look at the other ranks, or raise --timeout",
             key, address_, seconds(timeout));
      std::this_thread::sleep_for(std::min(pause, until(deadline)));
    }
  }

  std::string set_once(const std::string& key, const std::string& value) override {
    return ask<std::string>([store = store_, key, bytes = to_bytes(value)] {
      return to_text(store->compareSet(key, {}, bytes));
    });
  }

 private:
  template <class Result>
  Result ask(std::function<Result()> question) {
    std::optional<Result> answer;
    try {
      answer = line_.call<Result>(std::move(question), kPatience);
    } catch (const std::exception&) {
      // All that c10d throws here is that the connection is gone.
      fail(
          ErrorKind::PeerLost,
          "the table of the ranks at {} is gone: the process that holds it (rank 0 of the job) has ended, or "
          "cannot be reached any more. Its own output says why",
          address_);
    }
    if (!answer)
      fail(ErrorKind::Timeout,
           "the table of the ranks at {} has not answered for {:g} s: look at what the process that holds it "
           "(rank 0 "
           "of the job) is doing",
           address_, seconds(kPatience));
    return std::move(*answer);
  }

  // Shared with calls that are stuck in it.
  const c10::intrusive_ptr<c10d::TCPStore> store_;
  const std::string address_;
  Line line_;
};

class Socket {
 public:
  explicit Socket(const addrinfo& address)
      : fd_(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                     address.ai_protocol)) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // 0, or why not.
  int connect(const addrinfo& address, milliseconds patience) const {
    if (fd_ < 0) return errno;
    if (::connect(fd_, address.ai_addr, address.ai_addrlen) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    pollfd ready{fd_, POLLOUT, 0};
    if (::poll(&ready, 1, static_cast<int>(patience.count())) <= 0) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof(error);
    return ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
  }

 private:
  const int fd_;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Those of the host, or why there are none.
Addresses look_up(const std::string& host, uint16_t port, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) why = ::gai_strerror(error);
  return {error == 0 ? found : nullptr, &freeaddrinfo};
}

std::string numeric(const addrinfo& address) {
  char text[NI_MAXHOST] = "";
  ::getnameinfo(address.ai_addr, address.ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

// The address at which somebody listens, as soon as that is so. c10d would try as well, but complains to
// stderr of every attempt, and does not say in the end whether the name or the port was wrong.
std::string await_server(const std::string& host, uint16_t port, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::string why;
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const Addresses addresses = look_up(host, port, why);
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      const int error = Socket(*address).connect(*address, until(deadline));
      if (error == 0) return numeric(*address);
      why = errno_text(error);
    }
    if (Clock::now() >= deadline)
      fail(ErrorKind::Timeout,
           "nobody answers at {}:{} for {:g} s ({}). Check that rank 0 is running, that this is its host, "
           "and that no "
           "firewall stands between; or raise --timeout",
           host, port, seconds(timeout), why);
    std::this_thread::sleep_for(std::min(pause, until(deadline)));
  }
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const std::string& host, uint16_t port, bool serves,
                                              milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = serves;
  options.waitWorkers = false;
  // c10d counts in whole seconds.
  options.timeout = std::max(timeout, milliseconds(1000));
  auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
  compat::await_callback_connection(*store);
  return store;
}

ServedRendezvous serve_table(uint16_t port, milliseconds timeout) {
  try {
    auto store = open_store("127.0.0.1", port, true, timeout);
    const uint16_t chosen = store->getPort();
    return {std::make_shared<TcpRendezvous>(std::move(store), fmt::format("port {} here", chosen)), chosen};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (text.find("already in use") != std::string::npos)
      fail(ErrorKind::Overloaded,
           "port {} of this machine is taken: another job may be running here. Choose another, or end it",
           port);
    fail(ErrorKind::InvalidArgument, "cannot serve the table of the ranks at port {}: {}", port,
         text.substr(0, text.find('\n')));
  }
}

}  // namespace

std::shared_ptr<Rendezvous> tcp_rendezvous(const std::string& host, uint16_t port, Serve serve,
                                           milliseconds timeout) {
  if (serve == Serve::Here) return serve_table(port, timeout).table;
  const auto deadline = Clock::now() + timeout;
  const std::string address = await_server(host, port, timeout);
  try {
    return std::make_shared<TcpRendezvous>(open_store(address, port, false, until(deadline)),
                                           fmt::format("{}:{}", host, port));
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    fail(ErrorKind::PeerLost,
         "the table of the ranks at {}:{} was there and is gone: rank 0 has ended. Its own output says why",
         host, port);
  }
}

ServedRendezvous serve_tcp_rendezvous(milliseconds timeout) { return serve_table(0, timeout); }

}  // namespace tutti::comm
