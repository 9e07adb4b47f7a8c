#include "tutti/train/export/torchscript.h"

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <streambuf>
#include <string_view>

#include <fmt/format.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"
#include "tutti/train/export/trace.h"

namespace tutti {
namespace {

namespace jit = torch::jit;

constexpr const char* kModelFile = "model.pt";
constexpr const char* kTrainingFlag = "training";

struct Place {
  std::string module;  // "encoder.0"; "" for the model itself
  std::string name;    // "weight"
};

Place place_of(const std::string& whole) {
  const size_t dot = whole.rfind('.');
  if (dot == std::string::npos) return {"", whole};
  return {whole.substr(0, dot), whole.substr(dot + 1)};
}

// A module of TorchScript with the tensors of a model under their names.
class ScriptTree {
 public:
  explicit ScriptTree(const std::vector<Computation::Function>& functions) {
    for (const Computation::Function& function : functions) methods_.insert(function.name);
    modules_.emplace("", make("Model"));
  }

  void add(const store::NamedTensor& named, bool is_buffer) {
    const auto [path, name] = place_of(named.name);
    if (path.empty()) require_free(name);
    module_at(path).register_parameter(name, named.tensor, is_buffer);
  }
  jit::Module& root() { return modules_.at(""); }

  // Gives the model tensors of its own in place of those that it was traced with: on the CPU, and none of
  // them a part of a larger vector, all of which would be written.
  void own_tensors() {
    for (auto& [path, module] : modules_) {
      for (const auto& attribute : module.named_attributes(/*recurse=*/false)) {
        if (!attribute.value.isTensor()) continue;
        const torch::Tensor& tensor = attribute.value.toTensor();
        const bool is_whole = tensor.storage().nbytes() == tensor.nbytes() && tensor.device().is_cpu();
        torch::Tensor own = is_whole ? tensor.detach() : tensor.detach().to(torch::kCPU, false, true);
        module.setattr(attribute.name, own.set_requires_grad(tensor.requires_grad()));
      }
    }
  }

 private:
  // TorchScript has types by name, one for each module. A number keeps equal names apart.
  jit::Module make(const std::string& name) {
    std::string type = std::string("m_") + name;
    for (char& letter : type) {
      if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
    }
    jit::Module module(c10::QualifiedName(fmt::format("__torch__.tutti.{}_{}", type, count_++)), unit_);
    // torch::jit::Module::eval() and train() need it.
    module.register_attribute(kTrainingFlag, c10::BoolType::get(), false);
    return module;
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  jit::Module& module_at(const std::string& path) {
    const auto found = modules_.find(path);
    if (found != modules_.end()) return found->second;
    const auto [parent, name] = place_of(path);
    if (parent.empty()) require_free(name);
    jit::Module module = make(name);
    module_at(parent).register_module(name, module);
    return modules_.emplace(path, module).first->second;
  }

  void require_free(const std::string& name) const {
    if (methods_.contains(name) || name == kTrainingFlag)
      fail(ErrorKind::InvalidArgument,
           "the model cannot be exported: it has a parameter, buffer or module '{}', which is {}", name,
           name == kTrainingFlag || name == kDefaultFunction
               ? "a name that TorchScript uses itself"
               : "also the name of a signature; give the signature another one");
  }

  const std::shared_ptr<jit::CompilationUnit> unit_ = std::make_shared<jit::CompilationUnit>();
  std::set<std::string> methods_;
  std::map<std::string, jit::Module> modules_;  // by path
  int count_ = 0;
};

// Writes to a file, and keeps the first error for finish(). LibTorch's writer is never told of one, since its
// destructor then throws, which ends the process.
class FileBuffer final : public std::streambuf {
 public:
  FileBuffer(const std::string& path, const OnBytes& on_bytes) : file_(path), on_bytes_(on_bytes) {}

  void finish() {
    if (error_) std::rethrow_exception(error_);
    file_.finish();
  }

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    if (error_) return size;
    try {
      file_.write(std::string_view(text, static_cast<size_t>(size)));
      if (on_bytes_) on_bytes_(size);
    } catch (...) {
      error_ = std::current_exception();
    }
    return size;
  }
  int_type overflow(int_type letter) override {
    const char one = traits_type::to_char_type(letter);
    xsputn(&one, 1);
    return traits_type::not_eof(letter);
  }

 private:
  FileWriter file_;
  const OnBytes& on_bytes_;
  std::exception_ptr error_;
};

// Removes arguments that are not used, and returns the names of the others.
std::vector<std::string> used_arguments(jit::Graph& graph, const Computation::Function& function) {
  std::vector<std::string> used;
  size_t input = 1;  // the first is the module itself
  for (const std::string& name : function.arguments) {
    if (function.drop_unused && !graph.inputs().at(input)->hasUses()) {
      graph.eraseInput(input);
      continue;
    }
    used.push_back(name);
    ++input;
  }
  return used;
}

class LoadedTorchScript final : public LoadedComputation {
 public:
  LoadedTorchScript(const std::string& path, torch::Device device) {
    or_fail(ErrorKind::DataLoss, path + " cannot be loaded", [&] { module_ = jit::load(path, device); });
  }

  std::vector<store::NamedTensor> tensors() const override {
    std::vector<store::NamedTensor> tensors;
    for (const auto& parameter : module_.named_parameters())
      tensors.push_back({parameter.name, parameter.value});
    for (const auto& buffer : module_.named_buffers()) tensors.push_back({buffer.name, buffer.value});
    return tensors;
  }

  // LibTorch optimises a module's program during its first calls, which changes the last bits.
  Computation::Tensors run(const std::string& function, const Computation::Tensors& inputs,
                           Mode mode) override {
    const torch::NoGradGuard no_grad;
    const jit::GraphOptimizerEnabledGuard optimises(mode == Mode::Optimised);
    const jit::IValue result =
        module_.get_method(function)(std::vector<jit::IValue>(inputs.begin(), inputs.end()));
    if (result.isTensor()) return {result.toTensor()};
    Computation::Tensors results;
    for (const jit::IValue& element : result.toTupleRef().elements()) results.push_back(element.toTensor());
    return results;
  }

 private:
  jit::Module module_;
};

}  // namespace

ExportFormat::Written TorchScriptFormat::write(const Computation& computation,
                                               const std::string& folder) const {
  ScriptTree tree(computation.functions);
  for (const store::NamedTensor& named : computation.parameters) tree.add(named, /*is_buffer=*/false);
  for (const store::NamedTensor& named : computation.buffers) tree.add(named, /*is_buffer=*/true);
  jit::Module& module = tree.root();
  Written written;
  std::vector<std::shared_ptr<jit::Graph>> graphs;
  std::set<std::string> reads;
  for (const Computation::Function& function : computation.functions) {
    const Traced traced = trace_for_any_sizes(module, function);
    written.arguments.push_back(used_arguments(*traced.graph, function));
    graphs.push_back(traced.graph);
    reads.insert(traced.reads.begin(), traced.reads.end());
  }
  for (const std::string& read : reads)
    written.doubts.push_back(fmt::format(
        "the model reads values of tensors while it predicts ({}); what it does with them is fixed in "
        "the exported model",
        read));
  FileBuffer file(fmt::format("{}/{}", folder, kModelFile), computation.on_bytes);
  or_fail(ErrorKind::InvalidArgument, "the model cannot be exported", [&] {
    for (size_t i = 0; i < graphs.size(); ++i) {
      const c10::QualifiedName name(*module.type()->name(), computation.functions[i].name);
      module.type()->addMethod(module._ivalue()->compilation_unit()->create_function(name, graphs[i]));
    }
    tree.own_tensors();
    std::ostream stream(&file);
    module.save(stream);
  });
  file.finish();
  return written;
}

std::unique_ptr<LoadedComputation> TorchScriptFormat::load(const std::string& folder,
                                                           torch::Device device) const {
  return std::make_unique<LoadedTorchScript>(fmt::format("{}/{}", folder, kModelFile), device);
}

std::shared_ptr<const ExportFormat> export_format(const std::string& name) {
  const auto torchscript = std::make_shared<const TorchScriptFormat>();
  if (name == torchscript->name()) return torchscript;
  fail(ErrorKind::InvalidArgument, "there is no format '{}' of exported models; there is {}", name,
       torchscript->name());
}

}  // namespace tutti
