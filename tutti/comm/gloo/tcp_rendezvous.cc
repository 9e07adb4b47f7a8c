#include "tutti/comm/gloo/tcp_rendezvous.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/text.h"
#include "tutti/comm/gloo/c10d_compat.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How long a table may take to answer: it has a thread to itself, but its machine may be busy.
constexpr milliseconds kPatience{5000};
constexpr milliseconds kFirstRetry{1};
constexpr milliseconds kLongestRetry{50};
// For one address of several: a host that is down gives no answer at all.
constexpr milliseconds kConnectTime{3000};
// c10d counts in whole seconds, and so one is the least that it gets.
constexpr milliseconds kShortest{1000};

using Store = c10::intrusive_ptr<c10d::TCPStore>;

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
  TcpRendezvous(std::unique_ptr<Line> line, Store store, std::string address)
      : store_(std::move(store)), address_(std::move(address)), line_(std::move(line)) {}

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
    for (milliseconds pause = kFirstRetry;; pause = std::min(2 * pause, kLongestRetry)) {
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
      answer = line_->call<Result>(std::move(question), kPatience);
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
  const Store store_;
  const std::string address_;
  const std::unique_ptr<Line> line_;
};

struct Server {
  std::string host;
  std::string address;  // in numbers
  FileDescriptor connection;
};

// Where somebody listens, as soon as that is so; goes round all addresses of all hosts. c10d would try as
// well, but complains to stderr of every attempt, and does not say in the end whether the name or the port
// was wrong.
Server await_server(const std::vector<std::string>& hosts, uint16_t port, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::string why;
  for (milliseconds pause = kFirstRetry;; pause = std::min(2 * pause, kLongestRetry)) {
    for (const std::string& host : hosts) {
      const Resolved found = resolve(host, port);
      if (found.addresses.empty()) why = found.trouble;
      for (const SocketAddress& address : found.addresses) {
        Connected connected = connect_within(address, std::min(until(deadline), kConnectTime));
        if (connected.error == 0) return {host, numeric(address), std::move(connected.socket)};
        why = errno_text(connected.error);
      }
    }
    if (Clock::now() >= deadline)
      fail(ErrorKind::Timeout,
           "nobody answers at {}:{} for {:g} s ({}). Check that rank 0 is running, that this is its host, "
           "and that no firewall stands between; or raise --timeout",
           fmt::join(hosts, ", "), port, seconds(timeout), why);
    std::this_thread::sleep_for(std::min(pause, until(deadline)));
  }
}

Store make_store(const std::string& host, uint16_t port, bool serves, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  compat::without_libuv(options);
  options.port = port;
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = timeout;
  auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
  compat::await_callback_connection(*store);
  return store;
}

struct Opened {
  std::unique_ptr<Line> line;
  Store store;
};

// On the line too: whoever listens there may never say anything. Nothing where that is so.
std::optional<Opened> open_store(const std::string& host, uint16_t port, bool serves, milliseconds timeout) {
  timeout = std::max(timeout, kShortest);
  auto line = std::make_unique<Line>();
  auto store = line->call<Store>([=] { return make_store(host, port, serves, timeout); }, timeout);
  if (!store) return std::nullopt;
  return Opened{std::move(line), std::move(*store)};
}

ServedRendezvous serve_table(uint16_t port, milliseconds timeout) {
  try {
    std::optional<Opened> opened = open_store("127.0.0.1", port, true, timeout);
    if (!opened)
      fail(ErrorKind::Timeout, "the table of the ranks was not made within {:g} s", seconds(timeout));
    const uint16_t chosen = opened->store->getPort();
    return {std::make_shared<TcpRendezvous>(std::move(opened->line), std::move(opened->store),
                                            fmt::format("port {} here", chosen)),
            chosen};
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (text.find("already in use") != std::string::npos)
      fail(ErrorKind::Overloaded,
           "port {} of this machine is taken: another job may be running here. Choose another, or end it",
           port);
    fail(ErrorKind::InvalidArgument, "cannot serve the table of the ranks at port {}: {}", port,
         first_line(text));
  }
}

std::shared_ptr<Rendezvous> table_at(const Server& server, uint16_t port, milliseconds timeout) {
  timeout = std::max(timeout, kShortest);
  const auto deadline = Clock::now() + timeout;
  try {
    std::optional<Opened> opened;
    if (compat::is_table(server.connection.get(), deadline))
      opened = open_store(server.address, port, false, until(deadline));
    if (!opened)
      fail(ErrorKind::Timeout,
           "somebody listens at {}:{} but does not answer as rank 0's table does within {:g} s: is rank 0 "
           "stopped, or the port another program's?",
           server.host, port, seconds(timeout));
    return std::make_shared<TcpRendezvous>(std::move(opened->line), std::move(opened->store),
                                           fmt::format("{}:{}", server.host, port));
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    fail(ErrorKind::PeerLost,
         "the table of the ranks at {}:{} was there and is gone: rank 0 has ended. Its own output says why",
         server.host, port);
  }
}

}  // namespace

std::shared_ptr<Rendezvous> tcp_rendezvous(const std::string& host, uint16_t port, Serve serve,
                                           milliseconds timeout) {
  return serve == Serve::Here ? serve_table(port, timeout).table
                              : find_tcp_rendezvous({host}, port, timeout).table;
}

FoundRendezvous find_tcp_rendezvous(const std::vector<std::string>& hosts, uint16_t port,
                                    milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const Server server = await_server(hosts, port, timeout);
  return {table_at(server, port, until(deadline)), server.host};
}

ServedRendezvous serve_tcp_rendezvous(milliseconds timeout) { return serve_table(0, timeout); }

}  // namespace tutti::comm
