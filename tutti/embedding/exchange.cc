#include "tutti/embedding/exchange.h"

#include <torch/types.h>
#include <torch/utils.h>

namespace tutti::embedding {
namespace {

// A tensor that shares the memory of a list. What is sent is only read.
torch::Tensor tensor_of(const std::vector<int64_t>& list) {
  return torch::from_blob(const_cast<int64_t*>(list.data()), {static_cast<int64_t>(list.size())},
                          torch::kLong);
}

}  // namespace

void exchange(comm::Communicator& comm, ListsUnderWay& lists, const comm::Options& options) {
  std::vector<int64_t> own;
  for (const auto& list : lists.sent) own.push_back(static_cast<int64_t>(list.size()));
  std::vector<int64_t> lengths(own.size());
  comm::Options here = options;
  here.run = comm::Run::Here;
  comm.all_to_all(tensor_of(lengths), tensor_of(own), here).wait();
  lists.received.resize(own.size());
  std::vector<torch::Tensor> from;
  std::vector<torch::Tensor> to;
  for (size_t i = 0; i < own.size(); ++i) {
    lists.received[i].resize(static_cast<size_t>(lengths[i]));
    from.push_back(tensor_of(lists.sent[i]));
    to.push_back(tensor_of(lists.received[i]));
  }
  lists.work = comm.all_to_all_uneven(to, from, options);
}

std::vector<torch::Tensor> exchange(comm::Communicator& comm, const std::vector<torch::Tensor>& vectors,
                                    std::span<const int64_t> lengths, const comm::Options& options) {
  std::vector<torch::Tensor> received;
  for (size_t i = 0; i < vectors.size(); ++i)
    received.push_back(torch::empty({lengths[i]}, vectors[i].options()));
  comm.all_to_all_uneven(received, vectors, options).wait();
  return received;
}

}  // namespace tutti::embedding
