#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/store/named_tensors.h"

namespace tutti::comm {

// Gather a value from every rank and return all of them, by rank: a number, a one-dimensional tensor of any
// length, or a text. `what` is used in error messages.
std::vector<int64_t> gather_all(Communicator& comm, int64_t mine, const char* what);
std::vector<torch::Tensor> gather_all(Communicator& comm, const torch::Tensor& mine, const char* what);
std::vector<std::string> gather_all(Communicator& comm, const std::string& mine, const char* what);

// Convert a text to a tensor that can be sent, and back.
torch::Tensor bytes_of(const std::string& text);
std::string text_of(const torch::Tensor& bytes);

// Returns the snapshot of rank `root` on every rank, in host memory on those that receive it. The snapshots
// that other ranks pass are ignored.
store::Snapshot broadcast(Communicator& comm, const store::Snapshot& own, int root, const char* what);
// Passes the snapshots of all ranks to `on_snapshot` at rank 0, one after the other. Other ranks only send.
void gather(Communicator& comm, const store::Snapshot& own, const char* what,
            const std::function<void(store::Snapshot)>& on_snapshot);

// Sends snapshot r to rank r, and returns the snapshots that the ranks send to this one, by rank.
std::vector<store::Snapshot> exchange(Communicator& comm, const std::vector<store::Snapshot>& to,
                                      const char* what);

}  // namespace tutti::comm
