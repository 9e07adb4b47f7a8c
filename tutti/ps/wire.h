#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/params/optimizer.h"
#include "tutti/ps/shard.h"
#include "tutti/rpc/message.h"

// How workers and servers write down what they say. Both ends are one version of Tutti, which the rpc room
// sees to; what does not fit is an InvalidArgument all the same.
namespace tutti::ps {

// The most that a message may speak of.
inline constexpr int64_t kMostWorkers = 1 << 16;
inline constexpr int64_t kMostLanes = 1 << 20;
inline constexpr int64_t kMostSteps = int64_t{1} << 60;

std::span<std::byte> bytes_of(const torch::Tensor& contiguous);
// The tensor's own memory, which lives as long as the piece; of one on a device, a copy.
rpc::Piece piece_of(const torch::Tensor& contiguous);
std::vector<rpc::Piece> pieces_of(const std::vector<torch::Tensor>& tensors);

// Where the pieces of an answer go: into the tensors themselves, or, of those on a device, into memory beside
// them, until take_over().
class Places {
 public:
  explicit Places(const std::vector<torch::Tensor>& tensors);
  std::vector<std::span<std::byte>> spans() const;
  void take_over() const;

 private:
  const std::vector<torch::Tensor> tensors_;
  std::vector<torch::Tensor> on_host_;
};

// Takes the pieces of a message one after the other.
class Reader {
 public:
  explicit Reader(const rpc::Message& message) : message_(message) {}
  // A tensor that sees the next piece, which has to be so long.
  torch::Tensor take(int64_t elements, torch::ScalarType type);
  void take_into(const torch::Tensor& tensor);
  void take_into(const std::vector<torch::Tensor>& tensors);
  // Nothing is left over.
  void end() const;

 private:
  const rpc::Message& message_;
  size_t next_ = 0;
};

// [{"type": "float32", "size": 10}, ...]
Json to_json(const std::vector<torch::Tensor>& tensors);
std::vector<torch::Tensor> zeros_from_json(const Json& json);
// The bytes that such a list speaks of.
int64_t bytes_in(const Json& list);

// Tensors of any shape and device, of which some may be undefined, as outlines and pieces. What has no gaps
// in memory comes out in the same order, so that kernels do the same with it. InvalidArgument: a sparse one.
Json pack(const std::vector<torch::Tensor>& tensors, std::vector<rpc::Piece>& pieces);
// Copies, on the CPU. Outlines that make no sense are an InvalidArgument.
std::vector<torch::Tensor> unpack(const Json& outlines, Reader& reader);

Json to_json(const std::vector<Shard::Part>& parts);
std::vector<Shard::Part> parts_from_json(const Json& json);

std::vector<torch::Tensor> vectors_of(const Optimizer::State& state);

// All bytes of a message.
int64_t bytes_of(const rpc::Message& message);

// What the head says under this name; anything else is an InvalidArgument.
int64_t number_in(const Json& head, const char* name);
// The same, not beyond these two; what is not there is `otherwise`, where that is given.
int64_t number_within(const Json& head, const char* name, int64_t least, int64_t most,
                      std::optional<int64_t> otherwise = {});
std::string text_in(const Json& head, const char* name);
const Json& object_in(const Json& head, const char* name);
std::vector<std::string> lines_in(const Json& head, const char* name);
torch::ScalarType type_in(const Json& head, const char* name);
std::vector<int64_t> sizes_in(const Json& head, const char* name);

}  // namespace tutti::ps
