#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/base/agreement.h"
#include "tutti/base/json.h"
#include "tutti/embedding/owned_rows.h"
#include "tutti/ps/placement.h"
#include "tutti/rpc/message.h"
#include "tutti/store/named_tensors.h"

// Encoding of the messages between workers and servers. The rpc layer ensures that both ends are the same
// version of Tutti; a malformed message throws InvalidArgument all the same.
namespace tutti::ps {

// Upper bounds for numbers in a message.
inline constexpr int64_t kMostWorkers = 1 << 16;
inline constexpr int64_t kMostSteps = int64_t{1} << 60;
inline constexpr int64_t kLongestPatience = 1000000000000;  // ms: 30 years, which overflow no time point

std::span<std::byte> bytes_of(const torch::Tensor& contiguous);
// Refers to the tensor's memory, which lives as long as the piece; a tensor on a device is copied to the
// host.
rpc::Piece piece_of(const torch::Tensor& contiguous);
std::vector<rpc::Piece> pieces_of(const std::vector<torch::Tensor>& tensors);
void append(rpc::Message& message, const std::vector<torch::Tensor>& tensors);
// For tensors that may change before the answer is sent. Copies directly into the caller's destination if it
// is in shared memory.
void append_copies(rpc::Message& answer, const std::vector<torch::Tensor>& tensors,
                   const rpc::Message& request);

// The gradients of a synchronous step travel in segments: a server adds a segment of all workers and releases
// it while the next ones are on their way, so that its memory does not grow with the gradients of workers.
struct Segment {
  static constexpr size_t kMost = size_t{1} << 20;  // bytes

  size_t vector;
  int64_t begin;  // elements
  int64_t end;
  size_t bytes;
};
std::vector<Segment> segments_of(const std::vector<torch::Tensor>& vectors);
// Appends the vectors of several sums to a message: each segment of all sums, one after the other. All sums
// have vectors of the same types and sizes, which have to stay where they are.
void append_segments(rpc::Message& message, const std::vector<std::vector<torch::Tensor>>& sums);

// Destinations for the pieces of an answer: the tensors themselves, or, for tensors on a device, buffers on
// the host that take_over() copies to the device.
class Places {
 public:
  explicit Places(const std::vector<torch::Tensor>& tensors);
  std::vector<std::span<std::byte>> spans() const;
  void take_over() const;

 private:
  const std::vector<torch::Tensor> tensors_;
  std::vector<torch::Tensor> on_host_;
};

// Reads the pieces of a message one after the other. Waits for those that are on their way.
class Reader {
 public:
  explicit Reader(const rpc::Message& message) : message_(message) {}
  // Returns the next piece, or a view of it. Throws InvalidArgument unless it has exactly this size.
  rpc::Piece take_bytes(size_t bytes);
  torch::Tensor take_tensor(int64_t elements, torch::ScalarType type);
  void take_into(const torch::Tensor& tensor);
  void take_into(const std::vector<torch::Tensor>& tensors);
  // Throws InvalidArgument if there are unread pieces.
  void end() const;

 private:
  size_t left() const;

  const rpc::Message& message_;
  size_t next_ = 0;
};

// Return the field of that name. All throw InvalidArgument if it is missing or has another type.
int64_t number_in(const Json& head, const char* name);
// Also checks that least <= number <= most. A missing number is `otherwise`, if that is given.
int64_t number_within(const Json& head, const char* name, int64_t least, int64_t most,
                      std::optional<int64_t> otherwise = {});
std::string text_in(const Json& head, const char* name);
const Json& object_in(const Json& head, const char* name);
std::vector<std::string> lines_in(const Json& head, const char* name);
torch::ScalarType type_in(const Json& head, const char* name);
// A list of how many elements each of several vectors has.
std::vector<int64_t> counts_in(const Json& head, const char* name);

// Appends the elements of tensors (store::dense()) to the pieces, and returns their outlines. Tensors without
// names may be undefined.
Json pack(const std::vector<torch::Tensor>& tensors, std::vector<rpc::Piece>& pieces);
Json pack_named(const store::NamedTensors& tensors, std::vector<rpc::Piece>& pieces);
Json pack_snapshot(const store::Snapshot& snapshot, std::vector<rpc::Piece>& pieces);
// Return copies on the CPU. Throw InvalidArgument for invalid outlines.
std::vector<torch::Tensor> unpack(const Json& outlines, Reader& reader);
store::NamedTensors unpack_named(const Json& outlines, Reader& reader);
store::Snapshot unpack_snapshot(const Json& outline, Reader& reader);

Json to_json(const Agreement& agreement);
// Returns an agreement without lines if the field is missing.
Agreement agreement_in(const Json& head, const char* name);

Json to_json(const std::vector<BlockRange>& ranges);
std::vector<BlockRange> block_ranges_from_json(const Json& json);

// Appends the gradients of a server's rows to a message; they have to stay where they are. rows_in() returns
// the gradients in a message, whose memory they refer to; none if there are none.
void append_rows(rpc::Message& message, const embedding::RowGradients& rows);
embedding::RowGradients rows_in(const Json& head, Reader& reader);
// Returns their size, according to the head of the message.
size_t bytes_of_rows(const Json& head);

// Returns the total size of the pieces of a message.
int64_t bytes_of(const rpc::Message& message);

}  // namespace tutti::ps
