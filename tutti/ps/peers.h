#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/executor.h"
#include "tutti/ps/address_book.h"
#include "tutti/rpc/arena.h"
#include "tutti/rpc/channel.h"

namespace tutti::ps {

// Other tasks of the cluster that are called at once: a channel and a thread each. Those that choose their
// ports are looked up, again whenever they are connected to; the chief keeps the book. Not thread-safe.
class Peers {
 public:
  // `what` they are, for people: "parameter servers". The context outlives them.
  Peers(const Context& context, const std::vector<Task>& tasks, std::string_view what,
        std::shared_ptr<rpc::Arena> arena);

  size_t size() const { return peers_.size(); }
  // "ps/0 (h:2222)".
  const std::string& name(size_t peer) const { return peers_[peer].name; }

  // Waits for all of them, and says every ten seconds for whom. Not longer than --start-timeout: then a
  // Timeout names each that is missing, and why.
  void connect();
  // The same for one, in any thread.
  void connect(size_t peer);

  rpc::Message call(size_t peer, const std::string& method, const rpc::Message& request,
                    const rpc::CallOptions& options) {
    return peers_[peer].channel->call(method, request, options);
  }
  // None of the connections has ended, as far as anybody has noticed.
  bool are_connected() const {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const Peer& peer) { return peer.channel->is_connected(); });
  }
  // As long as --timeout and a little: the other end gives up first, and says for whom it has waited.
  rpc::CallOptions patience(const char* what, int64_t step = -1) const;
  std::chrono::milliseconds timeout() const;
  std::chrono::milliseconds start_timeout() const;

  // In the peer's thread, after what it has been given before.
  template <class Body>
  comm::Work run(size_t peer, Body body) {
    return peers_[peer].thread->run([body, peer] {
      const torch::NoGradGuard no_grad;
      body(peer);
    });
  }
  // For each at once, after what it has been given before. What is thrown, when all are done, is what the
  // first has failed with; that one is lost goes before everything else. Nobody then waits for the others,
  // whose answers may never come: they may wait for a task that has to begin anew like this one.
  template <class Body>
  void for_all(Body body);

 private:
  struct Peer {
    Task task;
    std::string name;
    bool chooses_its_port;
    std::string address;                    // where the channel leads; "": none yet
    std::unique_ptr<rpc::Channel> channel;  // null: none yet
    std::unique_ptr<comm::Executor> thread;
  };

  void lead(Peer& peer, const std::string& address);
  std::string attempt(size_t index, std::chrono::milliseconds patience);
  [[noreturn]] void give_up(const std::vector<std::string>& missing) const;

  const Context& context_;
  const std::string what_;
  const rpc::ChannelOptions options_;
  std::optional<OpenAddressBook> book_;
  std::atomic<bool> one_is_lost_ = false;  // while all are asked at once
  std::vector<Peer> peers_;                // last, so that their threads end first
};

template <class Body>
void Peers::for_all(Body body) {
  const auto watched = [&](size_t i) {
    try {
      body(i);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::PeerLost) one_is_lost_ = true;
      throw;
    }
  };
  std::vector<comm::Work> others;
  for (size_t i = 1; i < peers_.size(); ++i)
    others.push_back(run(i, [&watched](size_t peer) { watched(peer); }));
  std::exception_ptr failure;
  std::exception_ptr loss;
  const auto attempt = [&](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      std::exception_ptr& first = error.kind() == ErrorKind::PeerLost ? loss : failure;
      if (!first) first = std::current_exception();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  peers_.front().thread->drain();
  attempt([&] { watched(size_t{0}); });
  for (const comm::Work& work : others) attempt([&] { work.wait(); });
  one_is_lost_ = false;
  if (loss) std::rethrow_exception(loss);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tutti::ps
