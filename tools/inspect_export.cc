#include "tools/inspect_export.h"

#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tools/inspect_tensors.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"
#include "tutti/store/safetensors.h"
#include "tutti/train/export/format.h"
#include "tutti/train/export/versions.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

void print_check(const std::string& name, const Json& check) {
  const auto difference = check.at("greatest_difference").get<double>();
  fmt::print("  {} was checked with {} examples and computes the same as the trained model{}{}\n", name,
             check.at("examples").get<int64_t>(),
             difference == 0 ? ""
                             : fmt::format(" up to {:.2g} (tolerance {:g})", difference,
                                           check.at("tolerance").get<double>()),
             difference != 0 && check.at("same_bits").get<bool>()
                 ? ", and the same bits with the training's kernels without optimisations"
                 : "");
  if (!check.contains("sizes")) return;
  for (const auto& [size, values] : check.at("sizes").items())
    fmt::print("    {}: {}\n", size, fmt::join(values.get<std::vector<int64_t>>(), ", "));
}

void print_signature(const std::string& folder, const Json& signature) {
  fmt::print("{}: a {} model, exported by Tutti {} with LibTorch {}", folder,
             signature.at("format").get<std::string>(), signature.at("tutti_version").get<std::string>(),
             signature.at("libtorch_version").get<std::string>());
  if (signature.contains("step"))
    fmt::print(" after step {}: the {}", signature.at("step").get<int64_t>(),
               signature.at("weights") == "average" ? "moving average of the weights" : "last weights");
  fmt::print("\n");
  for (const std::string& line : lines_of_signatures(signature)) fmt::print("  {}\n", line);
  print_check(kDefaultFunction, signature.at("check"));
  if (!signature.contains("more_signatures")) return;
  for (const auto& [name, more] : signature.at("more_signatures").items())
    print_check(name, more.at("check"));
}

void print_file(const std::string& folder, const std::string& name) {
  std::error_code error;
  const auto bytes = fs::file_size(fs::path(folder) / name, error);
  if (error) fail(ErrorKind::DataLoss, "{}/{} is missing", folder, name);
  fmt::print("  {}: {}\n", name, human_bytes(bytes));
}

}  // namespace

std::string export_at(const std::string& path) {
  if (path_exists(path + "/" + kSignatureFile)) return path;
  const int64_t newest = newest_version(path);
  const std::string version = version_path(path, newest);
  return newest > 0 && path_exists(version + "/" + kSignatureFile) ? version : "";
}

int inspect_export(const std::string& folder) {
  const std::string path = folder + "/" + kSignatureFile;
  const Json signature = parse_json(read_file(path), path, ErrorKind::DataLoss);
  try {
    print_signature(folder, signature);
    for (const Json& file : signature.at("files")) print_file(folder, file.get<std::string>());
  } catch (const Json::exception& error) {
    fail(ErrorKind::DataLoss, "{}: it does not describe an exported model: {}", path, error.what());
  }
  if (path_exists(folder + "/assets")) {
    for (const auto& entry : fs::recursive_directory_iterator(folder + "/assets")) {
      if (entry.is_regular_file()) print_file(folder, fs::relative(entry.path(), folder));
    }
  }
  print_tensors("weights", store::SafetensorsFile(folder + "/weights.safetensors").read_all());
  return 0;
}

}  // namespace tutti
