#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/params/control_word.h"
#include "tutti/params/lane_sum.h"
#include "tutti/rpc/message.h"
#include "tutti/train/lane_runner.h"
#include "tutti/train/replica.h"

namespace tutti::passive {

// The rank that a master has assigned to a passive worker, with the numbers of workers and lanes.
struct Place {
  int rank = 0;
  int workers = 1;
  int64_t lanes = 1;

  explicit Place(const Json& head);
};

// A passive worker's part in the steps: computes with the parameters and batches that its master sends, and
// keeps no state between steps. Not thread-safe.
class LaneServer {
 public:
  // The replica must outlive this.
  LaneServer(Replica& replica, const Place& place);

  // Handles the requests
  //   step         returns the losses of the request's lanes, and the pieces that ps::SyncStep takes
  //   predictions  returns the predictions that came with the losses of the last step
  //   finish       takes over the final parameters and buffers
  // and ignores "note". Throws InvalidArgument for any other request.
  rpc::Message serve(const std::string& method, const rpc::Message& request, const Wishes& wishes);

 private:
  rpc::Message step(const rpc::Message& request, const Wishes& wishes);
  rpc::Message predictions();
  rpc::Message finish(const rpc::Message& request);

  Replica& replica_;
  LaneVectors vectors_;
  LocalSum sum_;
  LaneRunner lanes_;
  const ControlWord word_;
  Batch::Tensors predictions_;  // names are lanes
};

}  // namespace tutti::passive
