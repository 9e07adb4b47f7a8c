#include "tutti/params/summation/over_network.h"

namespace tutti {

std::vector<torch::Tensor> gather_words(comm::Communicator& comm, const torch::Tensor& word, int64_t step) {
  const torch::Tensor all = torch::empty({comm.world() * word.numel()}, torch::kDouble);
  comm.all_gather(all, word, {.what = "the control word", .step = step});
  return all.view({comm.world(), word.numel()}).unbind(0);
}

std::vector<torch::Tensor> parts_of(const Bucket& bucket, const torch::Tensor& vector, int world) {
  std::vector<torch::Tensor> parts;
  for (int rank = 0; rank < world; ++rank) {
    const comm::Slice part = part_of(bucket, rank, world);
    parts.push_back(vector.narrow(0, part.begin, part.end - part.begin));
  }
  return parts;
}

void spread_over_network(comm::Communicator& comm, const Buckets& buckets,
                         const std::vector<torch::Tensor>& vectors, int64_t step) {
  for (const Bucket& bucket : buckets.all) {
    if (!bucket.gradients) continue;
    const std::vector<torch::Tensor> parts = parts_of(bucket, vectors[bucket.vector], comm.world());
    comm.all_gather_uneven(parts, parts[static_cast<size_t>(comm.rank())],
                           {.what = "the parameters", .step = step});
  }
}

}  // namespace tutti
