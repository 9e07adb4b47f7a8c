#include "tutti/comm/gather_all.h"

#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

namespace tutti::comm {

std::vector<int64_t> gather_all(Communicator& comm, int64_t mine, const char* what) {
  const torch::Tensor all = torch::empty({comm.world()}, torch::kInt64);
  comm.all_gather(all, torch::full({1}, mine, torch::kInt64), {.what = what}).wait();
  const auto* numbers = static_cast<const int64_t*>(all.data_ptr());
  return {numbers, numbers + comm.world()};
}

std::vector<torch::Tensor> gather_all(Communicator& comm, const torch::Tensor& mine, const char* what) {
  std::vector<torch::Tensor> all;
  for (const int64_t size : gather_all(comm, mine.numel(), what))
    all.push_back(torch::empty({size}, mine.options()));
  comm.all_gather_uneven(all, mine, {.what = what}).wait();
  return all;
}

std::vector<std::string> gather_all(Communicator& comm, const std::string& mine, const char* what) {
  std::vector<std::string> texts;
  for (const torch::Tensor& bytes : gather_all(comm, bytes_of(mine), what)) texts.push_back(text_of(bytes));
  return texts;
}

torch::Tensor bytes_of(const std::string& text) {
  const torch::Tensor bytes = torch::empty({static_cast<int64_t>(text.size())}, torch::kUInt8);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of(const torch::Tensor& bytes) {
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel())};
}

store::Snapshot broadcast(Communicator& comm, const store::Snapshot& own, int root, const char* what) {
  if (comm.world() == 1) return own;
  const bool mine = comm.rank() == root;
  store::Snapshot snapshot;
  if (mine) snapshot = {store::dense(own.tensors), own.values};
  const auto outlines = gather_all(comm, mine ? store::outline_of(snapshot).dump() : std::string(), what);
  if (!mine)
    snapshot =
        store::empty_snapshot(parse_json(outlines[static_cast<size_t>(root)], what, ErrorKind::DataLoss));
  for (const auto& [name, tensor] : snapshot.tensors) {
    if (tensor.defined()) comm.broadcast(store::elements_of(tensor), root, {.what = what}).wait();
  }
  return mine ? own : snapshot;
}

void gather(Communicator& comm, const store::Snapshot& own, const char* what,
            const std::function<void(store::Snapshot)>& on_snapshot) {
  const store::Snapshot mine{store::dense(own.tensors), own.values};
  const auto outlines = gather_all(comm, store::outline_of(mine).dump(), what);
  if (comm.rank() != 0) {
    for (const auto& [name, tensor] : mine.tensors) {
      if (tensor.defined()) comm.send(store::elements_of(tensor), 0, {.what = what}).wait();
    }
    return;
  }
  on_snapshot(own);
  for (int rank = 1; rank < comm.world(); ++rank) {
    store::Snapshot theirs =
        store::empty_snapshot(parse_json(outlines[static_cast<size_t>(rank)], what, ErrorKind::DataLoss));
    for (const auto& [name, tensor] : theirs.tensors) {
      if (tensor.defined()) comm.recv(store::elements_of(tensor), rank, {.what = what}).wait();
    }
    on_snapshot(std::move(theirs));
  }
}

}  // namespace tutti::comm
