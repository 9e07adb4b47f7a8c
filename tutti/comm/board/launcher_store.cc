#include "tutti/comm/board/launcher_store.h"

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/start_thread.h"
#include "tutti/base/text.h"
#include "tutti/comm/nccl/c10d_compat.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLauncherPause{20};
constexpr milliseconds kLauncherConnectTime{3000};  // for each of several addresses
constexpr milliseconds kShortestForC10d{1000};      // c10d counts in whole seconds

struct Found {
  std::string address;  // numeric
  FileDescriptor connection;
};

// Waits until the launcher listens, and connects to it. c10d would retry as well, but it reports every
// attempt on stderr, and its final error does not say whether the name or the port was wrong.
Found await_launcher(const Address& launcher, Clock::time_point deadline, milliseconds timeout) {
  std::string why;
  while (true) {
    const Resolved found = resolve(launcher.host, launcher.port);
    if (found.addresses.empty()) why = found.trouble;
    for (const SocketAddress& address : found.addresses) {
      Connected connected = connect_within(address, std::min(until(deadline), kLauncherConnectTime));
      if (connected.error == 0) return {numeric(address), std::move(connected.socket)};
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

c10::intrusive_ptr<c10d::TCPStore> make_store(const std::string& address, int port, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  compat::without_libuv(options);
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = std::max(timeout, kShortestForC10d);
  auto store = c10::make_intrusive<c10d::TCPStore>(address, options);
  compat::await_callback_connection(*store);
  return store;
}

// Returns nullopt if rank 0 has not set the text in time.
std::optional<std::string> share(c10d::TCPStore& store, const std::string& key,
                                 const std::optional<std::string>& text, Clock::time_point deadline) {
  if (text) {
    store.set(key, std::vector<uint8_t>(text->begin(), text->end()));
    return text;
  }
  while (!store.check({key})) {
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(kLauncherPause);
  }
  const std::vector<uint8_t> bytes = store.get(key);
  return std::string(bytes.begin(), bytes.end());
}

// c10d waits forever for an answer, and the launcher may be stopped. In that case the thread is detached.
template <class Result>
Result call_within(Clock::time_point deadline, const std::function<Result()>& function,
                   const Result& otherwise) {
  auto task = std::make_shared<std::packaged_task<Result()>>(function);
  auto result = task->get_future();
  std::thread thread = start_thread("asking the launcher's board", [task] { (*task)(); });
  if (result.wait_until(deadline) == std::future_status::ready) {
    thread.join();
    return result.get();
  }
  thread.detach();
  return otherwise;
}

}  // namespace

std::string share_through_launcher(const Address& launcher, const std::string& key,
                                   const std::optional<std::string>& text, milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  const Found found = await_launcher(launcher, deadline, timeout);
  try {
    std::optional<std::string> shared;
    if (compat::is_board(found.connection.get(), deadline)) {
      const std::function<std::optional<std::string>()> ask = [=, address = found.address,
                                                               port = launcher.port] {
        return share(*make_store(address, port, until(deadline)), key, text, deadline);
      };
      // share() meets the deadline by itself as long as the launcher answers.
      shared = call_within<std::optional<std::string>>(deadline + kShortestForC10d, ask, std::nullopt);
    }
    if (shared) return *shared;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorKind::PeerLost,
         "the board of the launcher (torchrun) at {} was lost, or another program listens there: {}. Its "
         "own output says why",
         to_string(launcher), first_line(error.what()));
  }
  fail(ErrorKind::Timeout,
       "nothing from rank 0 through the board of the launcher (torchrun) at {} for {:g} s. Look at rank 0's "
       "output, or raise --timeout",
       to_string(launcher), seconds(timeout));
}

}  // namespace tutti::comm
