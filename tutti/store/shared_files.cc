#include "tutti/store/shared_files.h"

#include <filesystem>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/store/safetensors.h"

namespace tutti::store {
namespace {

std::string stem_of(const std::string& part, int writer, int writers) {
  return fmt::format("{}-{}of{}", part, writer + 1, writers);
}

std::string record_path(const std::string& folder, const std::string& part, int writer, int writers) {
  return fmt::format("{}/{}.written", folder, stem_of(part, writer, writers));
}

}  // namespace

void write_shared_file(const std::string& folder, const std::string& part, int writer, int writers,
                       const std::vector<NamedTensor>& tensors, int64_t step) {
  const std::string name = stem_of(part, writer, writers) + ".safetensors";
  const WrittenFile written =
      write_safetensors(folder + "/" + name, tensors, {{"format", "pt"}, {"step", std::to_string(step)}});
  const Json record = {{"name", name}, {"bytes", written.bytes}, {"checksum", written.checksum}};
  // The rename comes last: as soon as the record is there, the other task may rename the folder.
  const std::string path = record_path(folder, part, writer, writers);
  FileWriter file(path + ".new");
  file.write(record.dump());
  file.finish();
  rename_path(path + ".new", path);
}

std::vector<ManifestFile> await_shared_files(const std::string& folder, const std::string& part, int writers,
                                             std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kBetweenLooks{5};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<ManifestFile> files;
  for (int writer = 0; writer < writers; ++writer) {
    const std::string path = record_path(folder, part, writer, writers);
    while (!path_exists(path)) {
      if (std::chrono::steady_clock::now() >= deadline)
        fail(ErrorKind::Timeout, "worker {} of {} has not written its part '{}' of the checkpoint in {}",
             writer, writers, part, folder);
      std::this_thread::sleep_for(kBetweenLooks);
    }
    const Json record = parse_json(read_file(path), path, ErrorKind::DataLoss);
    files.push_back({.name = record.at("name").get<std::string>(),
                     .part = part,
                     .bytes = record.at("bytes").get<uint64_t>(),
                     .checksum = record.at("checksum").get<uint32_t>()});
    std::filesystem::remove(path);
  }
  return files;
}

}  // namespace tutti::store
