#include "tutti/embedding/exchange.h"

#include <torch/types.h>
#include <torch/utils.h>

namespace tutti::embedding {
namespace {

// A tensor that shares the memory of a list. What is sent is only read.
template <class Number>
torch::Tensor tensor_of(const std::vector<Number>& list) {
  return torch::from_blob(const_cast<Number*>(list.data()), {static_cast<int64_t>(list.size())},
                          torch::CppTypeToScalarType<Number>::value);
}

template <class Number>
comm::Work exchange_known(comm::Communicator& comm, const Lists<Number>& lists, Lists<Number>& received,
                          std::span<const int64_t> lengths, const comm::Options& options) {
  received.resize(lists.size());
  std::vector<torch::Tensor> from;
  std::vector<torch::Tensor> to;
  for (size_t i = 0; i < lists.size(); ++i) {
    received[i].resize(static_cast<size_t>(lengths[i]));
    from.push_back(tensor_of(lists[i]));
    to.push_back(tensor_of(received[i]));
  }
  return comm.all_to_all_uneven(to, from, options);
}

}  // namespace

void exchange(comm::Communicator& comm, ListsUnderWay& lists, const comm::Options& options) {
  std::vector<int64_t> own;
  for (const auto& list : lists.sent) own.push_back(static_cast<int64_t>(list.size()));
  std::vector<int64_t> lengths(own.size());
  comm::Options here = options;
  here.run = comm::Run::Here;
  comm.all_to_all(tensor_of(lengths), tensor_of(own), here).wait();
  lists.work = exchange_known(comm, lists.sent, lists.received, lengths, options);
}

Lists<float> exchange(comm::Communicator& comm, const Lists<float>& lists, std::span<const int64_t> lengths,
                      const comm::Options& options) {
  Lists<float> received;
  exchange_known(comm, lists, received, lengths, options).wait();
  return received;
}

}  // namespace tutti::embedding
