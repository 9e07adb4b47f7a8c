#include <algorithm>
#include <optional>

#include <torch/utils.h>

#include "tutti/comm/hosts.h"
#include "tutti/params/summation/summation.h"

namespace tutti {
namespace {

using Tensors = std::vector<torch::Tensor>;
using comm::Slice;

// Every part of a bucket has an owner, which adds what all hosts have of it. On every other host the part is
// divided into pieces, one for each rank of that host. The rank adds the host's values of its piece, sends
// the result to the owner, receives the sum, and writes it into the vectors of all ranks of its host.
class ByHosts final : public Summation {
 public:
  ByHosts(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
          const SummationOptions& options);

  std::string name() const override { return "tree"; }
  bool overlaps() const override { return true; }
  Tensors words(const torch::Tensor& own, int64_t step) override { return gather_words(comm_, own, step); }
  void add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) override;
  void spread(const Tensors& vectors, int64_t step) override;

 private:
  bool is_here(int rank) const { return layout_.host_of(rank) == host_; }
  // Returns the sums of a host, after its own values have been added as far as possible.
  std::vector<comm::Root> roots_of(int host) const;
  // Returns the piece of the part of `owner` that `rank`, which is on another host, handles.
  Slice piece_of(const Bucket& bucket, int owner, int rank) const;
  torch::Tensor add_here(const Bucket& bucket, const Slice& slice, const comm::Program& program) const;
  Tensors collect(const Bucket& bucket, int64_t step) const;
  void add_part(const Bucket& bucket, const Tensors& of_roots, double divisor) const;
  void hand_out(const Bucket& bucket, const Tensors& everyones, const comm::Options& options) const;
  void sync(int64_t step) { shared_.sync({.what = "gradients", .step = step}); }

  comm::Communicator& comm_;
  const comm::RankLayout layout_;
  comm::SharedVectors& shared_;  // of this host
  const int host_;
  const int own_;  // the rank of this worker among those of its host
  const Buckets& buckets_;
  const ControlWord& word_;
  const SummationOptions options_;
  const SharedInputs inputs_;  // of this host
};

ByHosts::ByHosts(comm::Communicator& comm, const Buckets& buckets, const ControlWord& word,
                 const SummationOptions& options)
    : comm_(comm),
      layout_(comm.hosts()->layout),
      shared_(*comm.hosts()->inside.shared()),
      host_(layout_.host_of(comm.rank())),
      own_(layout_.local_rank(comm.rank())),
      buckets_(buckets),
      word_(word),
      options_(options),
      inputs_(shared_, buckets, word, layout_.first(host_)) {}

std::vector<comm::Root> ByHosts::roots_of(int host) const {
  const auto sources = word_.sources();
  const auto host_at = [&](size_t source) { return layout_.host_of(sources[source].rank); };
  size_t first = 0;
  while (first < sources.size() && host_at(first) < host) ++first;
  size_t end = first;
  while (end < sources.size() && host_at(end) == host) ++end;
  return comm::roots_of(word_.nodes().subspan(first, end - first), word_.leaves());
}

Slice ByHosts::piece_of(const Bucket& bucket, int owner, int rank) const {
  const Slice part = part_of(bucket, owner, comm_.world());
  const Slice piece =
      comm::slice_of(part.size(), layout_.local_rank(rank), layout_.size(layout_.host_of(rank)));
  return {part.begin + piece.begin, part.begin + piece.end};
}

// Returns the sum of one root of this host, for a slice of the bucket.
torch::Tensor ByHosts::add_here(const Bucket& bucket, const Slice& slice,
                                const comm::Program& program) const {
  const torch::ScalarType type = buckets_.vectors[bucket.vector].scalar_type();
  const torch::Tensor sum = torch::empty({slice.size()}, torch::TensorOptions().dtype(type));
  std::byte* output = bytes_at(sum, 0);
  comm::reduce(inputs_.inputs(bucket.vector, slice.begin), {&output, 1}, sum_of(type, slice.size()), program);
  return sum;
}

// Returns the value of each root of each host, in their order, for this rank's part; undefined for a root
// without data.
Tensors ByHosts::collect(const Bucket& bucket, int64_t step) const {
  const auto type = torch::TensorOptions().dtype(buckets_.vectors[bucket.vector].scalar_type());
  std::vector<std::vector<comm::Root>> roots;
  for (int host = 0; host < layout_.hosts(); ++host) roots.push_back(roots_of(host));
  const auto there = [](const std::vector<comm::Root>& all) {
    return std::count_if(all.begin(), all.end(),
                         [](const comm::Root& root) { return !root.program.empty(); });
  };
  Tensors sends;
  Tensors recvs;
  for (int rank = 0; rank < comm_.world(); ++rank) {
    Tensors pieces = {torch::empty({0}, type)};
    if (!is_here(rank)) {
      for (const comm::Root& root : roots[static_cast<size_t>(host_)]) {
        if (!root.program.empty())
          pieces.push_back(add_here(bucket, piece_of(bucket, rank, comm_.rank()), root.program));
      }
    }
    sends.push_back(torch::cat(pieces));
    const int64_t size = is_here(rank) ? 0 : piece_of(bucket, comm_.rank(), rank).size();
    recvs.push_back(torch::empty({there(roots[static_cast<size_t>(layout_.host_of(rank))]) * size}, type));
  }
  comm_.all_to_all_uneven(recvs, sends, {.what = "gradients", .step = step});
  const Slice part = part_of(bucket, comm_.rank(), comm_.world());
  Tensors of_roots;
  for (int host = 0; host < layout_.hosts(); ++host) {
    int64_t taken = 0;
    for (const comm::Root& root : roots[static_cast<size_t>(host)]) {
      if (root.program.empty()) {
        of_roots.emplace_back();
      } else if (host == host_) {
        of_roots.push_back(add_here(bucket, part, root.program));
      } else {
        Tensors pieces;
        for (int rank = layout_.first(host); rank < layout_.first(host) + layout_.size(host); ++rank) {
          const int64_t size = piece_of(bucket, comm_.rank(), rank).size();
          pieces.push_back(recvs[static_cast<size_t>(rank)].narrow(0, taken * size, size));
        }
        of_roots.push_back(torch::cat(pieces));
        ++taken;
      }
    }
  }
  return of_roots;
}

void ByHosts::add_part(const Bucket& bucket, const Tensors& of_roots, double divisor) const {
  std::vector<comm::Node> nodes;
  for (int host = 0; host < layout_.hosts(); ++host) {
    for (const comm::Root& root : roots_of(host)) nodes.push_back({root.place, !root.program.empty()});
  }
  const Slice part = part_of(bucket, comm_.rank(), comm_.world());
  std::vector<const std::byte*> inputs;
  for (const torch::Tensor& sum : of_roots) inputs.push_back(sum.defined() ? bytes_at(sum, 0) : nullptr);
  const bool scatter = options_.scatter && bucket.gradients;
  comm::reduce(inputs,
               inputs_.outputs(bucket.vector, part.begin, scatter ? std::optional(own_) : std::nullopt),
               sum_of(buckets_.vectors[bucket.vector].scalar_type(), part.size(), divisor),
               comm::program_of(nodes, word_.leaves()));
}

// Sends this rank's part to all other hosts, and copies the pieces that arrive to all ranks of this host.
void ByHosts::hand_out(const Bucket& bucket, const Tensors& everyones, const comm::Options& options) const {
  const torch::Tensor& mine = everyones[static_cast<size_t>(own_)];
  Tensors sends;
  Tensors recvs;
  for (int rank = 0; rank < comm_.world(); ++rank) {
    const Slice none{0, 0};
    sends.push_back(stretch_of(mine, is_here(rank) ? none : piece_of(bucket, comm_.rank(), rank)));
    recvs.push_back(stretch_of(mine, is_here(rank) ? none : piece_of(bucket, rank, comm_.rank())));
  }
  comm_.all_to_all_uneven(recvs, sends, options);
  for (int rank = 0; rank < comm_.world(); ++rank) {
    if (!is_here(rank)) copy_to_all(everyones, own_, piece_of(bucket, rank, comm_.rank()));
  }
}

void ByHosts::add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) {
  const Bucket& which = buckets_.all[bucket];
  inputs_.show(which, subtrees);
  sync(step);
  const Tensors of_roots = collect(which, step);
  // All ranks of the host have read the old values now.
  sync(step);
  add_part(which, of_roots, divisor);
  if (!options_.scatter || !which.gradients)
    hand_out(which, inputs_.everyones(which.vector), {.what = "the sum of gradients", .step = step});
  sync(step);
}

void ByHosts::spread(const Tensors& vectors, int64_t step) {
  for (const Bucket& bucket : buckets_.all) {
    if (!bucket.gradients) continue;
    const Tensors everyones = shared_.everyones(vectors[bucket.vector]);
    copy_to_all(everyones, own_, part_of(bucket, comm_.rank(), comm_.world()));
    hand_out(bucket, everyones, {.what = "the parameters", .step = step});
  }
  sync(step);
}

}  // namespace

std::unique_ptr<Summation> sum_by_hosts(comm::Communicator& comm, const Buckets& buckets,
                                        const ControlWord& word, const SummationOptions& options) {
  return std::make_unique<ByHosts>(comm, buckets, word, options);
}

}  // namespace tutti
