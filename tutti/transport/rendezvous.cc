#include "tutti/transport/rendezvous.h"

#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"

namespace tutti::comm {
void LocalRendezvous::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::string LocalRendezvous::get(const std::string& key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline_after(timeout), [&] { return values_.contains(key); }))
    fail(ErrorKind::Timeout,
         "no rank set '{}' within {:g} s: look at the output of the other ranks, or raise --timeout", key,
         seconds(timeout));
  return values_[key];
}

std::optional<std::string> LocalRendezvous::peek(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::string LocalRendezvous::set_once(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  const auto [place, added] = values_.emplace(key, value);
  if (added) changed_.notify_all();
  return place->second;
}

void LocalRendezvous::remove(const std::string& key) {
  const std::lock_guard lock(mutex_);
  values_.erase(key);
}

namespace {

class PrefixedRendezvous final : public Rendezvous {
 public:
  PrefixedRendezvous(std::shared_ptr<Rendezvous> board, std::string prefix)
      : board_(std::move(board)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::string& value) override { board_->set(prefix_ + key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return board_->get(prefix_ + key, timeout);
  }
  std::optional<std::string> peek(const std::string& key) override { return board_->peek(prefix_ + key); }
  std::string set_once(const std::string& key, const std::string& value) override {
    return board_->set_once(prefix_ + key, value);
  }
  std::string hold(const std::string& key, const std::string& value) override {
    return board_->hold(prefix_ + key, value);
  }
  bool ended() const override { return board_->ended(); }

 private:
  // Shared: several prefixes may use the same board.
  const std::shared_ptr<Rendezvous> board_;
  const std::string prefix_;
};

}  // namespace

std::shared_ptr<Rendezvous> with_prefix(std::shared_ptr<Rendezvous> board, const std::string& prefix) {
  return std::make_shared<PrefixedRendezvous>(std::move(board), prefix);
}

}  // namespace tutti::comm
