#include "tutti/train/export/versions.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"
#include "tutti/train/export/format.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

// The name of a file below assets/ must not lead out of it.
void require_asset(const std::string& name, const std::string& path) {
  const fs::path relative(name);
  const bool leads_out = std::any_of(relative.begin(), relative.end(),
                                     [](const fs::path& part) { return part == ".." || part == "."; });
  if (name.empty() || relative.is_absolute() || leads_out)
    fail(ErrorKind::InvalidArgument, "the asset '{}' needs a relative path without '..' as its name", name);
  if (!path_exists(path)) fail(ErrorKind::InvalidArgument, "the asset '{}': {} does not exist", name, path);
}

void copy_asset(const fs::path& from, const fs::path& to) {
  if (fs::is_directory(from)) {
    make_directories(to);
    for (const fs::directory_entry& entry : fs::directory_iterator(from))
      copy_asset(entry.path(), to / entry.path().filename());
    return sync_directory(to);
  }
  constexpr uint64_t kPiece = 1 << 20;
  make_directories(to.parent_path());
  const FileReader reader(from);
  FileWriter writer(to);
  std::vector<std::byte> buffer(std::min(reader.size(), kPiece));
  for (uint64_t at = 0; at < reader.size(); at += kPiece) {
    const auto piece = std::span(buffer).first(std::min(reader.size() - at, kPiece));
    reader.read_at(at, piece);
    writer.write(piece);
  }
  writer.finish();
}

int64_t next_version(const std::string& dir) {
  const int64_t newest = newest_version(dir);
  if (newest == std::numeric_limits<int64_t>::max())
    fail(ErrorKind::InvalidArgument, "{}: there is no number above the version {}", dir, newest);
  return newest + 1;
}

std::string text_of_tensors(const Json& specs, const char* name_key) {
  std::vector<std::string> texts;
  for (const Json& spec : specs) {
    std::vector<std::string> shape;
    for (const Json& size : spec.at("shape")) shape.push_back(size.is_null() ? "*" : size.dump());
    texts.push_back(fmt::format("{} {}[{}]", spec.at(name_key).get<std::string>(),
                                spec.at("dtype").get<std::string>(), fmt::join(shape, ",")));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string text_of(const std::string& name, const Json& signature) {
  return fmt::format("{}({}) -> {}", name, text_of_tensors(signature.at("inputs"), "argument"),
                     text_of_tensors(signature.at("outputs"), "name"));
}

}  // namespace

std::string version_path(const std::string& dir, int64_t version) {
  return fmt::format("{}/{}", dir, version);
}

int64_t newest_version(const std::string& dir) {
  int64_t newest = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    if (const auto number = parse_int(entry.path().filename().string())) newest = std::max(newest, *number);
  }
  return newest;
}

void require_free_version(const std::string& dir, int64_t version) {
  if (version > 0 && path_exists(version_path(dir, version)))
    fail(ErrorKind::InvalidArgument,
         "{} exists already: export to another version, or with version 0 for the next number",
         version_path(dir, version));
}

std::string publish_version(store::TemporaryFolder& written, const std::string& dir, int64_t version) {
  require_free_version(dir, version);
  for (;;) {
    const std::string path = version_path(dir, version > 0 ? version : next_version(dir));
    try {
      written.rename_to(path);
      sync_directory(dir);
      return path;
    } catch (const Error&) {
      require_free_version(dir, version);
      if (!path_exists(path)) throw;
    }
  }
}

void require_assets(const std::map<std::string, std::string>& assets) {
  for (const auto& [name, path] : assets) require_asset(name, path);
}

void copy_assets(const std::map<std::string, std::string>& assets, const std::string& folder) {
  for (const auto& [name, path] : assets) copy_asset(path, fs::path(folder) / "assets" / name);
}

std::vector<std::string> lines_of_signatures(const Json& signature) {
  std::vector<std::string> lines = {text_of(kDefaultFunction, signature)};
  if (!signature.contains("more_signatures")) return lines;
  for (const auto& [name, more] : signature.at("more_signatures").items())
    lines.push_back(text_of(name, more));
  return lines;
}

bool has_fixed_sizes(const Json& signature) {
  const Json& inputs = signature.at("inputs");
  return std::any_of(inputs.begin(), inputs.end(), [](const Json& input) {
    const Json& shape = input.at("shape");
    return std::any_of(shape.begin(), shape.end(), [](const Json& size) { return !size.is_null(); });
  });
}

}  // namespace tutti
