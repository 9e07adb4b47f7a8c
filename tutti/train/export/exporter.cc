#include "tutti/train/export/exporter.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <set>
#include <string_view>
#include <unordered_map>

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
#include "tutti/params/parameters.h"
#include "tutti/train/export/versions.h"
#include "tutti/transport/executor.h"

namespace tutti {
namespace {

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

int64_t bytes_of(const Computation& computation) {
  size_t bytes = 0;
  for (const auto* tensors : {&computation.parameters, &computation.buffers}) {
    for (const store::NamedTensor& named : *tensors) bytes += named.tensor.nbytes();
  }
  return static_cast<int64_t>(bytes);
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

}  // namespace

ExportFormat::Written write_with_weights(const ExportFormat& format, const Computation& computation,
                                         const std::string& folder) {
  comm::Executor writer;
  const comm::Work weights = writer.run([&] {
    std::vector<store::NamedTensor> tensors = computation.parameters;
    tensors.insert(tensors.end(), computation.buffers.begin(), computation.buffers.end());
    static_cast<void>(store::write_safetensors(folder + "/weights.safetensors", tensors, {{"format", "pt"}},
                                               computation.tied, computation.on_bytes));
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
      tables_(embedding::tables_in(model.module)),
      examples_(read_export_examples(examples, options, model.device)) {
  if (options.version < 0)
    fail(ErrorKind::InvalidArgument, "the version of an export is {}, expected 0 or more", options.version);
  require_assets(options.assets);
  require_tables_to_leave_out(options.leave_out, tables_);
  for (const NamedTable& each : tables_) {
    if (each.table->options().dynamic && !is_left_out(each.name))
      fail(ErrorKind::InvalidArgument,
           "the embedding '{}' is dynamic: ids that it has not seen have rows that an exported model cannot "
           "make. Let the program leave it out (ExportOptions::leave_out), so that its vectors become inputs",
           each.name);
  }
  add_function(kDefaultFunction, options.signature);
  for (const auto& [name, signature] : options.more_signatures) {
    std::set<std::string> taken = {kDefaultFunction, "train", "eval"};
    if (name.empty() || identifier_of(name, taken) != name)
      fail(ErrorKind::InvalidArgument,
           "the signature '{}' of an export needs another name, which a function in Python can have, such "
           "as 'embed', but not 'forward', which is the name of ExportOptions::signature",
           name);
    add_function(name, signature);
  }
}

void Exporter::add_function(const std::string& name, const Signature& signature) {
  require_distinct(signature.inputs, "the input");
  require_distinct(signature.outputs, "the output");
  if (signature.outputs.empty())
    fail(ErrorKind::InvalidArgument, "an export without an output{}",
         name == kDefaultFunction ? "" : fmt::format(" of the signature '{}'", name));
  for (const std::string& input : signature.inputs)
    static_cast<void>(examples_.batches.front()[input]);  // throws
  functions_.push_back({.name = name, .signature = signature});
}

bool Exporter::is_left_out(const std::string& table) const {
  return std::find(options_.leave_out.begin(), options_.leave_out.end(), table) != options_.leave_out.end();
}

// Returns the tensors of a batch that become inputs, or may do so.
Batch Exporter::inputs_of(const Function& function, const Batch& batch) {
  if (function.signature.inputs.empty()) return batch;
  Batch::Tensors tensors;
  for (const std::string& name : function.signature.inputs) tensors.emplace_back(name, batch[name]);
  return Batch(std::move(tensors));
}

void Exporter::add_vectors(Function& function, size_t batch, const NamedTable& table,
                           const torch::Tensor& ids, const torch::Tensor& vectors) {
  const size_t index = function.lookup++;
  if (index == function.vectors.size()) {
    function.vectors.push_back({.name = table.name + ".vectors", .argument = {}, .table = table.name});
    for (const auto& [name, tensor] : examples_.batches[batch].tensors()) {
      if (tensor.is_same(ids)) function.vectors.back().ids = name;
    }
  }
  Argument& argument = function.vectors[index];
  if (argument.table != table.name || argument.values.size() != batch)
    fail(ErrorKind::InvalidArgument,
         "the model does not look up the same tables for every batch, so that '{}' cannot be left out",
         table.name);
  argument.values.push_back(vectors);
}

void Exporter::predict(size_t batch) {
  for (Function& function : functions_) predict(function, batch);
}

void Exporter::predict(Function& function, size_t batch) {
  function.lookup = 0;
  const LookUpScope recorded(tables_,
                             [&](const NamedTable& table, const torch::Tensor& ids, const auto& own) {
                               const torch::Tensor vectors = own();
                               if (is_left_out(table.name)) add_vectors(function, batch, table, ids, vectors);
                               return vectors;
                             });
  const std::vector<std::string>& names = function.signature.outputs;
  const std::vector<torch::Tensor> outputs =
      model_.outputs(inputs_of(function, examples_.batches[batch]), function.signature);
  if (outputs.size() != names.size())
    fail(ErrorKind::InvalidArgument, "the signature names {} outputs ({}), but its function returns {}",
         names.size(), fmt::join(names, ", "), outputs.size());
  function.outputs.emplace_back();
  for (const torch::Tensor& output : outputs)
    function.outputs.back().push_back(output.detach().cpu().contiguous());
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

// The inputs are the tensors of the batch, and then the vectors of the tables that are left out.
std::vector<Exporter::Argument> Exporter::arguments(const Function& function) const {
  std::vector<Argument> all;
  const Batch inputs = inputs_of(function, examples_.batches.front());
  for (const auto& [name, tensor] : inputs.tensors()) {
    all.push_back({.name = name, .argument = {}});
    for (const Batch& batch : examples_.batches) all.back().values.push_back(batch[name]);
  }
  std::map<std::string, int> count;
  for (const Argument& vectors : function.vectors) ++count[vectors.name];
  std::map<std::string, int> next;
  for (const Argument& vectors : function.vectors) {
    all.push_back(vectors);
    if (count[vectors.name] > 1) all.back().name += fmt::format(".{}", ++next[vectors.name]);
  }
  std::set<std::string> taken;
  for (Argument& argument : all) argument.argument = identifier_of(argument.name, taken);
  return all;
}

// Computes the outputs as the exported model will: by operators that can be traced.
std::vector<torch::Tensor> Exporter::compute(const Function& function, const std::vector<Argument>& arguments,
                                             const std::vector<torch::Tensor>& inputs) const {
  const size_t columns = arguments.size() - function.vectors.size();
  size_t next_vectors = columns;
  const LookUpScope traceable(
      tables_, [&](const NamedTable& table, const torch::Tensor& ids, const auto&) -> torch::Tensor {
        if (is_left_out(table.name)) return inputs.at(next_vectors++);
        return table.table->look_up_by_operators(table.weight.defined() ? table.weight : rows_.at(table.name),
                                                 ids);
      });
  Batch::Tensors tensors;
  for (size_t i = 0; i < columns; ++i) tensors.emplace_back(arguments[i].name, inputs[i]);
  return model_.outputs(Batch(std::move(tensors)), function.signature);
}

// Sizes that none of the arguments has keep their first value, so that there are no examples for the second.
Computation::Function Exporter::traced(const Function& function,
                                       const std::vector<Argument>& arguments) const {
  Computation::Function traced{
      .name = function.name,
      .body = [&](const auto& inputs) { return compute(function, arguments, inputs); },
      .sizes = {{.name = "examples", .places = {}}},
      .drop_unused = function.signature.inputs.empty()};
  for (const Argument& argument : arguments) traced.arguments.push_back(argument.argument);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& values = arguments[i].values;
    if (values[0].dim() > 0 && values[0].size(0) == examples_.batches[0].size() &&
        values[1].size(0) == examples_.batches[1].size())
      traced.sizes.front().places.push_back({i, 0});
  }
  std::vector<size_t> batches = {0, 1};
  for (size_t k = 0; k < examples_.sizes.size(); ++k) {
    Computation::Size size{.name = examples_.sizes[k].name, .places = {}};
    for (const auto& [input, dimension] : examples_.sizes[k].of) {
      for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i].name == input) size.places.push_back({i, dimension});
      }
    }
    if (size.places.empty()) continue;
    traced.sizes.push_back(std::move(size));
    for (size_t i = 0, count = batches.size(); i < count; ++i) batches.push_back(batches[i] | size_t{2} << k);
  }
  for (const size_t batch : batches) {
    traced.examples.emplace_back();
    for (const Argument& argument : arguments) traced.examples.back().push_back(argument.values[batch]);
  }
  return traced;
}

Computation Exporter::computation(const std::vector<std::vector<Argument>>& arguments) const {
  Computation computation;
  std::unordered_map<const void*, std::string> first_names;
  const auto add = [&](std::vector<store::NamedTensor>& all, const std::string& name,
                       const torch::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto [first, is_new] = first_names.emplace(tensor.unsafeGetTensorImpl(), name);
    if (is_new)
      all.push_back({name, tensor});
    else if (!first->second.empty())
      computation.tied.emplace(name, first->second);
  };
  for (const NamedTable& each : tables_) {
    if (each.weight.defined() && is_left_out(each.name))
      first_names.emplace(each.weight.unsafeGetTensorImpl(), "");
  }
  for (const auto& item : model_.module.named_parameters())
    add(computation.parameters, item.key(), item.value());
  for (const auto& [table, rows] : rows_) computation.parameters.push_back({table + ".weight", rows});
  for (const auto& item : model_.module.named_buffers()) add(computation.buffers, item.key(), item.value());
  for (size_t i = 0; i < functions_.size(); ++i)
    computation.functions.push_back(traced(functions_[i], arguments[i]));
  return computation;
}

Json Exporter::signature(const Function& function, const std::vector<Argument>& arguments) const {
  Json inputs = Json::array();
  for (const Argument& argument : arguments) {
    Json input = spec_of(argument.name, argument.values);
    input["argument"] = argument.argument;
    if (!argument.table.empty()) input["table"] = argument.table;
    if (!argument.ids.empty()) input["ids"] = argument.ids;
    inputs.push_back(std::move(input));
  }
  Json outputs = Json::array();
  for (size_t i = 0; i < function.signature.outputs.size(); ++i) {
    std::vector<torch::Tensor> values;
    for (const auto& of_batch : function.outputs) values.push_back(of_batch[i]);
    outputs.push_back(spec_of(function.signature.outputs[i], values));
  }
  return {{"inputs", inputs}, {"outputs", outputs}};
}

Json Exporter::json_of_check(const CheckResult& result) const {
  int64_t count = 0;
  for (const Batch& batch : examples_.batches) count += batch.size();
  Json check = {{"examples", count},
                {"same_bits", result.same_bits},
                {"greatest_difference", result.greatest_difference},
                {"tolerance", tolerance_}};
  for (const FreeSize& size : examples_.sizes) check["sizes"][size.name] = examples_.values_of(size);
  return check;
}

void Exporter::write_files(const std::string& folder, Result& result, const OnProgress& on_progress) const {
  std::vector<std::vector<Argument>> all;
  for (const Function& function : functions_) all.push_back(arguments(function));
  Computation whole = computation(all);
  whole.on_bytes =
      counted(on_progress, 2 * bytes_of(whole));  // in the file of the format, and in the weights
  const ExportFormat::Written written = write_with_weights(*format_, whole, folder);
  result.doubts = written.doubts;

  std::vector<CheckedFunction> checked;
  for (size_t f = 0; f < functions_.size(); ++f) {
    const std::vector<std::string>& left = written.arguments.at(f);
    std::erase_if(all[f], [&](const Argument& argument) {
      return std::find(left.begin(), left.end(), argument.argument) == left.end();
    });
    checked.push_back({.name = functions_[f].name, .outputs = functions_[f].signature.outputs});
    for (size_t i = 0; i < examples_.batches.size(); ++i) {
      checked.back().batches.push_back({{}, functions_[f].outputs.at(i)});
      for (const Argument& argument : all[f])
        checked.back().batches.back().inputs.push_back(argument.values[i].cpu().contiguous());
    }
  }
  result.checks = check_export(folder, checked,
                               {.format = format_->name(),
                                .device = model_.device,
                                .threads = model_.threads,
                                .tolerance = tolerance_,
                                .program = model_.checker,
                                .timeout = model_.timeout});

  copy_assets(options_.assets, folder);
  Json& text = result.signature;
  text = {{"format", format_->name()}, {"files", format_->files()}};
  text.update(signature(functions_[0], all[0]));
  for (size_t f = 1; f < functions_.size(); ++f) {
    Json& more = text["more_signatures"][functions_[f].name];
    more = signature(functions_[f], all[f]);
    more["check"] = json_of_check(result.checks.at(f));
  }
  text.update(model_.facts);
  text["tutti_version"] = version();
  text["libtorch_version"] = TORCH_VERSION;
  text["check"] = json_of_check(result.checks.at(0));
  replace_file(folder + "/" + kSignatureFile,
               text.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  sync_directory(folder);
}

Exporter::Result Exporter::write(const std::string& dir, const OnProgress& on_progress) const {
  if (dir.empty()) fail(ErrorKind::InvalidArgument, "an export needs a directory");
  make_directories(dir);
  require_free_version(dir, options_.version);
  store::remove_leftovers(dir);
  store::TemporaryFolder folder(dir);
  Result result;
  write_files(folder.path(), result, on_progress);
  result.path = publish_version(folder, dir, options_.version);
  return result;
}

}  // namespace tutti
