#include "tutti/store/manifest.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <set>
#include <span>

#include <fmt/format.h>
#include <torch/version.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/json.h"
#include "tutti/base/version.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/safetensors.h"
#include "tutti/store/shared_files.h"

namespace tutti::store {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;

// The first line holds the checksum of the rest, so that every change is detected.
std::string checksum_line(std::string_view rest) {
  return fmt::format("{{\n  \"checksum\": \"crc32c:{:08x}\",", crc32c(as_bytes(rest)));
}

void check_file(const std::string& path, const ManifestFile& file) {
  // A name that leads out of the folder is a sign of damage or of an attack.
  if (file.name.empty() || file.name.find('/') != std::string::npos || file.name == "..") {
    fail(ErrorKind::DataLoss, "{}: '{}' is not the name of a file in this folder", path, file.name);
  }
  if (file.part.empty())
    fail(ErrorKind::DataLoss, "{}: {} does not belong to a part of the state", path, file.name);
}

// Returns an integer from 0 to `most`.
int64_t count_in(const json& object, std::string_view key, const std::string& path, int64_t most) {
  const auto count = value_in<int64_t>(object, key, path);
  if (count < 0 || count > most)
    fail(ErrorKind::DataLoss, "{}: '{}' is {}, expected 0 to {}", path, key, count, most);
  return count;
}

const json& field_of(const json& object, const char* key, const std::string& path) {
  const auto found = object.find(key);
  if (found == object.end()) fail(ErrorKind::DataLoss, "{}: '{}' is missing", path, key);
  return *found;
}

// Checks every value, because a file with a correct checksum may still have been made by something else.
Manifest manifest_in(const std::string& path, const json& json) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  const auto format = value_in<int64_t>(json, "format", path);
  if (format != kFormat) {
    fail(ErrorKind::Unimplemented,
         "{}: the checkpoint has format {}, but this version of Tutti reads format {}", path, format,
         kFormat);
  }
  Manifest manifest;
  manifest.step = count_in(json, "step", path, kMost);
  manifest.sequence = count_in(json, "sequence", path, kMost);
  manifest.tutti_version = value_in<std::string>(json, "tutti_version", path);
  manifest.libtorch_version = value_in<std::string>(json, "libtorch_version", path);
  manifest.state = field_of(json, "state", path);
  if (!manifest.state.is_object() && !manifest.state.is_null())
    fail(ErrorKind::DataLoss, "{}: 'state' should be an object, but it is {}", path,
         json_type_name(manifest.state));
  const auto& files = field_of(json, "files", path);
  if (!files.is_array())
    fail(ErrorKind::DataLoss, "{}: 'files' should be a list, but it is {}", path, json_type_name(files));
  for (const auto& entry : files) {
    ManifestFile file{.name = value_in<std::string>(entry, "name", path),
                      .part = value_in<std::string>(entry, "part", path),
                      .bytes = static_cast<uint64_t>(count_in(entry, "bytes", path, kMost)),
                      .checksum = static_cast<uint32_t>(
                          count_in(entry, "crc32c", path, std::numeric_limits<uint32_t>::max()))};
    check_file(path, file);
    manifest.files.push_back(std::move(file));
  }
  if (json.contains("base")) {
    const auto& base = json.at("base");
    manifest.base = {.step = count_in(base, "step", path, kMost), .parts = {}};
    for (const auto& part : field_of(base, "parts", path)) {
      if (!part.is_string()) fail(ErrorKind::DataLoss, "{}: {} is not the name of a part", path, part.dump());
      manifest.base->parts.push_back(part.get<std::string>());
    }
  }
  return manifest;
}

namespace fs = std::filesystem;

ManifestFile write_part(const std::string& folder, const std::string& part, const NamedTensors& tensors,
                        int64_t step, const TiedNames& tied, const OnBytes& on_bytes) {
  const std::string name = fmt::format("{}.safetensors", part);
  // "pt" tells other readers that the tensors have PyTorch's layout.
  const WrittenFile written = write_safetensors(
      folder + "/" + name, tensors, {{"format", "pt"}, {"step", std::to_string(step)}}, tied, on_bytes);
  return {.name = name, .part = part, .bytes = written.bytes, .checksum = written.checksum};
}

void require_file(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) fail(ErrorKind::DataLoss, "{} is missing", path);
}

uint32_t checksum_of(const FileReader& file, const OnBytes& on_bytes) {
  constexpr uint64_t kPiece = 1 << 20;
  std::vector<std::byte> buffer(std::min(file.size(), kPiece));
  uint32_t checksum = 0;
  for (uint64_t at = 0; at < file.size(); at += kPiece) {
    const auto piece = std::span(buffer).first(std::min(file.size() - at, kPiece));
    file.read_at(at, piece);
    checksum = crc32c(piece, checksum);
    if (on_bytes) on_bytes(static_cast<int64_t>(piece.size()));
  }
  return checksum;
}

void verify(const std::string& path, const ManifestFile& listed, const OnBytes& on_bytes) {
  require_file(path);
  const FileReader file(path);
  if (file.size() != listed.bytes) {
    fail(ErrorKind::DataLoss, "{}: the file has {} bytes, but {} were written", path, file.size(),
         listed.bytes);
  }
  const uint32_t checksum = checksum_of(file, on_bytes);
  if (checksum != listed.checksum) {
    fail(ErrorKind::DataLoss,
         "{}: the checksum of the file is {:08x}, but the checksum of the written data was {:08x}", path,
         checksum, listed.checksum);
  }
}

// Reads the tensors of a file. Each tensor must occur in only one file of the part. Returns the further names
// of the tensors.
TiedNames read_into(NamedTensors& part, const std::string& path, const ManifestFile& listed,
                    std::set<std::pair<std::string, std::string>>& seen, const OnBytes& on_bytes) {
  verify(path, listed, on_bytes);
  const SafetensorsFile file(path);
  for (NamedTensor& named : file.read_all(on_bytes)) {
    if (file.tied().contains(named.name)) continue;
    if (!seen.emplace(listed.part, named.name).second) {
      fail(ErrorKind::DataLoss, "{}: tensor '{}' is also in another file of the checkpoint", path,
           named.name);
    }
    part.push_back(std::move(named));
  }
  return file.tied();
}

// A checkpoint on which another one is based, and the parts of it that are read.
struct FoundBase {
  std::string folder;
  Manifest manifest;
  std::set<std::string> parts;
};

// Finds these parts of the base, or all parts that the checkpoint needs if none are named.
FoundBase find_base(const std::string& folder, const Manifest::Base& asked,
                    const std::set<std::string>& parts) {
  const std::string path = fs::canonical(folder).parent_path() / checkpoint_folder_name(asked.step);
  if (!path_exists(path + "/" + kManifestName))
    fail(ErrorKind::DataLoss,
         "{} was saved with --checkpoint-rows changed, and needs {} beside it, which is not there: put it "
         "back, "
         "or continue from another checkpoint",
         folder, path);
  FoundBase base{.folder = path, .manifest = read_folder_manifest(path), .parts = {}};
  for (const std::string& part : asked.parts) {
    if (parts.empty() || parts.contains(part)) base.parts.insert(part);
  }
  return base;
}

Base read_base(const FoundBase& found, const OnBytes& on_bytes) {
  Base base{.step = found.manifest.step, .state = found.manifest.state};
  for (const std::string& part : found.parts) base.parts[part];
  std::set<std::pair<std::string, std::string>> seen;
  for (const ManifestFile& listed : found.manifest.files) {
    if (const auto part = base.parts.find(listed.part); part != base.parts.end())
      read_into(part->second, found.folder + "/" + listed.name, listed, seen, on_bytes);
  }
  return base;
}

// Returns the number of bytes in the files of these parts, or of all parts if none are named.
int64_t bytes_in(const Manifest& manifest, const std::set<std::string>& parts) {
  uint64_t bytes = 0;
  for (const ManifestFile& listed : manifest.files)
    bytes += parts.empty() || parts.contains(listed.part) ? listed.bytes : 0;
  return static_cast<int64_t>(bytes);
}

// Every byte is read twice: for the checksum of its file, and for its tensor.
OnBytes counted_twice(const OnProgress& tell, int64_t all) {
  if (!tell) return {};
  return counted([tell](int64_t done, int64_t twice) { tell(done / 2, twice / 2); }, 2 * all);
}

std::optional<Manifest::Base> base_of(const Checkpoint& checkpoint) {
  if (!checkpoint.base) return std::nullopt;
  Manifest::Base base{.step = checkpoint.base->step, .parts = {}};
  for (const auto& [part, tensors] : checkpoint.base->parts) base.parts.push_back(part);
  return base;
}

}  // namespace

std::string checkpoint_folder_name(int64_t step) { return fmt::format("ckpt-{}", step); }

void write_manifest(const std::string& path, const Manifest& manifest) {
  json files = json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back(
        {{"name", file.name}, {"part", file.part}, {"bytes", file.bytes}, {"crc32c", file.checksum}});
  }
  json contents = {{"format", kFormat},
                   {"step", manifest.step},
                   {"sequence", manifest.sequence},
                   {"tutti_version", manifest.tutti_version},
                   {"libtorch_version", manifest.libtorch_version},
                   {"files", files},
                   {"state", manifest.state}};
  if (manifest.base) contents["base"] = {{"step", manifest.base->step}, {"parts", manifest.base->parts}};
  std::string text;
  try {
    text = contents.dump(2) + "\n";
  } catch (const json::exception& error) {
    fail(ErrorKind::InvalidArgument, "{}: a string in the state is not UTF-8: {}", path, error.what());
  }
  const std::string_view rest =
      std::string_view(text).substr(1);  // without the "{", which is in the first line
  FileWriter writer(path);
  writer.write(checksum_line(rest));
  writer.write(rest);
  writer.finish();
}

Manifest read_manifest(const std::string& path) {
  const std::string text = read_file(path);
  const size_t checksum_line_bytes = checksum_line("").size();
  const std::string_view rest = std::string_view(text).substr(std::min(checksum_line_bytes, text.size()));
  if (std::string_view(text).substr(0, checksum_line_bytes) != checksum_line(rest)) {
    fail(ErrorKind::DataLoss, "{}: the checksum does not match the text; the file is damaged or was edited",
         path);
  }
  return manifest_in(path, parse_sorted_json(text, path, ErrorKind::DataLoss));
}

void write_checkpoint_folder(const std::string& folder, const Checkpoint& checkpoint, int64_t sequence,
                             const SharedFiles& shared, const OnProgress& on_progress) {
  Manifest manifest{.step = checkpoint.step,
                    .sequence = sequence,
                    .tutti_version = std::string(version()),
                    .libtorch_version = TORCH_VERSION,
                    .files = {},
                    .state = checkpoint.state,
                    .base = base_of(checkpoint)};
  const OnBytes on_bytes = counted(on_progress, bytes_to_write(checkpoint));
  const auto write = [&](const std::string& part, const NamedTensors& tensors, const TiedNames& tied) {
    manifest.files.push_back(write_part(folder, part, tensors, checkpoint.step, tied, on_bytes));
  };
  write(kWeightsPart, checkpoint.weights, checkpoint.tied);
  write(kOptimizerPart, checkpoint.optimizer, {});
  for (const auto& [part, tensors] : checkpoint.more)
    write(part, tensors, part == kAveragePart ? checkpoint.tied : TiedNames());
  for (ManifestFile& file : await_shared_files(folder, shared, checkpoint.step))
    manifest.files.push_back(std::move(file));
  write_manifest(folder + "/" + kManifestName, manifest);
  sync_directory(folder);
}

Manifest read_folder_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  require_file(path);
  return read_manifest(path);
}

Checkpoint read_checkpoint_folder(const std::string& folder, const std::set<std::string>& parts,
                                  const OnProgress& on_progress) {
  const Manifest manifest = read_folder_manifest(folder);
  std::optional<FoundBase> base;
  if (manifest.base) base = find_base(folder, *manifest.base, parts);
  const OnBytes on_bytes = counted_twice(
      on_progress, bytes_in(manifest, parts) + (base ? bytes_in(base->manifest, base->parts) : 0));
  Checkpoint checkpoint;
  checkpoint.step = manifest.step;
  checkpoint.state = manifest.state;
  std::set<std::pair<std::string, std::string>> seen;
  for (const ManifestFile& listed : manifest.files) {
    if (!parts.empty() && !parts.contains(listed.part)) continue;
    const std::string path = folder + "/" + listed.name;
    NamedTensors& part = listed.part == kWeightsPart     ? checkpoint.weights
                         : listed.part == kOptimizerPart ? checkpoint.optimizer
                                                         : checkpoint.more[listed.part];
    TiedNames tied = read_into(part, path, listed, seen, on_bytes);
    if (listed.part == kWeightsPart) checkpoint.tied = std::move(tied);
  }
  if (base) checkpoint.base = read_base(*base, on_bytes);
  return checkpoint;
}

}  // namespace tutti::store
