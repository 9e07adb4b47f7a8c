#include "tutti/store/torch_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/store/pickle.h"
#include "tutti/store/zip_file.h"

namespace tutti::store {
namespace {

constexpr std::string_view kZip = "PK\x03\x04";
// The pickled number with which a file of PyTorch before 1.6 begins.
constexpr std::string_view kOld = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.";
constexpr const char* kInsteadInPython =
    "In Python: safetensors.torch.save_file(tensors, \"weights.safetensors\")";

std::string beginning_of(const std::string& path) {
  const FileReader file(path);
  std::string bytes(std::min<uint64_t>(file.size(), kOld.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

struct StorageType {
  std::string_view name;
  torch::ScalarType type;
};

constexpr std::array<StorageType, 10> kStorageTypes = {{{"DoubleStorage", torch::kDouble},
                                                        {"FloatStorage", torch::kFloat},
                                                        {"HalfStorage", torch::kHalf},
                                                        {"BFloat16Storage", torch::kBFloat16},
                                                        {"LongStorage", torch::kLong},
                                                        {"IntStorage", torch::kInt},
                                                        {"ShortStorage", torch::kShort},
                                                        {"CharStorage", torch::kChar},
                                                        {"ByteStorage", torch::kByte},
                                                        {"BoolStorage", torch::kBool}}};

// An archive, and the tensors that its pickle describes.
class Archive {
 public:
  explicit Archive(const std::string& path) : path_(path), zip_(path) {
    if (zip_.has("constants.pkl"))
      fail(ErrorKind::InvalidArgument,
           "{}: this is a TorchScript program, whose tensors are not read; an exported model has them in "
           "weights.safetensors beside it. {}",
           path_, kInsteadInPython);
    if (!zip_.has("data.pkl"))
      fail(ErrorKind::InvalidArgument, "{}: this is a ZIP archive, but torch.save() has not written it",
           path_);
    if (zip_.has("byteorder") && text("byteorder") != "little")
      fail(ErrorKind::Unimplemented, "{}: it was written on a machine with the byte order '{}'", path_,
           text("byteorder"));
  }

  std::string text(const std::string& name) const {
    std::string text(zip_.sizes().at(name), '\0');
    zip_.read(name, std::as_writable_bytes(std::span(text)));
    return text;
  }

  // Returns all elements of a storage as a vector. Its id is ("storage", type, key, device, elements).
  PickleValue storage(const PickleList& id) {
    if (id.items.size() < 5) fail_damaged("a tensor without elements");
    const std::string_view kind = get<std::string_view>(id.items[0]);
    const auto [module, type_name] = get<PickleName>(id.items[1]);
    const std::string key(get<std::string_view>(id.items[2]));
    const auto elements = get<int64_t>(id.items[4]);
    const auto type = std::find_if(kStorageTypes.begin(), kStorageTypes.end(),
                                   [&, name = type_name](const auto& each) { return each.name == name; });
    if (kind != "storage" || module != "torch" || type == kStorageTypes.end())
      fail(ErrorKind::Unimplemented, "{}: it has tensors of {}.{}, a type that is not read here", path_,
           module, type_name);
    if (const auto known = storages_.find(key); known != storages_.end()) {
      if (known->second.scalar_type() != type->type || known->second.numel() != elements)
        fail_damaged("a tensor with two types");
      return known->second;
    }
    return storages_[key] = elements_of("data/" + key, elements, type->type);
  }

  PickleValue call(const PickleName& function, const PickleList& arguments) {
    const auto& given = arguments.items;
    if (function.module == "torch._utils" && given.size() >= 4 &&
        (function.name == "_rebuild_tensor_v2" || function.name == "_rebuild_tensor")) {
      require_no_metadata(given);
      return view(get<torch::Tensor>(given[0]), get<int64_t>(given[1]), sizes(given[2]), sizes(given[3]));
    }
    if (function.module == "torch._utils" && function.name == "_rebuild_parameter" && !given.empty())
      return get<torch::Tensor>(given[0]);
    // C++ adds the types of its dictionaries (torch::jit::pickle_save).
    const bool is_typed = function.module == "torch.jit._pickle" && function.name == "restore_type_tag";
    const bool is_size = function.module == "torch" && function.name == "Size";
    if ((is_typed || is_size) && !given.empty()) return given[0];
    fail(ErrorKind::Unimplemented,
         "{}: it needs {}.{} of Python, but only dictionaries of tensors are read, and nothing is executed. "
         "In Python: torch.save(model.state_dict(), ...)",
         path_, function.module, function.name);
  }

 private:
  // The seventh argument of _rebuild_tensor_v2 may say that the elements are negated or conjugated.
  void require_no_metadata(const std::vector<PickleValue>& given) const {
    if (given.size() < 7 || std::holds_alternative<std::monostate>(given[6])) return;
    if (!get<PickleDict*>(given[6])->entries.empty())
      fail(ErrorKind::Unimplemented,
           "{}: it has a tensor that is negated or conjugated lazily. In Python: torch.save(tensor.clone(), "
           "...)",
           path_);
  }

  [[noreturn]] void fail_damaged(std::string_view what) const {
    fail(ErrorKind::DataLoss, "{}: the file is damaged: it describes {}", path_, what);
  }

  template <class Type>
  Type get(const PickleValue& value) const {
    const auto* found = std::get_if<Type>(&value);
    if (found == nullptr) fail_damaged("a tensor in another way than PyTorch does");
    return *found;
  }

  std::vector<int64_t> sizes(const PickleValue& value) const {
    std::vector<int64_t> sizes;
    for (const PickleValue& item : get<PickleList*>(value)->items) sizes.push_back(get<int64_t>(item));
    return sizes;
  }

  torch::Tensor elements_of(const std::string& name, int64_t elements, torch::ScalarType type) const {
    const auto size = zip_.sizes().find(name);
    const auto item = static_cast<uint64_t>(c10::elementSize(type));
    if (elements < 0 || size == zip_.sizes().end() || size->second % item != 0 ||
        size->second / item != static_cast<uint64_t>(elements))
      fail_damaged("a tensor with another number of elements than it has");
    torch::Tensor vector = torch::empty({elements}, type);
    zip_.read(name, {static_cast<std::byte*>(vector.data_ptr()), static_cast<size_t>(size->second)});
    // In a bool, any other byte would be undefined behaviour.
    if (type == torch::kBool && elements > 0 && vector.view(torch::kByte).gt(1).any().item<bool>())
      fail_damaged("a tensor of booleans with a byte that is neither 0 nor 1");
    return vector;
  }

  // LibTorch does not check that a view stays inside the memory of its storage.
  torch::Tensor view(const torch::Tensor& elements, int64_t offset, const std::vector<int64_t>& sizes,
                     const std::vector<int64_t>& strides) const {
    int64_t last = offset;
    int64_t count = 1;  // as if no size were 0, so that the strides of an empty tensor do not overflow
    bool is_good = offset >= 0 && sizes.size() == strides.size();
    const bool is_empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
    for (size_t d = 0; is_good && d < sizes.size(); ++d) {
      int64_t reach = 0;
      is_good = sizes[d] >= 0 && strides[d] >= 0 &&
                !__builtin_mul_overflow(count, std::max<int64_t>(sizes[d], 1), &count) &&
                !__builtin_mul_overflow(std::max<int64_t>(sizes[d] - 1, 0), strides[d], &reach) &&
                !__builtin_add_overflow(last, reach, &last);
    }
    if (!is_good || (!is_empty && (count > elements.numel() || last >= elements.numel())))
      fail_damaged("a tensor that has more elements than were saved");
    if (is_empty) return torch::empty(sizes, elements.options());
    return elements.as_strided(sizes, strides, offset);
  }

  const std::string path_;
  const ZipFile zip_;
  std::map<std::string, torch::Tensor> storages_;
};

NamedTensors tensors_of(const PickleDict& dict) {
  NamedTensors tensors;
  for (const auto& [key, value] : dict.entries) {
    const auto* name = std::get_if<std::string_view>(&key);
    const auto* tensor = std::get_if<torch::Tensor>(&value);
    if (name != nullptr && tensor != nullptr) tensors.push_back({std::string(*name), *tensor});
  }
  return tensors;
}

// Returns the tensors of the dictionary, or else of the only dictionary with tensors in it.
TorchFile chosen(const std::string& path, const PickleValue& value) {
  auto* const* dict = std::get_if<PickleDict*>(&value);
  if (dict == nullptr)
    fail(ErrorKind::InvalidArgument,
         "{}: it has no dictionary of tensors by name, such as model.state_dict()", path);
  if (NamedTensors tensors = tensors_of(**dict); !tensors.empty()) return {std::move(tensors), ""};
  std::vector<TorchFile> found;
  std::vector<std::string> keys;
  for (const auto& [key, entry] : (*dict)->entries) {
    auto* const* inner = std::get_if<PickleDict*>(&entry);
    const auto* name = std::get_if<std::string_view>(&key);
    if (inner == nullptr || name == nullptr) continue;
    NamedTensors tensors = tensors_of(**inner);
    if (tensors.empty()) continue;
    keys.emplace_back(*name);
    found.push_back({std::move(tensors), keys.back()});
  }
  if (found.empty())
    fail(ErrorKind::InvalidArgument,
         "{}: it has no dictionary of tensors by name, such as model.state_dict()", path);
  if (found.size() > 1)
    fail(ErrorKind::InvalidArgument,
         "{}: it has several dictionaries of tensors ({}); save the one that is wanted. In Python: "
         "torch.save(torch.load(\"{}\")[\"{}\"], ...)",
         path, fmt::join(keys, ", "), path, keys.front());
  return std::move(found.front());
}

}  // namespace

bool is_torch_file(const std::string& path) {
  const std::string begin = beginning_of(path);
  return begin.starts_with(kZip) || begin.starts_with(kOld);
}

TorchFile read_torch_file(const std::string& path) {
  if (beginning_of(path).starts_with(kOld))
    fail(ErrorKind::Unimplemented,
         "{}: it was written by PyTorch before 1.6, or in its format; load it and save it again with a newer "
         "one. {}",
         path, kInsteadInPython);
  Archive archive(path);
  const Pickle pickle(
      archive.text("data.pkl"), path,
      {.call = [&](const auto& function, const auto& given) { return archive.call(function, given); },
       .find = [&](const auto& id) { return archive.storage(id); }});
  TorchFile file = chosen(path, pickle.value());
  std::set<std::string_view> names;
  for (const NamedTensor& named : file.tensors) {
    if (!names.insert(named.name).second)
      fail(ErrorKind::DataLoss, "{}: two tensors are named '{}'", path, named.name);
  }
  return file;
}

NamedTensors read_tensor_file(const std::string& path) {
  return is_torch_file(path) ? read_torch_file(path).tensors : SafetensorsFile(path).read_all();
}

}  // namespace tutti::store
