#include "tutti/store/manifest.h"

#include <algorithm>

#include <fmt/format.h>

#include "tutti/base/crc32c.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"

namespace tutti::store {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;

// The first line holds the checksum of all that follows it: no number in it can change unseen.
std::string checksum_line(std::string_view rest) {
  return fmt::format("{{\n  \"checksum\": \"crc32c:{:08x}\",", crc32c(as_bytes(rest)));
}

void check_file(const std::string& path, const ManifestFile& file) {
  // A name that leads out of the folder is either damage or malice.
  if (file.name.empty() || file.name.find('/') != std::string::npos || file.name == "..") {
    fail(ErrorKind::DataLoss, "{}: '{}' is no name of a file in this folder", path, file.name);
  }
  if (file.part != kWeightsPart && file.part != kOptimizerPart) {
    fail(ErrorKind::Unimplemented, "{}: {} holds '{}', which this version of Tutti does not know", path,
         file.name, file.part);
  }
}

Manifest manifest_in(const std::string& path, const json& json) {
  const auto format = json.at("format").get<int64_t>();
  if (format != kFormat) {
    fail(ErrorKind::Unimplemented, "{}: a checkpoint of format {}; this version of Tutti reads format {}",
         path, format, kFormat);
  }
  Manifest manifest;
  manifest.step = json.at("step").get<int64_t>();
  manifest.sequence = json.at("sequence").get<int64_t>();
  manifest.tutti_version = json.at("tutti_version").get<std::string>();
  manifest.libtorch_version = json.at("libtorch_version").get<std::string>();
  manifest.state = json.at("state");
  for (const auto& entry : json.at("files")) {
    ManifestFile file{.name = entry.at("name").get<std::string>(),
                      .part = entry.at("part").get<std::string>(),
                      .bytes = entry.at("bytes").get<uint64_t>(),
                      .checksum = entry.at("crc32c").get<uint32_t>()};
    check_file(path, file);
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

}  // namespace

void write_manifest(const std::string& path, const Manifest& manifest) {
  json files = json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back(
        {{"name", file.name}, {"part", file.part}, {"bytes", file.bytes}, {"crc32c", file.checksum}});
  }
  const json contents = {{"format", kFormat},
                         {"step", manifest.step},
                         {"sequence", manifest.sequence},
                         {"tutti_version", manifest.tutti_version},
                         {"libtorch_version", manifest.libtorch_version},
                         {"files", files},
                         {"state", manifest.state}};
  std::string text;
  try {
    text = contents.dump(2) + "\n";
  } catch (const json::exception& error) {
    fail(ErrorKind::InvalidArgument, "{}: a text in the state is no UTF-8: {}", path, error.what());
  }
  const std::string_view rest =
      std::string_view(text).substr(1);  // less the "{", which the first line brings
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
    fail(ErrorKind::DataLoss, "{}: its checksum does not agree with its text; it is damaged or was edited",
         path);
  }
  try {
    return manifest_in(path, json::parse(text));
  } catch (const json::exception& error) {
    fail(ErrorKind::DataLoss, "{}: not a checkpoint's manifest: {}", path, error.what());
  }
}

}  // namespace tutti::store
