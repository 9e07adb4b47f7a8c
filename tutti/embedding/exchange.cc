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
Lists<Number> exchange_known(comm::Communicator& comm, const Lists<Number>& lists,
                             std::span<const int64_t> lengths, const comm::Options& options) {
  Lists<Number> received(lists.size());
  std::vector<torch::Tensor> from;
  std::vector<torch::Tensor> to;
  for (size_t i = 0; i < lists.size(); ++i) {
    received[i].resize(static_cast<size_t>(lengths[i]));
    from.push_back(tensor_of(lists[i]));
    to.push_back(tensor_of(received[i]));
  }
  comm.all_to_all_uneven(to, from, options).wait();
  return received;
}

}  // namespace

Lists<int64_t> exchange(comm::Communicator& comm, const Lists<int64_t>& lists, const comm::Options& options) {
  std::vector<int64_t> own;
  for (const auto& list : lists) own.push_back(static_cast<int64_t>(list.size()));
  std::vector<int64_t> lengths(own.size());
  comm.all_to_all(tensor_of(lengths), tensor_of(own), options).wait();
  return exchange_known(comm, lists, lengths, options);
}

Lists<float> exchange(comm::Communicator& comm, const Lists<float>& lists, std::span<const int64_t> lengths,
                      const comm::Options& options) {
  return exchange_known(comm, lists, lengths, options);
}

}  // namespace tutti::embedding
