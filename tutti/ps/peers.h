#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/waiting.h"
#include "tutti/cluster/context.h"
#include "tutti/cluster/identity.h"
#include "tutti/comm/group.h"
#include "tutti/ps/address_book.h"
#include "tutti/rpc/arena.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/host.h"
#include "tutti/transport/executor.h"

namespace tutti::ps {

// How tasks identify themselves to one another.

// Returns the name, host and process of this task, which it sends on every connection (rpc::ChannelOptions).
// With a part of the job's workers also their ranks, as "group".
Json hello_of(const Context& context, const Group& group = {});
// Returns "worker/1 (host b, pid 4711)", from what the caller sent.
std::string name_of(const rpc::Caller& caller);

// Returns HOST:PORT of a task; the port is 0 if the task chooses it (address_book.h). Throws InvalidArgument
// if the cluster names no addresses.
std::string address_of(const Context& context, const Task& task);
// Like address_of(), for a server of modules, which has to have a fixed port: throws InvalidArgument if it is
// 0.
std::string fixed_address_of(const Context& context, const Task& task);

// Returns the options for a host at this task's own address, from the flags. Refusals are logged, and noted
// in `refused` unless it is null.
rpc::HostOptions host_at_own_address(const Context& context,
                                     const std::shared_ptr<rpc::RefusedCallers>& refused = nullptr);

// Other tasks of the cluster that are called in parallel, with a channel and a thread for each. A task that
// chooses its port is looked up in the chief's address book at every connect(). Not thread-safe.
class Peers {
 public:
  // `what` describes the tasks in messages: "parameter servers". This task calls them as a worker of the
  // group. The last `copies` tasks are called as holders of copies (GroupServices). The context must outlive
  // this object.
  Peers(const Context& context, const std::vector<Task>& tasks, std::string_view what,
        std::shared_ptr<rpc::Arena> arena, const Group& group = {}, size_t copies = 0);

  size_t size() const { return peers_.size(); }
  // "ps/0 (h:2222)".
  const std::string& name(size_t peer) const { return peers_[peer].name; }

  // Waits until all are connected, for --start-timeout (Waiting).
  void connect();
  // Connects to one task, like connect(). May be called from any thread.
  void connect(size_t peer);
  // Begins a wait for these or other tasks to start, which ends after --start-timeout.
  Waiting wait_for_start() const;

  // Logs what the first task tells about others, if it does ("news" in the head of its answer).
  rpc::Message call(size_t peer, const std::string& method, const rpc::Message& request,
                    const rpc::CallOptions& options);
  // Returns false if the connection is known to have ended.
  bool is_connected(size_t peer) const {
    return peers_[peer].channel && peers_[peer].channel->is_connected();
  }
  bool are_connected() const {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const Peer& peer) { return peer.channel->is_connected(); });
  }
  // Returns call options with a timeout a little above --timeout, so that the other end, which knows who is
  // late, gives up first.
  rpc::CallOptions patience(const char* what, int64_t step = -1) const;
  // Sets a predicate that is called ten times a second while an answer is pending; if it returns true, the
  // call ends.
  using GiveUp = std::function<bool(std::chrono::steady_clock::time_point waiting_since)>;
  void set_give_up(GiveUp give_up) { give_up_ = std::move(give_up); }
  bool gives_up(std::chrono::steady_clock::time_point waiting_since) const {
    return give_up_ && give_up_(waiting_since);
  }
  std::chrono::milliseconds timeout() const;
  std::chrono::milliseconds start_timeout() const;

  // Runs the body in the peer's thread, after the work that was queued there before.
  template <class Body>
  comm::Work run(size_t peer, Body body) {
    return peers_[peer].thread->run([body, peer] {
      const torch::NoGradGuard no_grad;
      body(peer);
    });
  }
  // Runs the body for all peers in parallel, each after its queued work, and waits for all. Rethrows the
  // first PeerLost, else the first failure. Once a peer is lost, calls to the others are abandoned, because
  // their answers may never come: they may wait for a task that has to reconnect like this one.
  template <class Body>
  void for_all(Body body);

 private:
  struct Peer {
    Task task;
    std::string name;
    bool chooses_its_port;
    bool holds_copy;
    std::string address;                    // the address of the channel; "": none yet
    std::unique_ptr<rpc::Channel> channel;  // null: none yet
    std::unique_ptr<comm::Executor> thread;
  };

  void lead(Peer& peer, const std::string& address);
  std::string attempt(size_t index, std::chrono::milliseconds patience);

  const Context& context_;
  const std::string what_;
  const rpc::ChannelOptions options_;
  comm::ServedRendezvous book_;
  GiveUp give_up_;
  std::atomic<bool> one_is_lost_ = false;  // during for_all()
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
