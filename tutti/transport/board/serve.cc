#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/rpc/host.h"
#include "tutti/transport/board/protocol.h"
#include "tutti/transport/board/tcp_rendezvous.h"

namespace tutti::comm {
namespace {

constexpr int kMostReports = 5;
constexpr size_t kMostBytes = size_t{256} << 20;
// The memory for requests that are being received.
constexpr size_t kMemory = size_t{64} << 20;

std::string text_of(const rpc::Piece& piece) {
  return {reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size()};
}

// Serves a board of this process, and removes what a client holds when its connection ends.
class BoardService final : public rpc::Service {
 public:
  explicit BoardService(LocalRendezvous& board) : board_(board) {}

  rpc::Message serve(const rpc::Caller& caller, const std::string& method,
                     const rpc::Message& request) override {
    if (request.pieces.size() != 2) fail(ErrorKind::DataLoss, "'{}': a key and a value are expected", method);
    const std::string key = text_of(request.pieces[0]);
    const std::string value = text_of(request.pieces[1]);
    const std::lock_guard lock(mutex_);
    const auto old = board_.peek(key);
    if (method == board::kPeek) return old ? message_of(*old) : rpc::Message{};
    const bool sets = method == board::kSet;
    if (!sets && method != board::kSetOnce && method != board::kHold)
      fail(ErrorKind::InvalidArgument, "a board has no method '{}'", method);
    if (!sets && old) return message_of(*old);
    require_space(key, old.value_or(""), value);
    if (sets) {
      board_.set(key, value);
      return {};
    }
    // This process may set the key meanwhile.
    const std::string now = board_.set_once(key, value);
    if (method == board::kHold && now == value) held_[caller.id].insert(key);
    return message_of(now);
  }

  void gone(const rpc::Caller& caller) override {
    const std::lock_guard lock(mutex_);
    for (const std::string& key : held_[caller.id]) {
      bytes_ -= std::min(bytes_, key.size() + board_.peek(key).value_or("").size());
      board_.remove(key);
    }
    held_.erase(caller.id);
  }

 private:
  static rpc::Message message_of(const std::string& value) {
    const auto text = std::make_shared<std::string>(value);
    return {{}, {{std::as_bytes(std::span(*text)), text}}};
  }

  // Entries that this process has set itself are not counted.
  void require_space(const std::string& key, const std::string& old, const std::string& value) {
    const size_t after = bytes_ - std::min(bytes_, key.size() + old.size()) + key.size() + value.size();
    if (after > kMostBytes) fail(ErrorKind::Overloaded, "it is full: it is only for short texts");
    bytes_ = after;
  }

  LocalRendezvous& board_;
  std::mutex mutex_;
  std::map<uint64_t, std::set<std::string>> held_;  // keys by caller; guarded by mutex_
  size_t bytes_ = 0;  // approximate size of what clients have set; guarded by mutex_
};

// Reports only the first refusals, since a peer may try as often as it likes.
rpc::HostOptions host_options(const ServeOptions& options) {
  rpc::HostOptions host{
      .address = to_string(Address{options.host.empty() ? "0.0.0.0" : options.host, options.port}),
      .credentials = options.credentials,
      .insecure = true,  // who serves a board has decided where
      .memory = kMemory,
      .silence = options.silence,
      .purpose = options.purpose,
      .farewell = options.farewell};
  if (options.report)
    host.report = [report = options.report,
                   count = std::make_shared<std::atomic<int>>()](const std::string& text) {
      if (++*count <= kMostReports) report(text);
    };
  return host;
}

class Served final : public ServedBoard {
 public:
  explicit Served(const ServeOptions& options) : service_(*this), host_(host_options(options), service_) {}
  void stop_listening() override { host_.stop_listening(); }
  uint16_t port() const { return static_cast<uint16_t>(host_.port()); }

 private:
  BoardService service_;
  rpc::Host host_;  // last, so that it ends first
};

}  // namespace

ServedRendezvous serve_tcp_rendezvous(const ServeOptions& options) {
  const auto served = std::make_shared<Served>(options);
  return {served, served->port()};
}

}  // namespace tutti::comm
