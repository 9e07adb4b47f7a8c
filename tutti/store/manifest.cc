#include "tutti/store/manifest.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>

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
                        int64_t step, const TiedNames& tied = {}) {
  const std::string name = fmt::format("{}.safetensors", part);
  // "pt" tells other readers that the tensors have PyTorch's layout.
  const WrittenFile written = write_safetensors(folder + "/" + name, tensors,
                                                {{"format", "pt"}, {"step", std::to_string(step)}}, tied);
  return {.name = name, .part = part, .bytes = written.bytes, .checksum = written.checksum};
}

void require_file(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) fail(ErrorKind::DataLoss, "{} is missing", path);
}

void verify(const std::string& path, const ManifestFile& listed) {
  require_file(path);
  const FileReader file(path);
  if (file.size() != listed.bytes) {
    fail(ErrorKind::DataLoss, "{}: the file has {} bytes, but {} were written", path, file.size(),
         listed.bytes);
  }
  const uint32_t checksum = checksum_of_file(file);
  if (checksum != listed.checksum) {
    fail(ErrorKind::DataLoss,
         "{}: the checksum of the file is {:08x}, but the checksum of the written data was {:08x}", path,
         checksum, listed.checksum);
  }
}

// Reads the tensors of a file. Each tensor must occur in only one file of the part. Returns the further names
// of the tensors.
TiedNames read_into(NamedTensors& part, const std::string& path, const ManifestFile& listed,
                    std::set<std::pair<std::string, std::string>>& seen) {
  verify(path, listed);
  const SafetensorsFile file(path);
  for (NamedTensor& named : file.read_all()) {
    if (file.tied().contains(named.name)) continue;
    if (!seen.emplace(listed.part, named.name).second) {
      fail(ErrorKind::DataLoss, "{}: tensor '{}' is also in another file of the checkpoint", path,
           named.name);
    }
    part.push_back(std::move(named));
  }
  return file.tied();
}

// Reads these parts of the base, or all parts that the checkpoint needs if none are named.
Base read_base(const std::string& folder, const Manifest::Base& asked, const std::set<std::string>& parts) {
  const std::string path = fs::canonical(folder).parent_path() / checkpoint_folder_name(asked.step);
  if (!path_exists(path + "/" + kManifestName))
    fail(ErrorKind::DataLoss,
         "{} was saved with --checkpoint-rows changed, and needs {} beside it, which is not there: put it "
         "back, "
         "or continue from another checkpoint",
         folder, path);
  const Manifest manifest = read_folder_manifest(path);
  Base base{.step = asked.step, .state = manifest.state};
  std::set<std::pair<std::string, std::string>> seen;
  for (const std::string& part : asked.parts) {
    if (parts.empty() || parts.contains(part)) base.parts[part];
  }
  for (const ManifestFile& listed : manifest.files) {
    if (const auto part = base.parts.find(listed.part); part != base.parts.end())
      read_into(part->second, path + "/" + listed.name, listed, seen);
  }
  return base;
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
                             const SharedFiles& shared) {
  Manifest manifest{.step = checkpoint.step,
                    .sequence = sequence,
                    .tutti_version = std::string(version()),
                    .libtorch_version = TORCH_VERSION,
                    .files = {},
                    .state = checkpoint.state,
                    .base = base_of(checkpoint)};
  manifest.files.push_back(
      write_part(folder, kWeightsPart, checkpoint.weights, checkpoint.step, checkpoint.tied));
  manifest.files.push_back(write_part(folder, kOptimizerPart, checkpoint.optimizer, checkpoint.step));
  for (const auto& [part, tensors] : checkpoint.more)
    manifest.files.push_back(write_part(folder, part, tensors, checkpoint.step,
                                        part == kAveragePart ? checkpoint.tied : TiedNames()));
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

Checkpoint read_checkpoint_folder(const std::string& folder, const std::set<std::string>& parts) {
  const Manifest manifest = read_folder_manifest(folder);
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
    TiedNames tied = read_into(part, path, listed, seen);
    if (listed.part == kWeightsPart) checkpoint.tied = std::move(tied);
  }
  if (manifest.base) checkpoint.base = read_base(folder, *manifest.base, parts);
  return checkpoint;
}

}  // namespace tutti::store
