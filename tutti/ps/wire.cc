#include "tutti/ps/wire.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/type_name.h"

namespace tutti::ps {
namespace {

// No tensor has so many elements; larger numbers in a message are invalid or would overflow.
constexpr int64_t kMostElements = int64_t{1} << 40;

int64_t size_in(const Json& head, const char* name) {
  const int64_t size = number_in(head, name);
  if (size < 0 || size > kMostElements)
    fail(ErrorKind::InvalidArgument, "'{}' is {}, which is out of range", name, size);
  return size;
}

// Returns host memory of the size of a tensor on a device; it is pinned, so that copies to a GPU do not
// block.
torch::Tensor memory_beside(const torch::Tensor& tensor) {
  return torch::empty(tensor.sizes(),
                      torch::TensorOptions().dtype(tensor.dtype()).pinned_memory(tensor.is_cuda()));
}

}  // namespace

std::span<std::byte> bytes_of(const torch::Tensor& contiguous) {
  return {static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

rpc::Piece piece_of(const torch::Tensor& contiguous) {
  const auto owner = std::make_shared<const torch::Tensor>(
      contiguous.is_cpu() ? contiguous : memory_beside(contiguous).copy_(contiguous.detach()));
  return {bytes_of(*owner), owner};
}

std::vector<rpc::Piece> pieces_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<rpc::Piece> pieces;
  for (const torch::Tensor& tensor : tensors) pieces.push_back(piece_of(tensor));
  return pieces;
}

void append(rpc::Message& message, const std::vector<torch::Tensor>& tensors) {
  for (const torch::Tensor& tensor : tensors) message.pieces.push_back(piece_of(tensor));
}

void append_copies(rpc::Message& answer, const std::vector<torch::Tensor>& tensors,
                   const rpc::Message& request) {
  for (const torch::Tensor& tensor : tensors) {
    const std::span<std::byte> from = bytes_of(tensor);
    const size_t index = answer.pieces.size();
    if (index < request.into.size() && request.into[index].size() == from.size() && !from.empty()) {
      const std::span<std::byte> to = request.into[index];
      std::memcpy(to.data(), from.data(), from.size());
      answer.pieces.push_back({to});
    } else {
      answer.pieces.push_back(piece_of(tensor.clone()));
    }
  }
}

std::vector<Segment> segments_of(const std::vector<torch::Tensor>& vectors) {
  std::vector<Segment> segments;
  for (size_t vector = 0; vector < vectors.size(); ++vector) {
    const auto size = static_cast<int64_t>(vectors[vector].element_size());
    const int64_t most = static_cast<int64_t>(Segment::kMost) / size;
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

Places::Places(const std::vector<torch::Tensor>& tensors) : tensors_(tensors) {
  for (const torch::Tensor& tensor : tensors)
    on_host_.push_back(tensor.is_cpu() ? tensor : memory_beside(tensor));
}

std::vector<std::span<std::byte>> Places::spans() const {
  std::vector<std::span<std::byte>> spans;
  for (const torch::Tensor& tensor : on_host_) spans.push_back(bytes_of(tensor));
  return spans;
}

void Places::take_over() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].is_cpu()) tensors_[i].detach().copy_(on_host_[i]);
  }
}

size_t Reader::left() const {
  return message_.incoming != nullptr ? message_.incoming->left() : message_.pieces.size() - next_;
}

rpc::Piece Reader::take_bytes(size_t bytes) {
  if (left() == 0) fail(ErrorKind::InvalidArgument, "the message has {} pieces; more were expected", next_);
  const size_t size =
      message_.incoming != nullptr ? message_.incoming->next_size() : message_.pieces[next_].bytes.size();
  if (size != bytes)
    fail(ErrorKind::InvalidArgument, "piece {} of the message has {} bytes, expected {}", next_, size, bytes);
  ++next_;
  return message_.incoming != nullptr ? message_.incoming->take_piece() : message_.pieces[next_ - 1];
}

torch::Tensor Reader::take_tensor(int64_t elements, torch::ScalarType type) {
  const rpc::Piece piece = take_bytes(static_cast<size_t>(elements) * c10::elementSize(type));
  // from_blob() takes no pointer to const.
  return torch::from_blob(
      const_cast<std::byte*>(piece.bytes.data()), {elements}, [owner = piece.owner](void*) {},
      torch::TensorOptions().dtype(type));
}

void Reader::take_into(const torch::Tensor& tensor) {
  const torch::Tensor from = take_tensor(tensor.numel(), tensor.scalar_type());
  if (tensor.is_cpu()) {
    std::memcpy(tensor.data_ptr(), from.data_ptr(), tensor.nbytes());
  } else {
    tensor.detach().copy_(from.view(tensor.sizes()));
  }
}

void Reader::take_into(const std::vector<torch::Tensor>& tensors) {
  for (const torch::Tensor& tensor : tensors) take_into(tensor);
}

void Reader::end() const {
  if (left() > 0)
    fail(ErrorKind::InvalidArgument, "the message has {} pieces, expected {}", next_ + left(), next_);
}

Json pack_named(const store::NamedTensors& tensors, std::vector<rpc::Piece>& pieces) {
  const store::NamedTensors dense = store::dense(tensors);
  for (const auto& [name, tensor] : dense) {
    if (tensor.defined() && tensor.numel() > 0) pieces.push_back(piece_of(tensor));
  }
  return store::outline_of(dense);
}

Json pack(const std::vector<torch::Tensor>& tensors, std::vector<rpc::Piece>& pieces) {
  store::NamedTensors unnamed;
  for (const torch::Tensor& tensor : tensors) unnamed.push_back({"", tensor});
  return pack_named(unnamed, pieces);
}

Json pack_snapshot(const store::Snapshot& snapshot, std::vector<rpc::Piece>& pieces) {
  return {{"values", snapshot.values}, {"tensors", pack_named(snapshot.tensors, pieces)}};
}

// The size of a piece is compared with the outline before memory is allocated.
store::NamedTensors unpack_named(const Json& outlines, Reader& reader) {
  if (!outlines.is_array()) fail(ErrorKind::InvalidArgument, "the message has no list of tensors");
  store::NamedTensors tensors;
  for (const Json& outline : outlines) {
    const auto bytes = static_cast<size_t>(store::bytes_in(outline));
    const rpc::Piece piece = bytes > 0 ? reader.take_bytes(bytes) : rpc::Piece();
    tensors.push_back(store::empty_tensor(outline));
    if (bytes > 0) std::memcpy(tensors.back().tensor.data_ptr(), piece.bytes.data(), bytes);
  }
  return tensors;
}

std::vector<torch::Tensor> unpack(const Json& outlines, Reader& reader) {
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : unpack_named(outlines, reader)) tensors.push_back(tensor);
  return tensors;
}

store::Snapshot unpack_snapshot(const Json& outline, Reader& reader) {
  return {unpack_named(outline.at("tensors"), reader), outline.at("values")};
}

Json to_json(const std::vector<BlockRange>& ranges) {
  Json json = Json::array();
  for (const BlockRange& range : ranges) {
    json.push_back({{"block", range.block},
                    {"begin", range.begin},
                    {"end", range.end},
                    {"type", type_name(range.type)}});
  }
  return json;
}

std::vector<BlockRange> block_ranges_from_json(const Json& json) {
  std::vector<BlockRange> ranges;
  for (const Json& one : json) {
    ranges.push_back({static_cast<size_t>(size_in(one, "block")), size_in(one, "begin"), size_in(one, "end"),
                      type_in(one, "type")});
    if (ranges.back().end < ranges.back().begin)
      fail(ErrorKind::InvalidArgument, "a range ends at {}, before it begins", ranges.back().end);
  }
  return ranges;
}

int64_t bytes_of(const rpc::Message& message) {
  int64_t bytes = 0;
  for (const rpc::Piece& piece : message.pieces) bytes += static_cast<int64_t>(piece.bytes.size());
  return bytes;
}

int64_t number_in(const Json& head, const char* name) {
  const auto found = head.find(name);
  if (found == head.end() || !found->is_number_integer())
    fail(ErrorKind::InvalidArgument, "the message has no number '{}'", name);
  return found->get<int64_t>();
}

int64_t number_within(const Json& head, const char* name, int64_t least, int64_t most,
                      std::optional<int64_t> otherwise) {
  if (otherwise && !head.contains(name)) return *otherwise;
  const int64_t number = number_in(head, name);
  if (number < least || number > most)
    fail(ErrorKind::InvalidArgument, "'{}' is {}, expected {} to {}", name, number, least, most);
  return number;
}

std::string text_in(const Json& head, const char* name) {
  const auto found = head.find(name);
  if (found == head.end() || !found->is_string())
    fail(ErrorKind::InvalidArgument, "the message has no text '{}'", name);
  return found->get<std::string>();
}

const Json& object_in(const Json& head, const char* name) {
  const Json& object = head.at(name);
  if (!object.is_object()) fail(ErrorKind::InvalidArgument, "'{}' is not an object", name);
  return object;
}

std::vector<std::string> lines_in(const Json& head, const char* name) {
  std::vector<std::string> lines;
  for (const Json& line : head.at(name)) lines.push_back(line.get<std::string>());
  return lines;
}

Json to_json(const Agreement& agreement) { return {{"who", agreement.who}, {"lines", agreement.lines}}; }

Agreement agreement_in(const Json& head, const char* name) {
  const auto found = head.find(name);
  if (found == head.end()) return {};
  return {text_in(*found, "who"), lines_in(*found, "lines")};
}

torch::ScalarType type_in(const Json& head, const char* name) { return type_named(text_in(head, name)); }

std::vector<int64_t> counts_in(const Json& head, const char* name) {
  std::vector<int64_t> counts;
  for (const Json& entry : head.at(name)) {
    const int64_t count = entry.is_number_integer() ? entry.get<int64_t>() : -1;
    if (count < 0 || count > kMostElements)
      fail(ErrorKind::InvalidArgument, "'{}' is {}, which is not a list of counts", name,
           head.at(name).dump());
    counts.push_back(count);
  }
  return counts;
}

}  // namespace tutti::ps
