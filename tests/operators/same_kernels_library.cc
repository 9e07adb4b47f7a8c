// A shared library by which check_operators.py gives a process of Python the kernels of this module. The
// process has to import torch first, so that this library uses the LibTorch of that wheel.
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include <ATen/record_function.h>
#include <torch/version.h>

#include "tutti/kernels/instructions.h"
#include "tutti/kernels/operator_list.h"
#include "tutti/kernels/same_kernels.h"

namespace {

using tutti::kernels::OperatorKind;

const char* name_of(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::Ours:
      return "ours";
    case OperatorKind::Exact:
      return "exact";
    case OperatorKind::MadeOfOthers:
      return "made of others";
    case OperatorKind::NotCovered:
      break;
  }
  return "not covered";
}

// The operators that LibTorch has called since the last call of tutti_called().
struct Called {
  std::mutex mutex;
  std::set<std::string> names;
};

Called& called() {
  static Called all;
  return all;
}

std::unique_ptr<at::ObserverContext> remember(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  if (!name.has_value()) return nullptr;
  const std::lock_guard lock(called().mutex);
  called().names.insert(c10::toString(*name));
  return nullptr;
}

std::unique_ptr<tutti::kernels::SameKernels>& same() {
  static std::unique_ptr<tutti::kernels::SameKernels> kernels;
  return kernels;
}

}  // namespace

extern "C" {

// From now on, or no longer, the kernels of this process are the same everywhere.
void tutti_same_kernels(int on) {
  same().reset();
  if (on != 0) same() = std::make_unique<tutti::kernels::SameKernels>();
}

void tutti_use_instructions(const char* name) { tutti::kernels::use_instructions(name); }

// Returns available_instructions() as words.
const char* tutti_instructions() {
  static const std::string kAll = [] {
    std::string names;
    for (const std::string& name : tutti::kernels::available_instructions())
      names += (names.empty() ? "" : " ") + name;
    return names;
  }();
  return kAll.c_str();
}

const char* tutti_torch_version() { return TORCH_VERSION; }

void tutti_remember_calls() {
  at::addGlobalCallback(at::RecordFunctionCallback(remember).scopes({at::RecordScope::FUNCTION}));
}

// Returns lines "kind name" of the operators that were called since the last call. The text is valid until
// the next call.
const char* tutti_called() {
  static std::string text;
  const std::lock_guard lock(called().mutex);
  text.clear();
  for (const std::string& name : called().names) {
    const size_t dot = name.find('.');
    const c10::OperatorName operation(name.substr(0, dot),
                                      dot == std::string::npos ? "" : name.substr(dot + 1));
    text += std::string(name_of(tutti::kernels::kind_of(operation))) + "\t" + name + "\n";
  }
  called().names.clear();
  return text.c_str();
}

}  // extern "C"
