#include "tutti/store/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"
#include "tutti/base/type_name.h"

namespace tutti::store {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // the limit of the safetensors package
constexpr const char* kMetadataName = "__metadata__";
constexpr const char* kTiedKey = "tutti_tied";  // in the metadata

struct TypeName {
  std::string_view name;
  torch::ScalarType type;
};

constexpr std::array<TypeName, 10> kTypes = {{{"F64", torch::kDouble},
                                              {"F32", torch::kFloat},
                                              {"F16", torch::kHalf},
                                              {"BF16", torch::kBFloat16},
                                              {"I64", torch::kLong},
                                              {"I32", torch::kInt},
                                              {"I16", torch::kShort},
                                              {"I8", torch::kChar},
                                              {"U8", torch::kByte},
                                              {"BOOL", torch::kBool}}};

std::optional<std::string_view> name_of(torch::ScalarType type) {
  for (const TypeName& known : kTypes) {
    if (known.type == type) return known.name;
  }
  return std::nullopt;
}

std::optional<torch::ScalarType> type_of(std::string_view name) {
  for (const TypeName& known : kTypes) {
    if (known.name == name) return known.type;
  }
  return std::nullopt;
}

// --- Writing

void check_writable(const std::string& path, const NamedTensors& tensors) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadataName || !names.insert(name).second) {
      fail(ErrorKind::InvalidArgument, "{}: two tensors are named '{}', or the format reserves that name",
           path, name);
    }
    if (!tensor.defined() || tensor.layout() != torch::kStrided || tensor.is_meta()) {
      fail(ErrorKind::InvalidArgument, "{}: tensor '{}' has no dense elements to write", path, name);
    }
    if (!name_of(tensor.scalar_type())) {
      fail(ErrorKind::InvalidArgument, "{}: tensor '{}' has type {}, which safetensors files do not support",
           path, name, type_name(tensor.scalar_type()));
    }
  }
}

// Adds the tensors once more for each of their further names, which are noted in the metadata.
NamedTensors with_further_names(NamedTensors tensors, const TiedNames& tied,
                                std::map<std::string, std::string>& metadata) {
  const TensorsByName by_name = store::by_name(tensors);
  json noted = json::object();
  NamedTensors further;
  for (const auto& [name, first_name] : tied) {
    const auto found = by_name.find(first_name);
    if (found == by_name.end()) continue;
    further.push_back({name, found->second});
    noted[name] = first_name;
  }
  if (!further.empty()) metadata[kTiedKey] = noted.dump(-1, ' ', false, json::error_handler_t::replace);
  tensors.insert(tensors.end(), further.begin(), further.end());
  return tensors;
}

// Sorts by decreasing element size, so that each tensor begins at a multiple of its element size.
NamedTensors in_file_order(NamedTensors tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return a.tensor.element_size() > b.tensor.element_size();
  });
  return tensors;
}

std::string header_of(const std::string& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataName] = metadata;
  uint64_t begin = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t end = begin + tensor.nbytes();
    header[name] = {{"dtype", *name_of(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {begin, end}}};
    begin = end;
  }
  try {
    std::string text = header.dump();
    text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
    return text;
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::InvalidArgument, "{}: a name or a piece of metadata is not UTF-8: {}", path,
         error.what());
  }
}

std::array<std::byte, kLengthBytes> little_endian(uint64_t value) {
  std::array<std::byte, kLengthBytes> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  return bytes;
}

// --- Reading

uint64_t read_header_length(const FileReader& file) {
  if (file.size() < kLengthBytes) {
    fail(ErrorKind::DataLoss, "{}: the file has {} bytes, too few for a safetensors file", file.path(),
         file.size());
  }
  std::array<std::byte, kLengthBytes> bytes{};
  file.read_at(0, bytes);
  if (bytes[0] == std::byte{'P'} && bytes[1] == std::byte{'K'} && bytes[2] == std::byte{3})
    fail(ErrorKind::InvalidArgument,
         "{}: this is a ZIP archive, such as torch.save() writes, and not a safetensors file. tutti::load() "
         "reads it; "
         "or write it in Python by safetensors.torch.save_file(model.state_dict(), \"weights.safetensors\")",
         file.path());
  uint64_t length = 0;
  for (size_t i = 0; i < bytes.size(); ++i) length |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  if (length > kLongestHeader || length > file.size() - kLengthBytes) {
    fail(ErrorKind::DataLoss, "{}: bytes 0 to 7 declare a header of {} bytes, but the file has {}",
         file.path(), length, file.size());
  }
  return length;
}

json parse_header(const std::string& path, const std::string& text) {
  json header = parse_sorted_json(text, fmt::format("{}: the header, from byte {} on,", path, kLengthBytes),
                                  ErrorKind::DataLoss);
  if (!header.is_object()) fail(ErrorKind::DataLoss, "{}: the header is not a JSON object", path);
  return header;
}

std::map<std::string, std::string> parse_metadata(const std::string& path, const json& value) {
  try {
    return value.get<std::map<std::string, std::string>>();
  } catch (const json::exception&) {
    fail(ErrorKind::DataLoss, "{}: {} is not an object of strings", path, kMetadataName);
  }
}

TiedNames parse_tied(const std::string& path, const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find(kTiedKey);
  if (found == metadata.end()) return {};
  const std::string what = fmt::format("{}: '{}' in the metadata", path, kTiedKey);
  try {
    return parse_sorted_json(found->second, what, ErrorKind::DataLoss).get<TiedNames>();
  } catch (const json::exception&) {
    fail(ErrorKind::DataLoss, "{} is not an object of strings", what);
  }
}

bool is_sizes(const json& value) {
  constexpr auto kGreatest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const json& size) {
           return size.is_number_unsigned() && size.get<uint64_t>() <= kGreatest;
         });
}

// Returns the number of bytes for type and shape, or nullopt if this number, or the strides of an empty
// tensor, would overflow.
std::optional<uint64_t> bytes_needed(torch::ScalarType type, const std::vector<int64_t>& shape) {
  auto bytes = static_cast<int64_t>(c10::elementSize(type));
  bool empty = false;
  for (const int64_t size : shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

TensorInfo parse_tensor(const std::string& path, const std::string& name, const json& value,
                        uint64_t data_begin, uint64_t file_size) {
  const bool well_formed = value.is_object() && value.contains("dtype") && value["dtype"].is_string() &&
                           value.contains("shape") && is_sizes(value["shape"]) &&
                           value.contains("data_offsets") && is_sizes(value["data_offsets"]) &&
                           value["data_offsets"].size() == 2;
  if (!well_formed) {
    fail(ErrorKind::DataLoss,
         "{}: the header's entry for tensor '{}' needs dtype, shape and two data_offsets", path, name);
  }
  const auto type_name = value["dtype"].get<std::string>();
  const auto type = type_of(type_name);
  if (!type)
    fail(ErrorKind::Unimplemented, "{}: tensor '{}' has the unknown type '{}'", path, name, type_name);

  TensorInfo info{.name = name, .type = *type, .shape = value["shape"].get<std::vector<int64_t>>()};
  const auto begin = value["data_offsets"][0].get<uint64_t>();
  const auto end = value["data_offsets"][1].get<uint64_t>();
  if (begin > end || end > file_size - data_begin) {
    fail(ErrorKind::DataLoss,
         "{}: the header places tensor '{}' at bytes {} to {}, but only {} bytes follow the header", path,
         name, begin, end, file_size - data_begin);
  }
  if (bytes_needed(*type, info.shape) != end - begin) {
    fail(ErrorKind::DataLoss,
         "{}: tensor '{}' has type {} and shape [{}], which do not match its size of {} bytes", path, name,
         type_name, fmt::join(info.shape, ", "), end - begin);
  }
  info.begin = data_begin + begin;
  info.bytes = end - begin;
  return info;
}

// Checks that each tensor begins where the previous one ends, and that the last one ends with the file.
void check_filled(const std::string& path, const std::vector<TensorInfo>& tensors, uint64_t data_begin,
                  uint64_t file_size) {
  uint64_t at = data_begin;
  for (const TensorInfo& info : tensors) {
    if (info.begin != at) {
      fail(ErrorKind::DataLoss, "{}: tensor '{}' begins at byte {}, but the previous one ends at byte {}",
           path, info.name, info.begin, at);
    }
    at += info.bytes;
  }
  if (at != file_size)
    fail(ErrorKind::DataLoss, "{}: bytes {} to {} belong to no tensor", path, at, file_size);
}

constexpr int64_t kChunkBytes = 16 << 20;

// Calls `body` with pieces of the bytes that take a fraction of a second each, and tells each one.
template <class Byte, class Body>
void for_each_piece(std::span<Byte> bytes, const OnBytes& on_bytes, Body body) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<size_t>(bytes.size(), kChunkBytes));
    body(piece);
    if (on_bytes) on_bytes(static_cast<int64_t>(piece.size()));
    bytes = bytes.subspan(piece.size());
  }
}

std::span<const std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

// Splits along the first dimension until a chunk is small enough to be copied.
void copy_chunks(const torch::Tensor& tensor,
                 const std::function<void(std::span<const std::byte>)>& visit_bytes) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (tensor.device().is_cpu() && tensor.is_contiguous()) {
    visit_bytes(bytes_of(tensor));
  } else if (bytes <= kChunkBytes || tensor.dim() == 0) {
    visit_bytes(bytes_of(tensor.contiguous().cpu()));
  } else if (tensor.size(0) == 1) {
    copy_chunks(tensor.select(0, 0), visit_bytes);
  } else {
    const int64_t rows = std::max<int64_t>(1, tensor.size(0) * kChunkBytes / bytes);
    for (int64_t row = 0; row < tensor.size(0); row += rows) {
      copy_chunks(tensor.narrow(0, row, std::min(rows, tensor.size(0) - row)), visit_bytes);
    }
  }
}

}  // namespace

WrittenFile write_safetensors(const std::string& path, const NamedTensors& tensors,
                              std::map<std::string, std::string> metadata, const TiedNames& tied,
                              const OnBytes& on_bytes) {
  const NamedTensors ordered = in_file_order(with_further_names(tensors, tied, metadata));
  check_writable(path, ordered);
  const std::string header = header_of(path, ordered, metadata);
  FileWriter writer(path);
  writer.write(little_endian(header.size()));
  writer.write(header);
  for (const NamedTensor& named : ordered) {
    for_each_chunk(named.tensor, [&](std::span<const std::byte> chunk) {
      for_each_piece(chunk, on_bytes, [&writer](auto piece) { writer.write(piece); });
    });
  }
  writer.finish();
  return {.bytes = writer.bytes(), .checksum = writer.checksum()};
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const uint64_t header_length = read_header_length(file_);
  std::string text(header_length, '\0');
  file_.read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const uint64_t data_begin = kLengthBytes + header_length;
  const json header = parse_header(path, text);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataName) {
      metadata_ = parse_metadata(path, value);
      tied_ = parse_tied(path, metadata_);
    } else {
      tensors_.push_back(parse_tensor(path, name, value, data_begin, file_.size()));
    }
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  });
  check_filled(path, tensors_, data_begin, file_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

torch::Tensor SafetensorsFile::read(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    std::vector<std::string> names;
    for (const TensorInfo& info : tensors_) names.push_back(info.name);
    fail(ErrorKind::InvalidArgument, "{}: there is no tensor '{}'{}", file_.path(), name,
         did_you_mean(name, names));
  }
  return read(tensors_[found->second], {});
}

torch::Tensor SafetensorsFile::read(const TensorInfo& info, const OnBytes& on_bytes) const {
  torch::Tensor tensor = torch::empty(info.shape, info.type);
  const std::span bytes(static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(info.bytes));
  for_each_piece(bytes, on_bytes, [&, at = info.begin](auto piece) mutable {
    file_.read_at(at, piece);
    at += piece.size();
  });
  // In a bool, any other byte would be undefined behaviour.
  if (info.type == torch::kBool &&
      std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; })) {
    fail(ErrorKind::DataLoss, "{}: tensor '{}' is BOOL but contains a byte that is neither 0 nor 1",
         file_.path(), info.name);
  }
  return tensor;
}

NamedTensors SafetensorsFile::read_all(const OnBytes& on_bytes) const {
  NamedTensors all;
  for (const TensorInfo& info : tensors_) all.push_back({info.name, read(info, on_bytes)});
  return all;
}

void for_each_chunk(const torch::Tensor& tensor,
                    const std::function<void(std::span<const std::byte>)>& visit_bytes) {
  // A negated view has the opposite sign of the numbers in its memory.
  copy_chunks(tensor.detach().resolve_neg(), visit_bytes);
}

}  // namespace tutti::store
