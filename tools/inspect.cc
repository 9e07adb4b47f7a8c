#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/inspect_export.h"
#include "tools/inspect_table.h"
#include "tools/inspect_tensors.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/table.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/manifest.h"
#include "tutti/store/safetensors.h"
#include "tutti/store/torch_file.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

// Prints one line per key; long values are truncated.
void print_state(const nlohmann::json& state) {
  constexpr size_t kLongest = 100;
  for (const auto& [key, value] : state.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    fmt::print("  {}: {}{}\n", key, text.substr(0, kLongest), text.size() > kLongest ? " ..." : "");
  }
}

void print_checkpoint(const std::string& folder, const store::Checkpoint& checkpoint) {
  const store::Manifest manifest = store::read_folder_manifest(folder);
  fmt::print("{}: a checkpoint after step {}, written by Tutti {} with LibTorch {}\n", folder,
             checkpoint.step, manifest.tutti_version, manifest.libtorch_version);
  for (const store::ManifestFile& file : manifest.files) {
    fmt::print("  {}: {}, checksum {:08x} is correct\n", file.name, human_bytes(file.bytes), file.checksum);
  }
  if (manifest.base)
    fmt::print("  needs ckpt-{} beside it, which has the {} that have not changed since\n",
               manifest.base->step, fmt::join(manifest.base->parts, ", "));
  print_state(checkpoint.state);
  print_tensors("weights", checkpoint.weights);
  print_tensors("optimizer", checkpoint.optimizer);
  if (const auto rows = checkpoint.more.find(store::kRowsPart); rows != checkpoint.more.end())
    print_tensors(manifest.base ? "rows that have changed" : "rows", rows->second);
}

int inspect_file(const std::string& path) {
  if (store::is_torch_file(path)) {
    const store::TorchFile file = store::read_torch_file(path);
    fmt::print("{}: the tensors{}, as torch.save() has written them\n", path,
               file.key.empty() ? "" : fmt::format(" of its dictionary '{}'", file.key));
    print_tensors("tensors", file.tensors);
    return 0;
  }
  if (!path.ends_with(".safetensors"))
    fail(ErrorKind::InvalidArgument,
         "{}: neither a checkpoint nor a .safetensors file nor one of torch.save() nor a table (.tsv, .csv, "
         ".parquet); for a text "
         "table with another name, give --no-header, --no-ids or --id",
         path);
  const store::SafetensorsFile file(path);
  fmt::print("{}: the header is valid; the values have no checksum outside a checkpoint\n", path);
  for (const auto& [key, value] : file.metadata()) fmt::print("  {}: {}\n", key, value);
  print_tensors("tensors", file.read_all());
  return 0;
}

// Shows the newest checkpoint that is not damaged. Damaged checkpoints are named, and the exit code is then
// the code of DataLoss.
int inspect_logdir(const std::string& logdir) {
  const store::CheckpointDir directory(logdir);
  const store::CheckpointDir::Loaded loaded = directory.load_latest();
  if (!loaded.checkpoint) {
    fail(ErrorKind::InvalidArgument, "{}: the folder contains no checkpoint (ckpt-<step>)", logdir);
  }
  fmt::print("{}: checkpoints of step {}\n", logdir, fmt::join(directory.steps(), ", "));
  print_checkpoint(fmt::format("{}/ckpt-{}", logdir, loaded.checkpoint->step), *loaded.checkpoint);
  for (const std::string& broken : loaded.skipped) fmt::print(stderr, "broken: {}\n", broken);
  return loaded.skipped.empty() ? 0 : exit_code(ErrorKind::DataLoss);
}

}  // namespace

int inspect_command(const std::vector<std::string>& arguments, const Environment&) {
  CLI::App app(
      "Shows the contents of a checkpoint and verifies all of its bytes, or shows an exported model, a file "
      "of "
      "tensors or the columns of a table.",
      "tutti inspect");
  std::string path;
  std::string id;
  bool no_header = false;
  bool no_ids = false;
  app.add_option("PATH", path,
                 "A checkpoint (a folder ckpt-<step>), a --logdir (its newest checkpoint is shown), an "
                 "exported model "
                 "or a folder of its versions (the newest is shown), a "
                 ".safetensors file, a file of torch.save(), or a table (.tsv, .csv, .parquet, or any text "
                 "table if one of the options "
                 "below is given)")
      ->required();
  auto* const has_id =
      app.add_option("--id", id, "Name of a table's column of IDs (default: the first column)");
  app.add_flag("--no-ids", no_ids, "The table has no column of IDs")->excludes(has_id);
  app.add_flag("--no-header", no_header, "The table does not begin with a row of column names");
  if (!parse_arguments(app, arguments)) return 0;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();

  std::error_code ignored;
  const bool has_table_options = !id.empty() || no_ids || no_header;
  if (path.ends_with(".tsv") || path.ends_with(".csv") || data::is_parquet(path) || has_table_options) {
    data::TextFormat format = data::format_of(path);
    format.id = id;
    format.ids = no_ids ? data::Ids::RowNumbers : data::Ids::Column;
    format.header = !no_header;
    return inspect_table(path, format);
  }
  if (fs::is_regular_file(path, ignored)) return inspect_file(path);
  if (!fs::is_directory(path, ignored))
    fail(ErrorKind::InvalidArgument, "{}: there is no such file or folder", path);
  if (const std::string exported = export_at(path); !exported.empty()) return inspect_export(exported);
  const bool is_checkpoint = fs::exists(path + "/" + store::kManifestName, ignored) ||
                             fs::path(path).filename().string().starts_with("ckpt-");
  if (!is_checkpoint) return inspect_logdir(path);
  print_checkpoint(path, store::load_checkpoint(path));
  return 0;
}

}  // namespace tutti
