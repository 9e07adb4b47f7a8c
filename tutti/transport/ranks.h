#pragma once

#include <chrono>
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/transport/epochs.h"
#include "tutti/transport/executor.h"
#include "tutti/transport/mailbox.h"
#include "tutti/transport/operation.h"
#include "tutti/transport/transport.h"
#include "tutti/transport/work.h"

namespace tutti::comm {

// Connects the ranks of one epoch after the other.
class EpochSource : public Epochs {
 public:
  struct Connection {
    std::unique_ptr<Transport> transport = nullptr;
    std::unique_ptr<Carrier> on_device = nullptr;
  };
  // Tells the launcher why the present epoch ends here, and connects the next one.
  virtual Connection next(const std::optional<Error>& why) = 0;
};

// Connected ranks, which run operations on arrays, one after the other and in the same order on all of them.
// The tensors' Communicator and the C interface are made of it: they check what a program passes, and call
// run() with one of the operations below. After a failure every call throws its error.
//
// Thread-compatible: only one thread at a time may use it.
class Ranks {
 public:
  // The timeline, if any, must outlive this object. `on_device`, if any, must have the same ranks as the
  // transport. `on_failure` is called, from any thread, when these ranks or some that were split from them
  // have failed, and when this is destroyed because of an exception.
  Ranks(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout, Timeline* timeline = nullptr,
        std::unique_ptr<Carrier> on_device = nullptr, std::function<void()> on_failure = {},
        std::unique_ptr<EpochSource> epochs = nullptr);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  std::string name() const;
  int rank() const { return rank_; }
  int world() const { return world_; }
  Timeline* timeline() const { return timeline_; }
  Transport& transport() const { return *transport_; }
  // Moves arrays on a device; null if there is none.
  Carrier* on_device() const { return on_device_.get(); }
  Epochs* epochs() const { return epochs_.get(); }

  // Runs an operation of all ranks, body(operation), here or behind. If it throws, all ranks fail.
  template <class Body>
  Work run(const char* name, const Options& options, Body body);
  // Runs a message, after all others of its Line: all sends to a rank, or the receives of one tag from it.
  struct Line {
    int peer;  // -1: any, of a receive
    bool sends;
    int tag = 0;  // of receives
    auto operator<=>(const Line&) const = default;
  };
  template <class Body>
  Work run_message(const char* name, const Line& line, const Options& options, Body body);

  // Waits until nothing runs behind.
  void drain() { queue_.drain(); }

  // The operations, to be called in run(), with arrays of this carrier.
  // The output may be the input.
  void all_reduce(Carrier& carrier, const Array& input, const Array& output, ReduceOp op,
                  const Operation& operation);
  void reduce_scatter(Carrier& carrier, const Array& output, const Array& input, ReduceOp op,
                      const Operation& operation);
  // As many elements of the sum for each rank as its length.
  void reduce_scatter_uneven(Carrier& carrier, const Array& output, const Array& input,
                             const std::vector<int64_t>& lengths, ReduceOp op, const Operation& operation);
  // Only the root gets the sum.
  void reduce(Carrier& carrier, const Array& output, const Array& input, ReduceOp op, int root,
              const Operation& operation);
  // One output for each rank.
  void all_gather(Carrier& carrier, std::span<const Array> outputs, const Array& input,
                  const Operation& operation);
  void all_to_all(Carrier& carrier, const Array& output, const Array& input, const Operation& operation);
  void all_to_all_uneven(Carrier& carrier, std::span<const Array> outputs, std::span<const Array> inputs,
                         const Operation& operation);
  void broadcast(Carrier& carrier, const Array& values, int root, const Operation& operation);
  // Only the root uses `outputs`, and in scatter only the root uses `inputs`: one for each rank.
  void gather(Carrier& carrier, std::span<const Array> outputs, const Array& input, int root,
              const Operation& operation);
  void scatter(Carrier& carrier, const Array& output, std::span<const Array> inputs, int root,
               const Operation& operation);
  void sync(const Operation& operation) { transport_->sync(operation); }
  // In run_message(). A receiver takes the messages with its tag.
  void send(const Array& values, int to, const Operation& operation, int tag = 0);
  void recv(const Array& values, int from, const Operation& operation, int tag = 0);
  // Receives from any rank, and returns that.
  int recv_from_any(const Array& values, const Operation& operation, int tag = 0);

  // Returns why these ranks have failed.
  std::optional<Error> failure();
  // Makes this and all other ranks fail with `error` from now on, unless they have already failed.
  void give_up(const Error& error) noexcept;
  // Ranks that pass the same colour; null for -1. Every rank must call it.
  std::unique_ptr<Ranks> split(int colour);
  // These ranks, in this order, with the name of their group, which must be unique. Only they call it.
  std::unique_ptr<Ranks> part(const std::vector<int>& ranks, const std::string& name);
  // A transport of the ranks of this host, which fails with all of them, as another group of theirs.
  std::unique_ptr<Ranks> inside();

  // Leaves the present ranks and connects to the ranks of the next epoch (Communicator::reconfigure).
  void reconfigure(const std::optional<Error>& why);

 private:
  template <class Body>
  void guarded(const char* name, const Options& options, const Body& body);
  void add(Carrier& carrier, const Array& output, const Array& input, ReduceOp op,
           std::vector<ElementRange> slices, const Operation& operation);
  std::unique_ptr<Ranks> part(const std::vector<int>& ranks, const std::string& name,
                              const std::string& board);
  Operation message(const Operation& asked, const Array& values, int peer, int tag) const;
  void throw_if_broken();
  void give_up_after(const Operation& operation, const char* why) noexcept;
  Executor& executor_of(const Line& line);
  Work run_on(Executor& executor, std::function<void()> operation);
  void enter_epoch();

  const std::unique_ptr<EpochSource> epochs_;  // null: the ranks never change
  const std::function<void()> on_failure_;
  // Until the next reconfigure():
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Carrier> on_device_;
  std::unique_ptr<Mailbox> mailbox_;
  Sources one_by_rank_;
  int rank_ = 0;
  int world_ = 1;
  const std::chrono::milliseconds timeout_;
  Timeline* const timeline_;
  int splits_ = 0;
  bool behind_ = false;  // some operation may still be in queue_

  std::mutex mutex_;
  std::optional<Error> broken_;  // guarded by mutex_

  // Last, so that they are destroyed first.
  Executor queue_;
  std::map<Line, Executor> messages_;
};

template <class Body>
void Ranks::guarded(const char* name, const Options& options, const Body& body) {
  throw_if_broken();
  const SpanScope span(timeline_, Activity::Operation, name, options.step, options.what);
  const Operation operation = operation_of(name, options, timeout_, timeline_);
  try {
    body(operation);
  } catch (const AllHaveLeft&) {
    throw;
  } catch (const Error& error) {
    give_up(error);
    throw;
  } catch (const std::exception& error) {
    // For example from LibTorch, or out of memory. Continuing would leave this rank an operation behind.
    give_up_after(operation, error.what());
    throw;
  }
}

template <class Body>
Work Ranks::run(const char* name, const Options& options, Body body) {
  if (options.run == Run::Behind) {
    behind_ = true;
    return run_on(queue_, [this, name, options, body = std::move(body)] {
      name_thread(timeline_, "communicator");
      guarded(name, options, body);
      transport_->completed();
    });
  }
  if (behind_) queue_.drain();
  behind_ = false;
  guarded(name, options, body);
  transport_->completed();
  return {};
}

template <class Body>
Work Ranks::run_message(const char* name, const Line& line, const Options& options, Body body) {
  if (options.run == Run::Here) {
    if (const auto running = messages_.find(line); running != messages_.end()) running->second.drain();
    guarded(name, options, body);
    return {};
  }
  return run_on(executor_of(line), [this, name, sends = line.sends, options, body = std::move(body)] {
    name_thread(timeline_, sends ? "sender" : "receiver");
    guarded(name, options, body);
  });
}

}  // namespace tutti::comm
