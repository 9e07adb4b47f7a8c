#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/inspect_table.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/table.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/manifest.h"
#include "tutti/store/safetensors.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using store::NamedTensor;

// Returns PyTorch's name, such as "float" or "long".
std::string type_name(torch::ScalarType type) {
  std::string name = c10::toString(type);
  for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return name;
}

std::string shape_of(const torch::Tensor& tensor) {
  return tensor.dim() == 0 ? "scalar" : fmt::format("{}", fmt::join(tensor.sizes(), "x"));
}

// Returns minimum, mean and maximum, or the number of values that are not finite.
std::string values_of(const torch::Tensor& tensor) {
  if (tensor.numel() == 0) return "empty";
  const torch::Tensor values = tensor.to(torch::kDouble);
  const auto odd = values.numel() - values.isfinite().sum().item<int64_t>();
  if (odd > 0) return fmt::format("{} of {} values are not finite", odd, values.numel());
  return fmt::format("{:>11.4g} {:>11.4g} {:>11.4g}", values.min().item<double>(),
                     values.mean().item<double>(), values.max().item<double>());
}

void print_table(std::string_view heading, const std::vector<NamedTensor>& tensors) {
  size_t width = 4;
  size_t shape_width = 5;
  int64_t elements = 0;
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    width = std::max(width, name.size());
    shape_width = std::max(shape_width, shape_of(tensor).size());
    elements += tensor.numel();
    bytes += tensor.nbytes();
  }
  fmt::print("\n{}: {} tensors, {} values, {}\n", heading, tensors.size(), elements, human_bytes(bytes));
  if (tensors.empty()) return;
  fmt::print("  {:<{}} {:<8} {:<{}} {:>10} {:>11} {:>11} {:>11}\n", "name", width, "type", "shape",
             shape_width, "bytes", "min", "mean", "max");
  for (const auto& [name, tensor] : tensors) {
    fmt::print("  {:<{}} {:<8} {:<{}} {:>10} {}\n", name, width, type_name(tensor.scalar_type()),
               shape_of(tensor), shape_width, human_bytes(tensor.nbytes()), values_of(tensor));
  }
}

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
    fmt::print("  goes with ckpt-{} beside it, from which it has the {} that have not changed since\n",
               manifest.base->step, fmt::join(manifest.base->parts, ", "));
  print_state(checkpoint.state);
  print_table("weights", checkpoint.weights);
  print_table("optimizer", checkpoint.optimizer);
  if (const auto rows = checkpoint.more.find(store::kRowsPart); rows != checkpoint.more.end())
    print_table(manifest.base ? "rows that have changed" : "rows", rows->second);
}

int inspect_file(const std::string& path) {
  if (!path.ends_with(".safetensors"))
    fail(ErrorKind::InvalidArgument,
         "{}: neither a checkpoint nor a .safetensors file nor a table (.tsv, .csv, .parquet); for a text "
         "table with another name, give --no-header, --no-ids or --id",
         path);
  const store::SafetensorsFile file(path);
  fmt::print("{}: the header is valid; the values have no checksum outside a checkpoint\n", path);
  for (const auto& [key, value] : file.metadata()) fmt::print("  {}: {}\n", key, value);
  print_table("tensors", file.read_all());
  return 0;
}

// Shows the newest checkpoint that is not damaged. If others are damaged, they are named and the exit code is
// that of DataLoss.
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
      "Shows the contents of a checkpoint and verifies all of its bytes, or shows the columns of a table.",
      "tutti inspect");
  std::string path;
  std::string id;
  bool no_header = false;
  bool no_ids = false;
  app.add_option(
         "PATH", path,
         "A checkpoint (a folder ckpt-<step>), a --logdir (its newest checkpoint is shown), a "
         ".safetensors file, or a table (.tsv, .csv, .parquet, or any text table if one of the options "
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
  const bool is_checkpoint = fs::exists(path + "/" + store::kManifestName, ignored) ||
                             fs::path(path).filename().string().starts_with("ckpt-");
  if (!is_checkpoint) return inspect_logdir(path);
  print_checkpoint(path, store::load_checkpoint(path));
  return 0;
}

}  // namespace tutti
