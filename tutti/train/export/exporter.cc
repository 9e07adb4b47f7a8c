#include "tutti/train/export/exporter.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <string_view>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>
#include <torch/version.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"
#include "tutti/base/type_name.h"
#include "tutti/base/version.h"
#include "tutti/comm/executor.h"
#include "tutti/params/parameters.h"
#include "tutti/store/folder_lock.h"
#include "tutti/train/export/check.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using embedding::NamedTable;

constexpr double kTolerance = 1e-5;
constexpr double kToleranceOfLowerPrecision = 0.02;

double tolerance_of(const TrainedModel& model, const ExportOptions& options) {
  const double tolerance =
      options.tolerance.value_or(model.lower_precision ? kToleranceOfLowerPrecision : kTolerance);
  if (!(tolerance >= 0) || !std::isfinite(tolerance))
    fail(ErrorKind::InvalidArgument, "the tolerance of an export is {}, expected 0 or more", tolerance);
  return tolerance;
}

void require_distinct(const std::vector<std::string>& names, const char* what) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name.empty() || !seen.insert(name).second)
      fail(ErrorKind::InvalidArgument, "an export has {} '{}' {}", what, name,
           name.empty() ? "without a name" : "twice");
  }
}

// The name of a file below assets/ must not lead out of it.
void require_asset(const std::string& name, const std::string& path) {
  const fs::path relative(name);
  const bool leads_out = std::any_of(relative.begin(), relative.end(),
                                     [](const fs::path& part) { return part == ".." || part == "."; });
  if (name.empty() || relative.is_absolute() || leads_out)
    fail(ErrorKind::InvalidArgument, "the asset '{}' needs a relative path without '..' as its name", name);
  if (!path_exists(path)) fail(ErrorKind::InvalidArgument, "the asset '{}': {} does not exist", name, path);
}

// A name that Python and TorchScript accept for an argument.
std::string identifier_of(const std::string& name, std::set<std::string>& taken) {
  constexpr std::array<std::string_view, 42> kWords = {
      "self",  "False", "None",     "True",  "and",    "as",       "assert", "async",  "await",
      "break", "class", "continue", "def",   "del",    "elif",     "else",   "except", "finally",
      "for",   "from",  "global",   "if",    "import", "in",       "is",     "lambda", "nonlocal",
      "not",   "or",    "pass",     "print", "raise",  "return",   "try",    "while",  "with",
      "yield", "inf",   "nan",      "torch", "ops",    "CONSTANTS"};
  std::string identifier = std::isdigit(static_cast<unsigned char>(name.front())) != 0 ? "_" : "";
  for (const char letter : name)
    identifier += std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  if (std::find(kWords.begin(), kWords.end(), identifier) != kWords.end()) identifier += '_';
  while (!taken.insert(identifier).second) identifier += '_';
  return identifier;
}

Batch narrowed(const Batch& batch, int64_t examples) {
  Batch::Tensors tensors;
  for (const auto& [name, tensor] : batch.tensors())
    tensors.emplace_back(name, tensor.narrow(0, 0, examples));
  return Batch(std::move(tensors));
}

// Type and shape of a tensor in several batches; null for sizes that are not the same in all of them.
Json spec_of(const std::string& name, const std::vector<torch::Tensor>& values) {
  Json shape = Json::array();
  for (int64_t d = 0; d < values.front().dim(); ++d) {
    const bool is_fixed = std::all_of(values.begin(), values.end(), [&](const torch::Tensor& value) {
      return value.dim() == values.front().dim() && value.size(d) == values.front().size(d);
    });
    shape.push_back(is_fixed ? Json(values.front().size(d)) : Json());
  }
  return {{"name", name}, {"dtype", type_name(values.front().scalar_type())}, {"shape", shape}};
}

// Sets how the tables make their lookups, until the end of the scope.
class LookUpScope {
 public:
  using Make = std::function<torch::Tensor(const NamedTable& table, const torch::Tensor& ids,
                                           const std::function<torch::Tensor()>& own)>;

  LookUpScope(const std::vector<NamedTable>& tables, const Make& make) : tables_(tables) {
    for (const NamedTable& each : tables_)
      each.table->look_up_by(
          [&each, make](const torch::Tensor& ids, const auto& own) { return make(each, ids, own); });
  }
  ~LookUpScope() {
    for (const NamedTable& each : tables_) each.table->look_up_by({});
  }
  LookUpScope(const LookUpScope&) = delete;
  LookUpScope& operator=(const LookUpScope&) = delete;

 private:
  const std::vector<NamedTable>& tables_;
};

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

std::string version_path(const std::string& dir, int64_t version) {
  return fmt::format("{}/{}", dir, version);
}

int64_t next_version(const std::string& dir) {
  int64_t greatest = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const auto number = parse_int(entry.path().filename().string());
    if (number) greatest = std::max(greatest, *number);
  }
  if (greatest == std::numeric_limits<int64_t>::max())
    fail(ErrorKind::InvalidArgument, "{}: there is no number above that of the version {}", dir, greatest);
  return greatest + 1;
}

void require_free_version(const std::string& dir, int64_t version) {
  if (version > 0 && path_exists(version_path(dir, version)))
    fail(ErrorKind::InvalidArgument,
         "{} exists already: export to another version, or with version 0 for the next number",
         version_path(dir, version));
}

// Gives the folder its name. Another process may export to the same place at the same time.
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

}  // namespace

ExportFormat::Written write_with_weights(const ExportFormat& format, const Computation& computation,
                                         const std::string& folder) {
  comm::Executor writer;
  const comm::Work weights = writer.run([&] {
    std::vector<store::NamedTensor> tensors = computation.parameters;
    tensors.insert(tensors.end(), computation.buffers.begin(), computation.buffers.end());
    static_cast<void>(store::write_safetensors(folder + "/weights.safetensors", tensors));
  });
  ExportFormat::Written written = format.write(computation, folder);
  weights.wait();
  return written;
}

void require_tables_to_leave_out(const std::vector<std::string>& leave_out,
                                 const std::vector<NamedTable>& tables) {
  std::vector<std::string> known;
  for (const NamedTable& each : tables) known.push_back(each.name);
  for (const std::string& name : leave_out) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail(ErrorKind::InvalidArgument, "the model has no embedding '{}' to leave out{}; it has: {}", name,
           did_you_mean(name, known), known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
  }
}

Exporter::Exporter(const TrainedModel& model, const data::Feed& examples, const ExportOptions& options)
    : model_(model),
      options_(options),
      format_(options.format ? options.format : export_format("torchscript")),
      tolerance_(tolerance_of(model, options)),
      tables_(embedding::tables_in(model.module)) {
  require_distinct(options.signature.inputs, "the input");
  require_distinct(options.signature.outputs, "the output");
  if (options.signature.outputs.empty()) fail(ErrorKind::InvalidArgument, "an export without an output");
  if (options.version < 0)
    fail(ErrorKind::InvalidArgument, "the version of an export is {}, expected 0 or more", options.version);
  if (options.examples < 1)
    fail(ErrorKind::InvalidArgument, "an export with {} examples, expected 1 or more", options.examples);
  for (const auto& [name, path] : options.assets) require_asset(name, path);
  require_tables_to_leave_out(options.leave_out, tables_);
  for (const NamedTable& each : tables_) {
    if (each.table->options().dynamic && !is_left_out(each.name))
      fail(ErrorKind::InvalidArgument,
           "the embedding '{}' is dynamic: ids that it has not seen have rows that an exported model cannot "
           "make. Let the program leave it out (ExportOptions::leave_out), so that its vectors become inputs",
           each.name);
  }
  read_batches(examples);
}

bool Exporter::is_left_out(const std::string& table) const {
  return std::find(options_.leave_out.begin(), options_.leave_out.end(), table) != options_.leave_out.end();
}

// The first two batches are traced. The second is a part of the first, so that both have the same longest
// list.
void Exporter::read_batches(const data::Feed& examples) {
  if (examples.size() == 0)
    fail(ErrorKind::InvalidArgument,
         "the feed has no examples, with which an exported model is traced and checked");
  const auto read = [&](int64_t begin, int64_t count) {
    std::vector<int64_t> indices;
    for (int64_t i = begin; i < begin + count; ++i) indices.push_back(i % examples.size());
    const Batch batch = examples.read(indices);
    if (batch.size() != count) fail(ErrorKind::InvalidArgument, "the feed changes the number of examples");
    return batch.to(model_.device);
  };
  constexpr int64_t kFewest = 4;
  constexpr int64_t kMore = 7;
  const int64_t count = std::max(options_.examples, kFewest);
  const Batch first = read(0, count);
  batches_ = {first, narrowed(first, count / 2), read(0, 1), read(count, kMore)};
  for (const std::string& name : options_.signature.inputs) static_cast<void>(first[name]);  // throws
}

// Returns the tensors of a batch that become inputs, or may do so.
Batch Exporter::inputs_of(const Batch& batch) const {
  if (options_.signature.inputs.empty()) return batch;
  Batch::Tensors tensors;
  for (const std::string& name : options_.signature.inputs) tensors.emplace_back(name, batch[name]);
  return Batch(std::move(tensors));
}

void Exporter::add_vectors(size_t batch, const NamedTable& table, const torch::Tensor& ids,
                           const torch::Tensor& vectors) {
  const size_t index = lookup_++;
  if (index == vectors_.size()) {
    vectors_.push_back({.name = table.name + ".vectors", .argument = {}, .table = table.name});
    for (const auto& [name, tensor] : batches_[batch].tensors()) {
      if (tensor.is_same(ids)) vectors_.back().ids = name;
    }
  }
  Argument& argument = vectors_[index];
  if (argument.table != table.name || argument.values.size() != batch)
    fail(ErrorKind::InvalidArgument,
         "the model does not look up the same tables for every batch, so that '{}' cannot be left out",
         table.name);
  argument.values.push_back(vectors);
}

void Exporter::predict(size_t batch) {
  lookup_ = 0;
  const LookUpScope recorded(tables_,
                             [&](const NamedTable& table, const torch::Tensor& ids, const auto& own) {
                               const torch::Tensor vectors = own();
                               if (is_left_out(table.name)) add_vectors(batch, table, ids, vectors);
                               return vectors;
                             });
  const std::vector<torch::Tensor> outputs = model_.outputs(inputs_of(batches_[batch]));
  if (outputs.size() != options_.signature.outputs.size())
    fail(ErrorKind::InvalidArgument, "the signature names {} outputs ({}), but its function returns {}",
         options_.signature.outputs.size(), fmt::join(options_.signature.outputs, ", "), outputs.size());
  outputs_.emplace_back();
  for (const torch::Tensor& output : outputs) outputs_.back().push_back(output.detach().cpu().contiguous());
}

void Exporter::gather() {
  const auto is_wanted = [&](const NamedTable& each) {
    return !each.weight.defined() && !is_left_out(each.name);
  };
  if (std::none_of(tables_.begin(), tables_.end(), is_wanted)) return;
  const std::map<std::string, torch::Tensor> rows = model_.rows();
  for (const NamedTable& each : tables_) {
    const auto found = rows.find(each.name + ".weight");
    if (is_wanted(each) && found != rows.end()) rows_[each.name] = found->second.to(model_.device);
  }
}

// The inputs are those of the batch, and then the vectors of the tables that are left out.
std::vector<Exporter::Argument> Exporter::arguments() const {
  std::vector<Argument> all;
  const Batch inputs = inputs_of(batches_.front());
  for (const auto& [name, tensor] : inputs.tensors()) {
    all.push_back({.name = name, .argument = {}});
    for (const Batch& batch : batches_) all.back().values.push_back(batch[name]);
  }
  std::map<std::string, int> count;
  for (const Argument& vectors : vectors_) ++count[vectors.name];
  std::map<std::string, int> next;
  for (const Argument& vectors : vectors_) {
    all.push_back(vectors);
    if (count[vectors.name] > 1) all.back().name += fmt::format(".{}", ++next[vectors.name]);
  }
  std::set<std::string> taken;
  for (Argument& argument : all) argument.argument = identifier_of(argument.name, taken);
  return all;
}

// Computes the outputs as the exported model will: by operators that can be traced.
std::vector<torch::Tensor> Exporter::compute(const std::vector<Argument>& arguments,
                                             const std::vector<torch::Tensor>& inputs) const {
  const size_t columns = arguments.size() - vectors_.size();
  size_t next_vectors = columns;
  const LookUpScope traceable(
      tables_, [&](const NamedTable& table, const torch::Tensor& ids, const auto&) -> torch::Tensor {
        if (is_left_out(table.name)) return inputs.at(next_vectors++);
        return table.table->look_up_by_operators(table.weight.defined() ? table.weight : rows_.at(table.name),
                                                 ids);
      });
  Batch::Tensors tensors;
  for (size_t i = 0; i < columns; ++i) tensors.emplace_back(arguments[i].name, inputs[i]);
  return model_.outputs(Batch(std::move(tensors)));
}

std::vector<store::NamedTensor> Exporter::parameters() const {
  std::unordered_set<const void*> seen;
  for (const NamedTable& each : tables_) {
    if (each.weight.defined() && is_left_out(each.name)) seen.insert(each.weight.unsafeGetTensorImpl());
  }
  std::vector<store::NamedTensor> all;
  for (const auto& item : model_.module.named_parameters()) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      all.push_back({item.key(), item.value()});
  }
  for (const auto& [table, rows] : rows_) all.push_back({table + ".weight", rows});
  return all;
}

std::vector<store::NamedTensor> Exporter::buffers() const {
  std::unordered_set<const void*> seen;
  std::vector<store::NamedTensor> all;
  for (const auto& item : model_.module.named_buffers()) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      all.push_back({item.key(), item.value()});
  }
  return all;
}

Json Exporter::signature(const std::vector<Argument>& arguments) const {
  const std::vector<data::Column> columns = data::columns_in(batches_.front());
  const auto is_ragged = [&](const std::string& name) {
    return std::any_of(columns.begin(), columns.end(),
                       [&](const data::Column& column) { return column.name == name && column.is_ragged; });
  };
  Json inputs = Json::array();
  for (const Argument& argument : arguments) {
    Json input = spec_of(argument.name, argument.values);
    input["argument"] = argument.argument;
    if (!argument.table.empty()) input["table"] = argument.table;
    if (!argument.ids.empty()) input["ids"] = argument.ids;
    if (is_ragged(argument.name)) input["shape"].back() = nullptr;
    inputs.push_back(std::move(input));
  }
  Json outputs = Json::array();
  for (size_t i = 0; i < options_.signature.outputs.size(); ++i) {
    std::vector<torch::Tensor> values;
    for (const auto& of_batch : outputs_) values.push_back(of_batch[i]);
    outputs.push_back(spec_of(options_.signature.outputs[i], values));
  }
  return {{"inputs", inputs}, {"outputs", outputs}};
}

void Exporter::write_files(const std::string& folder, Result& result) const {
  std::vector<Argument> arguments = this->arguments();
  Computation computation{.parameters = parameters(),
                          .buffers = buffers(),
                          .arguments = {},
                          .function = [&](const auto& inputs) { return compute(arguments, inputs); },
                          .examples = std::vector<Computation::Tensors>(2),
                          .drop_unused = options_.signature.inputs.empty()};
  for (const Argument& argument : arguments) {
    computation.arguments.push_back(argument.argument);
    for (size_t i = 0; i < computation.examples.size(); ++i)
      computation.examples[i].push_back(argument.values[i]);
  }
  const ExportFormat::Written written = write_with_weights(*format_, computation, folder);
  result.doubts = written.doubts;
  std::erase_if(arguments, [&](const Argument& argument) {
    return std::find(written.arguments.begin(), written.arguments.end(), argument.argument) ==
           written.arguments.end();
  });

  std::vector<CheckedBatch> checked;
  for (size_t i = 0; i < batches_.size(); ++i) {
    checked.push_back({{}, outputs_.at(i)});
    for (const Argument& argument : arguments)
      checked.back().inputs.push_back(argument.values[i].cpu().contiguous());
    result.examples += batches_[i].size();
  }
  const CheckResult check = check_export(folder, checked,
                                         {.format = format_->name(),
                                          .outputs = options_.signature.outputs,
                                          .device = model_.device,
                                          .threads = model_.threads,
                                          .tolerance = tolerance_,
                                          .program = model_.checker,
                                          .timeout = model_.timeout});
  result.same_bits = check.same_bits;
  result.greatest_difference = check.greatest_difference;

  for (const auto& [name, path] : options_.assets) copy_asset(path, fs::path(folder) / "assets" / name);
  Json text = {{"format", format_->name()}, {"files", format_->files()}};
  text.update(signature(arguments));
  text.update(model_.facts);
  text["tutti_version"] = version();
  text["libtorch_version"] = TORCH_VERSION;
  text["check"] = {{"examples", result.examples},
                   {"same_bits", result.same_bits},
                   {"greatest_difference", result.greatest_difference},
                   {"tolerance", tolerance_}};
  replace_file(folder + "/signature.json", text.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  sync_directory(folder);
}

Exporter::Result Exporter::write(const std::string& dir) const {
  if (dir.empty()) fail(ErrorKind::InvalidArgument, "an export needs a directory");
  make_directories(dir);
  require_free_version(dir, options_.version);
  store::remove_leftovers(dir);
  store::TemporaryFolder folder(dir);
  Result result;
  write_files(folder.path(), result);
  result.path = publish_version(folder, dir, options_.version);
  return result;
}

}  // namespace tutti
