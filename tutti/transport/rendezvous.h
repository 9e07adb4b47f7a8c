#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace tutti::comm {

// A small board of texts that several processes can reach. Ranks use it to find one another and to report
// failures, and launchers to meet. Not meant for tensors. Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until some rank has set the key. Throws a Timeout that names the key.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  virtual std::optional<std::string> peek(const std::string& key) = 0;
  // Sets the value unless the key already has one. Returns the value that the key has afterwards.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
  // Like set_once(), but if this call has set the value, it is removed when the connection to the board ends.
  virtual std::string hold(const std::string& key, const std::string& value) = 0;
  // Returns true if the process that holds the board has closed it in good order. All calls fail then, but
  // no rank is lost.
  virtual bool ended() const = 0;
  // After a call has failed with PeerLost or Timeout: finds the process that serves the board now, which
  // knows nothing of what was set before. Returns false if there is none.
  virtual bool reconnect() { return false; }
};

// A board in this process.
class LocalRendezvous : public Rendezvous {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> peek(const std::string& key) override;
  std::string set_once(const std::string& key, const std::string& value) override;
  // There is no connection that could end: nothing is removed before the board.
  std::string hold(const std::string& key, const std::string& value) override { return set_once(key, value); }
  bool ended() const override { return false; }

  void remove(const std::string& key);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

// Returns a view of the same board in which every key is prefixed with `prefix`.
std::shared_ptr<Rendezvous> with_prefix(std::shared_ptr<Rendezvous> board, const std::string& prefix);

}  // namespace tutti::comm
