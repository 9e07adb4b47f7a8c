#include "tutti/ps/segments.h"

#include <algorithm>

#include "tutti/ps/wire.h"

namespace tutti::ps {

std::vector<Segment> segments_of(const std::vector<torch::Tensor>& vectors) {
  std::vector<Segment> segments;
  for (size_t vector = 0; vector < vectors.size(); ++vector) {
    const auto size = static_cast<int64_t>(vectors[vector].element_size());
    const int64_t most = static_cast<int64_t>(kSegment) / size;
    for (int64_t begin = 0; begin < vectors[vector].numel(); begin += most) {
      const int64_t end = std::min(begin + most, vectors[vector].numel());
      segments.push_back({vector, begin, end, static_cast<size_t>((end - begin) * size)});
    }
  }
  return segments;
}

void append_segments(rpc::Message& message, const std::vector<std::vector<torch::Tensor>>& sums) {
  if (sums.empty()) return;
  std::vector<std::vector<rpc::Piece>> wholes;
  for (const std::vector<torch::Tensor>& sum : sums) wholes.push_back(pieces_of(sum));
  for (const Segment& segment : segments_of(sums.front())) {
    const size_t offset = static_cast<size_t>(segment.begin) * sums.front()[segment.vector].element_size();
    for (const std::vector<rpc::Piece>& whole : wholes) {
      const rpc::Piece& vector = whole[segment.vector];
      message.pieces.push_back({vector.bytes.subspan(offset, segment.bytes), vector.owner});
    }
  }
}

}  // namespace tutti::ps
