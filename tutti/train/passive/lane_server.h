#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/params/control_word.h"
#include "tutti/params/lane_vectors.h"
#include "tutti/rpc/message.h"
#include "tutti/train/lane_runner.h"
#include "tutti/train/replica.h"

namespace tutti::passive {

// Whom a passive worker's master has made it.
struct Place {
  int rank = 0;
  int workers = 1;
  int64_t lanes = 1;

  explicit Place(const Json& head);
};

// A passive worker's part in the steps: it computes with the parameters and batches that its master sends,
// and keeps nothing between steps. Not thread-safe.
class LaneServer {
 public:
  // The replica outlives this.
  LaneServer(Replica& replica, const Place& place);

  // Answers
  //   step         what the request's lanes give: their losses; then what ps::SyncStep takes
  //   predictions  those that the losses of the last step came with
  //   finish       takes over parameters and buffers as they have become
  // Anything else is an InvalidArgument.
  rpc::Message serve(const std::string& method, const rpc::Message& request, const Wishes& wishes);

 private:
  rpc::Message step(const rpc::Message& request, const Wishes& wishes);
  rpc::Message predictions();
  rpc::Message finish(const rpc::Message& request);

  Replica& replica_;
  LaneVectors vectors_;
  LaneRunner lanes_;
  const ControlWord word_;
  Batch::Tensors predictions_;  // by lane
};

}  // namespace tutti::passive
