#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/rpc/message.h"

// The gradients of a synchronous step travel in segments: a server adds a segment of all workers and lets go
// of it while the next ones are on their way, so that its memory does not grow with whole gradients of
// workers.
namespace tutti::ps {

// The maximum size of a segment in bytes.
inline constexpr size_t kSegment = size_t{1} << 20;

// A contiguous range of one vector.
struct Segment {
  size_t vector;
  int64_t begin;  // elements
  int64_t end;
  size_t bytes;
};

std::vector<Segment> segments_of(const std::vector<torch::Tensor>& vectors);

// Appends the vectors of several sums to a message: each segment of all sums, one after the other. All sums
// have vectors of the same types and sizes, which have to stay where they are.
void append_segments(rpc::Message& message, const std::vector<std::vector<torch::Tensor>>& sums);

}  // namespace tutti::ps
