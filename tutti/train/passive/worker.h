#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/data/batch.h"
#include "tutti/params/control_word.h"
#include "tutti/params/lane_sum.h"
#include "tutti/params/parameters.h"
#include "tutti/ps/address_book.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/mailbox.h"
#include "tutti/rpc/message.h"
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

// A passive worker's connection to its master. Listens at the task's own address in the cluster. There is one
// master at a time: the one that sent the last "begin", for as long as it is connected. Not thread-safe.
class MasterConnection {
 public:
  // Says whether any caller may stop the worker, as `tutti stop` does, or only its master.
  enum class Stop { ByAnybody, ByNobody };
  // The context must outlive this.
  MasterConnection(const Context& context, Stop stop);
  ~MasterConnection();
  MasterConnection(const MasterConnection&) = delete;
  MasterConnection& operator=(const MasterConnection&) = delete;

  struct Request {
    std::string method;
    const rpc::Message* message;
  };

  // Returns the master's next request, which has to be answered before the next call; nullopt if none arrived
  // before the timeout. Throws PeerLost if the master has left or begins again, and InvalidArgument, with the
  // master's reason, if it has refused the workers because one of them was started in another way.
  std::optional<Request> next(std::chrono::milliseconds patience);
  // Waits without a timeout.
  Request next();
  // Returns the "begin" of a new master, or a "stop"; nullopt if none arrived before the timeout.
  std::optional<Request> next_beginning(std::chrono::milliseconds patience);
  // Like next_beginning(), but waits for --start-timeout or, for a master that was lost, for --timeout
  // (Waiting).
  Request await_beginning();

  void answer(rpc::Message message);
  // Runs the body for the current request, and answers with its result. An exception goes to the master, and
  // is rethrown to the caller.
  void answer_with(const std::function<rpc::Message()>& body);

  // Makes the next call return the same request again.
  void keep();

  // The name of the master, such as "master/0 (host a, pid 4711)"; "" before there is one.
  const std::string& master() const { return master_name_; }
  // What is known of the master while this worker waits for one, for messages.
  std::string missing_master() const;

 private:
  std::optional<rpc::Mailbox::Request> take(std::chrono::milliseconds patience);
  bool is_stop(const rpc::Mailbox::Request& taken) const;
  void refuse(const rpc::Mailbox::Request& taken);

  const Context& context_;
  const Stop stop_;
  rpc::Mailbox mailbox_;
  rpc::Host host_;
  ps::Announcement announcement_;
  std::optional<rpc::Mailbox::Request> taken_;  // not answered yet
  bool kept_ = false;
  uint64_t master_ = 0;  // the caller id; 0: none
  std::string master_name_;
};

// Returns the answer of a worker that has begun, from which the master knows with what it computes.
rpc::Message description(const Task& task, const Kernels& kernels);

// The rank that a master has assigned to a passive worker, with the numbers of workers and lanes.
struct Assignment {
  int rank = 0;
  int workers = 1;
  int64_t lanes = 1;

  explicit Assignment(const Json& head);
};

// A passive worker's part in the steps: computes with the parameters and batches that its master sends, and
// keeps no state between steps. Not thread-safe.
class LaneServer {
 public:
  // The replica must outlive this.
  LaneServer(Replica& replica, const Assignment& assignment);

  // Handles the requests
  //   step         returns the losses of the request's lanes, and the pieces that ps::SyncStep takes
  //   predictions  returns the predictions that came with the losses of the last step
  //   finish       takes over the final parameters and buffers
  // and ignores "note". Throws InvalidArgument for any other request.
  rpc::Message serve(const std::string& method, const rpc::Message& request, const Wishes& wishes);

 private:
  rpc::Message step(const rpc::Message& request, const Wishes& wishes);
  rpc::Message predictions();

  Replica& replica_;
  LaneVectors vectors_;
  const LaneRange lanes_;
  LocalSum sum_;
  const ControlWord word_;
  std::vector<std::pair<int64_t, torch::Tensor>> predictions_;  // by lane
};

}  // namespace tutti::passive

namespace tutti {

// Runs a passive worker for the master of this cluster (passive/master.h) until the master ends. With a model
// the worker computes that model; without one it runs the programs that a master sends, which requires
// --allow-programs. Throws Interrupted after SIGTERM, SIGINT or SIGHUP.
void follow_master(const Context& context, const std::optional<Trainable>& model = std::nullopt);

}  // namespace tutti
