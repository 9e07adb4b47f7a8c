#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/file.h"
#include "tutti/base/progress.h"
#include "tutti/store/named_tensors.h"

namespace tutti::store {

// Passes the elements of a tensor to `visit_bytes` in row-major order, in chunks. A tensor that is on a GPU
// or not contiguous is copied one chunk at a time; other tensors are not copied.
void for_each_chunk(const torch::Tensor& tensor,
                    const std::function<void(std::span<const std::byte>)>& visit_bytes);

// The format of the `safetensors` package: the length of the header in 8 bytes (little-endian), the header in
// JSON, the elements. Types: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL.

// Further names of tensors that a model has under several names: {"head.weight": "embedding.weight"}.
using TiedNames = std::map<std::string, std::string>;

// The size and the checksum of a file that was written.
struct WrittenFile {
  uint64_t bytes = 0;
  uint32_t checksum = 0;  // CRC-32C
};

// Streams the tensors, which may be on a GPU and need not be contiguous. They are sorted by decreasing
// element size, so that each is aligned; tensors of the same element size keep their order. Returns when all
// data are on the device. Throws InvalidArgument for duplicate names, for types that the format does not
// support, and for names that are not UTF-8.
//
// A tensor is written under its further names, too, since Python's load_state_dict() expects all names of a
// model. The format has no references, so its elements are in the file once for each name; the names are
// noted in the metadata. Names of tensors that are not among `tensors` are left out.
WrittenFile write_safetensors(const std::string& path, const NamedTensors& tensors,
                              std::map<std::string, std::string> metadata = {}, const TiedNames& tied = {},
                              const OnBytes& on_bytes = {});

// A tensor's entry in the header.
struct TensorInfo {
  std::string name;
  torch::ScalarType type = torch::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offset of its first byte in the file
  uint64_t bytes = 0;
};

// Opens a file and checks its header: names, types, shapes, and that the tensors fill the file without gaps
// or overlaps. If anything is wrong, throws a DataLoss that names the file and the tensor or byte. Does not
// check the elements. May be read from several threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  // Returns the tensors in the order of their data in the file.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The further names that the writer has noted; their tensors are among tensors(), too.
  const TiedNames& tied() const { return tied_; }
  bool has(const std::string& name) const { return index_.contains(name); }

  // Returns a copy on the CPU. An unknown name throws an InvalidArgument that suggests the nearest one.
  torch::Tensor read(const std::string& name) const;
  NamedTensors read_all(const OnBytes& on_bytes = {}) const;

 private:
  torch::Tensor read(const TensorInfo& info, const OnBytes& on_bytes) const;

  FileReader file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t> index_;  // index in tensors_ by name
  std::map<std::string, std::string> metadata_;
  TiedNames tied_;
};

}  // namespace tutti::store
