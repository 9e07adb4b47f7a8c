#include "tutti/store/shared_files.h"

#include <algorithm>
#include <filesystem>
#include <random>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/store/safetensors.h"

namespace tutti::store {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kMarkPrefix = "shared-by-";

std::string new_mark(const std::string& folder) {
  std::random_device random;
  return fmt::format("{}/{}{:08x}{:08x}", folder, kMarkPrefix, random(), random());
}

std::string record_of(const std::string& path) { return path + ".written"; }

// The rename comes last: as soon as the record is there, the other task may rename the folder.
void write_record(const std::string& path, const Json& record) {
  const std::string temporary = record_of(path) + ".new";
  FileWriter file(temporary);
  file.write(record.dump());
  file.finish();
  rename_path(temporary, record_of(path));
}

void await_record(const std::string& path, const SharedFile& file, Clock::time_point begin,
                  std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kBetweenLooks{5};
  for (; !path_exists(record_of(path)); std::this_thread::sleep_for(kBetweenLooks)) {
    if (file.is_lost && *file.is_lost)
      fail(ErrorKind::PeerLost, "{} was lost before it had written its part, {}", file.writer, path);
    if (Clock::now() >= begin + timeout)
      fail(ErrorKind::Timeout, "{} has not written its part, {}, within {:g} s. Its log may say why",
           file.writer, path, seconds(timeout));
  }
}

// Checks that the size and the header of the file agree with the record.
ManifestFile checked(const std::string& path, const SharedFile& file, int64_t step) {
  const Json record = parse_json(read_file(record_of(path)), record_of(path), ErrorKind::DataLoss);
  if (record.contains("error")) {
    const int kind = std::clamp(record.at("kind").get<int>(), 0, static_cast<int>(ErrorKind::Bug));
    throw Error(static_cast<ErrorKind>(kind), record.at("error").get<std::string>());
  }
  ManifestFile listed{.name = file.name,
                      .part = file.part,
                      .bytes = record.at("bytes").get<uint64_t>(),
                      .checksum = record.at("checksum").get<uint32_t>()};
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) fail(ErrorKind::DataLoss, "{}: {}", path, error.message());
  if (bytes != listed.bytes)
    fail(ErrorKind::DataLoss, "{} has {} bytes, but {} were recorded", path, bytes, listed.bytes);
  const auto metadata = SafetensorsFile(path).metadata();
  const auto found = metadata.find("step");
  if (found == metadata.end() || found->second != std::to_string(step))
    fail(ErrorKind::DataLoss, "{} is of step {}, expected {}", path,
         found == metadata.end() ? "?" : found->second, step);
  return listed;
}

}  // namespace

FolderMark::FolderMark(const std::string& folder) : path_(new_mark(folder)) { replace_file(path_, ""); }

FolderMark::~FolderMark() {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

std::string folder_of_mark(const std::string& mark) {
  const fs::path path(mark);
  const std::string folder = path.parent_path().string();
  const bool is_mark = path.is_absolute() && path.filename().string().starts_with(kMarkPrefix);
  return is_mark && path_exists(mark) && ::access(folder.c_str(), W_OK | X_OK) == 0 ? folder : "";
}

std::string shared_file_name(const std::string& part, int index, int count) {
  return fmt::format("{}-{}of{}.safetensors", part, index + 1, count);
}

void write_shared_file(const std::string& folder, const std::string& name, const NamedTensors& tensors,
                       int64_t step, const OnBytes& on_bytes) {
  const std::string path = folder + "/" + name;
  try {
    const WrittenFile written =
        write_safetensors(path, tensors, {{"format", "pt"}, {"step", std::to_string(step)}}, {}, on_bytes);
    write_record(path, {{"bytes", written.bytes}, {"checksum", written.checksum}});
  } catch (const std::exception& error) {
    if (!path_exists(folder))
      fail(ErrorKind::PeerLost, "{} is gone: the task that made it has given up the checkpoint of step {}",
           folder, step);
    const auto* known = dynamic_cast<const Error*>(&error);
    const ErrorKind kind = known == nullptr ? ErrorKind::Overloaded : known->kind();
    // Removing the file frees space for the record if the disk is full.
    std::error_code ignored;
    fs::remove(path, ignored);
    try {
      write_record(path, {{"kind", static_cast<int>(kind)}, {"error", error.what()}});
    } catch (const std::exception&) {
      // The other task's wait ends with an error that names this task.
    }
    throw;
  }
}

std::vector<ManifestFile> await_shared_files(const std::string& folder, const SharedFiles& shared,
                                             int64_t step) {
  const auto begin = Clock::now();
  std::vector<ManifestFile> listed;
  for (const SharedFile& file : shared.files) {
    const std::string path = folder + "/" + file.name;
    await_record(path, file, begin, shared.timeout);
    try {
      listed.push_back(checked(path, file, step));
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}: {}", file.writer, error.what()));
    } catch (const Json::exception& error) {
      fail(ErrorKind::DataLoss, "{}: {}: {}", file.writer, record_of(path), error.what());
    }
    std::error_code ignored;
    fs::remove(record_of(path), ignored);
  }
  return listed;
}

}  // namespace tutti::store
