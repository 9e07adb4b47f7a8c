#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/base/deadline.h"
#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/data/batch.h"
#include "tutti/params/parameters.h"
#include "tutti/ps/address_book.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/message.h"
#include "tutti/step/control_word.h"
#include "tutti/step/lane_sum.h"
#include "tutti/train/passive/mailbox.h"
#include "tutti/train/replica.h"
#include "tutti/train/trainable.h"

// A passive worker, which computes for a master (passive/master.h), and the messages that they exchange.
namespace tutti::passive {

// Returns all tensors, besides the data, that a step depends on: values, buffers, counters. They are views.
std::vector<torch::Tensor> everything(const Parameters& parameters);
// Returns the tensors that do not change during steps.
std::vector<torch::Tensor> frozen(const Parameters& parameters);

// Appends the tensors to the pieces, on the CPU and in row-major order.
void append(rpc::Message& message, const std::vector<torch::Tensor>& tensors);
// Copies the next pieces into the tensors, on any device.
void take_into(ps::Reader& reader, const std::vector<torch::Tensor>& tensors);

// Appends the tensors of the batch to the pieces; returns its outline: names, types and shapes.
Json append(rpc::Message& message, const Batch& batch);
Batch take_batch(ps::Reader& reader, const Json& outline);

// A passive worker: computes lanes with the parameters and batches that its master sends, and keeps no state
// between steps. Listens at the task's own address in the cluster. There is one master at a time: the one
// that sent the last "begin", for as long as it is connected. Not thread-safe.
class Worker {
 public:
  // Says whether any caller may stop the worker, as `tutti stop` does, or only its master.
  enum class Stop { ByAnybody, ByNobody };
  // The context must outlive this.
  Worker(const Context& context, Stop stop);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  struct Request {
    std::string method;
    const rpc::Message* message;
  };

  // Returns the "begin" of a new master, or a "stop"; nullopt if none arrived before the timeout.
  std::optional<Request> next_beginning(std::chrono::milliseconds patience);
  // Like next_beginning(), but waits for --start-timeout or, for a master that was lost, for --timeout
  // (Waiting).
  Request await_beginning();
  // Returns the master's next request; nullopt if none arrived before the timeout. Throws PeerLost if the
  // master has left or begins again, and InvalidArgument, with the master's reason, if it has refused the
  // workers because one of them was started in another way.
  std::optional<Request> next(std::chrono::milliseconds patience = kLongestWait);
  // Answers the current request, which next() and next_beginning() return until then, with the result of the
  // body. An exception goes to the master, and is rethrown to the caller.
  void answer(const std::function<rpc::Message()>& body = [] { return rpc::Message(); });

  // Takes the lanes and the frozen tensors of a "begin". Returns the answer, from which the master knows with
  // what this worker computes. The replica must outlive the steps.
  rpc::Message begin(Replica& replica, const Kernels& kernels, const rpc::Message& beginning);
  // Of the whole job, as the master has said.
  int64_t lanes() const { return assignment_->lanes; }
  // Returns the answer to one of the requests
  //   step         returns the losses of the request's lanes, and the pieces that ps::SyncStep takes
  //   predictions  returns the predictions that came with the losses of the last step
  //   finish       takes over the final parameters and buffers
  // and ignores "note". Throws InvalidArgument for any other request.
  rpc::Message serve(const Request& request, const Wishes& wishes);

  // The name of the master, such as "master/0 (host a, pid 4711)"; "" before there is one.
  const std::string& master() const { return master_name_; }
  // What is known of the master while this worker waits for one, for messages.
  std::string missing_master() const;

 private:
  // The lanes that a master has assigned.
  struct Assignment {
    Assignment(Replica& replica, int rank, int workers, int64_t lanes, std::string kernels);

    Replica& replica;
    const int64_t lanes;    // of all workers
    const LaneRange range;  // of this worker
    LaneVectors vectors;
    LocalSum sum;
    const ControlWord control;
    const std::string kernels;                                        // the master's --kernels
    std::vector<std::pair<int64_t, torch::Tensor>> predictions = {};  // by lane
  };

  std::optional<Mailbox::Request> next_request(std::chrono::milliseconds patience);
  bool is_stop(const Mailbox::Request& taken) const;
  void refuse(const Mailbox::Request& taken);
  rpc::Message step(const rpc::Message& request, const Wishes& wishes);
  rpc::Message predictions();

  const Context& context_;
  const Stop stop_;
  const std::shared_ptr<rpc::RefusedCallers> refused_ = std::make_shared<rpc::RefusedCallers>();
  Mailbox mailbox_;
  rpc::Host host_;
  ps::Announcement announcement_;
  uint64_t master_ = 0;  // the caller id; 0: none
  std::string master_name_;
  std::optional<Assignment> assignment_;  // once begun
};

}  // namespace tutti::passive
