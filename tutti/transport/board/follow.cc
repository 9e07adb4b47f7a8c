#include "tutti/transport/board/follow.h"

#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/transport/board/tcp_rendezvous.h"
#include "tutti/transport/members.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenLooks{10};
// The time for one attempt to connect to the launcher that keeps the list. It may be gone.
constexpr milliseconds kAttemptToFollow{1000};

class FollowedBoard final : public Rendezvous {
 public:
  explicit FollowedBoard(FollowOptions options)
      : options_(std::move(options)),
        home_(find_tcp_rendezvous(find_options(options_.address, options_.timeout)).board),
        board_(await_board()) {
    if (!board_)
      fail(ErrorKind::Timeout, "the launcher that keeps the list of the workers did not answer within {:g} s",
           seconds(options_.timeout));
  }

  void set(const std::string& key, const std::string& value) override { present()->set(key, value); }
  std::string get(const std::string& key, milliseconds timeout) override {
    return present()->get(key, timeout);
  }
  std::optional<std::string> peek(const std::string& key) override { return present()->peek(key); }
  std::string set_once(const std::string& key, const std::string& value) override {
    return present()->set_once(key, value);
  }
  std::string hold(const std::string& key, const std::string& value) override {
    return present()->hold(key, value);
  }
  bool ended() const override { return present()->ended(); }
  bool reconnect() override;

 private:
  FindOptions find_options(const std::string& address, milliseconds timeout) const;
  std::shared_ptr<Rendezvous> present() const {
    const std::lock_guard lock(mutex_);
    return board_;
  }
  std::shared_ptr<Rendezvous> await_board();

  const FollowOptions options_;
  const std::shared_ptr<Rendezvous> home_;  // of this worker's launcher
  mutable std::mutex mutex_;
  std::shared_ptr<Rendezvous> board_;  // guarded by mutex_
};

FindOptions FollowedBoard::find_options(const std::string& address, milliseconds timeout) const {
  const Address place = parse_address(address);
  return {.hosts = {place.host},
          .port = static_cast<uint16_t>(place.port),
          .credentials = {.secret = options_.secret},
          .holder = "tutti run",
          .timeout = timeout,
          .answer = options_.timeout};
}

// Returns nullptr if no launcher has the list in time.
std::shared_ptr<Rendezvous> FollowedBoard::await_board() {
  const auto deadline = deadline_after(options_.timeout);
  do {
    const std::string where = home_->peek(kKeeperKey).value_or("");
    if (where == kHere) return home_;
    if (!where.empty()) {
      if (auto board = try_tcp_rendezvous(find_options(where, kAttemptToFollow)).board) return board;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  } while (std::chrono::steady_clock::now() < deadline);
  return nullptr;
}

bool FollowedBoard::reconnect() {
  try {
    const auto board = await_board();
    const std::lock_guard lock(mutex_);
    if (board) board_ = board;
    return board != nullptr;
  } catch (const Error&) {
    return false;  // the launcher of this worker is gone
  }
}

}  // namespace

std::shared_ptr<Rendezvous> follow_members_board(const FollowOptions& options) {
  return std::make_shared<FollowedBoard>(options);
}

}  // namespace tutti::comm
