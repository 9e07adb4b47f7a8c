#include "tutti/comm/gather_all.h"

#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

namespace tutti::comm {
namespace {

// Calls `visit_bytes` with the elements of each tensor, in order.
template <class Visit>
void for_each_elements(const store::NamedTensors& dense, const Visit& visit_bytes) {
  for (const auto& [name, tensor] : dense)
    if (tensor.defined()) visit_bytes(tensor.data_ptr(), tensor.nbytes());
}

// Converts a snapshot to a tensor that can be sent, and back: the size of the outline, the outline, and the
// elements of the tensors. An empty one has no bytes.
torch::Tensor packed(const store::Snapshot& snapshot) {
  if (snapshot.empty()) return torch::empty({0}, torch::kUInt8);
  const store::Snapshot own{store::dense(snapshot.tensors), snapshot.values};
  const std::string outline = store::outline_of(own).dump();
  const size_t size = outline.size();
  size_t bytes = sizeof(size) + size;
  for_each_elements(own.tensors, [&](const void*, size_t more) { bytes += more; });
  const torch::Tensor all = torch::empty({static_cast<int64_t>(bytes)}, torch::kUInt8);
  auto* to = static_cast<char*>(all.data_ptr());
  const auto append = [&](const void* from, size_t count) {
    if (count > 0) std::memcpy(to, from, count);
    to += count;
  };
  append(&size, sizeof(size));
  append(outline.data(), size);
  for_each_elements(own.tensors, append);
  return all;
}

store::Snapshot unpacked(const torch::Tensor& all, const char* what) {
  if (all.numel() == 0) return {};
  const auto* from = static_cast<const char*>(all.data_ptr());
  size_t size = 0;
  std::memcpy(&size, from, sizeof(size));
  from += sizeof(size);
  store::Snapshot snapshot = store::empty_snapshot(parse_json({from, size}, what, ErrorKind::DataLoss));
  from += size;
  for_each_elements(snapshot.tensors, [&](void* to, size_t count) {
    if (count > 0) std::memcpy(to, from, count);
    from += count;
  });
  return snapshot;
}

}  // namespace

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

std::vector<store::Snapshot> exchange(Communicator& comm, const std::vector<store::Snapshot>& to,
                                      const char* what) {
  std::vector<torch::Tensor> sent;
  const torch::Tensor sizes = torch::empty({comm.world()}, torch::kInt64);
  for (const store::Snapshot& snapshot : to) {
    sent.push_back(packed(snapshot));
    sizes[static_cast<int64_t>(sent.size()) - 1] = sent.back().numel();
  }
  const torch::Tensor sizes_here = torch::empty_like(sizes);
  comm.all_to_all(sizes_here, sizes, {.what = what}).wait();
  std::vector<torch::Tensor> received;
  for (int64_t rank = 0; rank < comm.world(); ++rank)
    received.push_back(torch::empty({sizes_here[rank].item<int64_t>()}, torch::kUInt8));
  comm.all_to_all_uneven(received, sent, {.what = what}).wait();
  std::vector<store::Snapshot> snapshots;
  for (const torch::Tensor& bytes : received) snapshots.push_back(unpacked(bytes, what));
  return snapshots;
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
