#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/file.h"
#include "tutti/store/named_tensor.h"

namespace tutti::store {

// The format of the `safetensors` package: the length of the header in 8 bytes (little-endian), the header in
// JSON, the elements. Types: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL.

struct WrittenFile {
  uint64_t bytes = 0;
  uint32_t checksum = 0;  // CRC-32C
};

// Streams: the tensors may be on a GPU and need not be contiguous. They lie in the file by the size of their
// elements, so that each is aligned, and within one size in the order given. On the device when this returns.
// Two tensors of one name, a type that the format does not know, and a name that is no UTF-8 are
// InvalidArgument.
WrittenFile write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

// One tensor as the header describes it.
struct TensorInfo {
  std::string name;
  torch::ScalarType type = torch::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // of its first byte in the file
  uint64_t bytes = 0;
};

// A file that was checked when it was opened: header, names, types, shapes, and that the tensors fill the
// file without a hole and without sharing a byte. What is wrong is a DataLoss that names the file and the
// tensor or byte. The elements are not looked at. Safe to read from several threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  // In the order in which they lie in the file.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool has(const std::string& name) const { return index_.contains(name); }

  // A copy on the CPU. A name that is not there is an InvalidArgument that suggests the nearest.
  torch::Tensor read(const std::string& name) const;
  std::vector<NamedTensor> read_all() const;

 private:
  torch::Tensor read(const TensorInfo& info) const;

  FileReader file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t> index_;  // name -> place in tensors_
  std::map<std::string, std::string> metadata_;
};

}  // namespace tutti::store
