#include "tutti/store/checkpoint_folder.h"

#include <filesystem>
#include <set>

#include <torch/version.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/version.h"
#include "tutti/store/safetensors.h"
#include "tutti/store/shared_files.h"

namespace tutti::store {
namespace {

namespace fs = std::filesystem;

ManifestFile write_part(const std::string& folder, const std::string& part,
                        const std::vector<NamedTensor>& tensors, int64_t step) {
  const std::string name = fmt::format("{}.safetensors", part);
  // "pt" tells other readers that the layout of the tensors is that of PyTorch.
  const WrittenFile written =
      write_safetensors(folder + "/" + name, tensors, {{"format", "pt"}, {"step", std::to_string(step)}});
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
         "{}: the checksum of the file is {:08x}, but that of the written data was {:08x}", path, checksum,
         listed.checksum);
  }
}

}  // namespace

void write_checkpoint_folder(const std::string& folder, const Checkpoint& checkpoint, int64_t sequence,
                             const CheckpointDir::Shared& shared) {
  Manifest manifest{.step = checkpoint.step,
                    .sequence = sequence,
                    .tutti_version = std::string(version()),
                    .libtorch_version = TORCH_VERSION,
                    .files = {},
                    .state = checkpoint.state};
  manifest.files.push_back(write_part(folder, kWeightsPart, checkpoint.weights, checkpoint.step));
  manifest.files.push_back(write_part(folder, kOptimizerPart, checkpoint.optimizer, checkpoint.step));
  for (const auto& [part, tensors] : checkpoint.more)
    manifest.files.push_back(write_part(folder, part, tensors, checkpoint.step));
  for (ManifestFile& file : await_shared_files(folder, shared.files, checkpoint.step, shared.timeout))
    manifest.files.push_back(std::move(file));
  write_manifest(folder + "/" + kManifestName, manifest);
  sync_directory(folder);
}

Manifest read_folder_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  require_file(path);
  return read_manifest(path);
}

Checkpoint read_checkpoint_folder(const std::string& folder) {
  const Manifest manifest = read_folder_manifest(folder);
  Checkpoint checkpoint;
  checkpoint.step = manifest.step;
  checkpoint.state = manifest.state;
  std::set<std::pair<std::string, std::string>> seen;
  for (const ManifestFile& listed : manifest.files) {
    const std::string path = folder + "/" + listed.name;
    verify(path, listed);
    std::vector<NamedTensor>& part = listed.part == kWeightsPart     ? checkpoint.weights
                                     : listed.part == kOptimizerPart ? checkpoint.optimizer
                                                                     : checkpoint.more[listed.part];
    for (NamedTensor& named : SafetensorsFile(path).read_all()) {
      if (!seen.emplace(listed.part, named.name).second) {
        fail(ErrorKind::DataLoss, "{}: tensor '{}' is also in another file of the checkpoint", path,
             named.name);
      }
      part.push_back(std::move(named));
    }
  }
  return checkpoint;
}

}  // namespace tutti::store
