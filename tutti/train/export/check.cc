#include "tutti/train/export/check.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/guarded_main.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/params/parameters.h"
#include "tutti/store/safetensors.h"
#include "tutti/train/export/format.h"
#include "tutti/train/export/trace.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

// Tells a process to check the model in this folder.
constexpr const char* kVariable = "_TUTTI_EXPORT_CHECK";
constexpr const char* kCheckFolder = "check";
constexpr const char* kChecker = "tutti-torch";

std::string file_in(const std::string& folder, const char* name) {
  return fmt::format("{}/{}/{}", folder, kCheckFolder, name);
}

std::string tensor_name(const std::string& function, size_t batch, const char* what, size_t index) {
  return fmt::format("{}.{}.{}.{}", function, batch, what, index);
}

// --- The process that asks

std::string checker_in(const fs::path& folder) {
  const fs::path path = folder / kChecker;
  return ::access(path.c_str(), X_OK) == 0 ? path.string() : "";
}

std::string find_checker(const Environment& environment) {
  std::error_code ignored;
  std::string found = checker_in(fs::read_symlink("/proc/self/exe", ignored).parent_path());
  for (const std::string& folder : split(environment.get("PATH").value_or(""), ':')) {
    if (found.empty() && !folder.empty()) found = checker_in(folder);
  }
  if (found.empty())
    fail(ErrorKind::InvalidArgument,
         "an exported model is checked by another process, but the program {} is neither beside this one nor "
         "in "
         "PATH. Add its folder to PATH, or let main() call tutti::run()",
         kChecker);
  return found;
}

void write_request(const std::string& folder, const std::vector<CheckedFunction>& functions,
                   const CheckOptions& options) {
  std::vector<store::NamedTensor> tensors;
  Json all = Json::array();
  for (const auto& [name, outputs, batches] : functions) {
    all.push_back({{"name", name}, {"outputs", outputs}, {"batches", batches.size()}});
    for (size_t i = 0; i < batches.size(); ++i) {
      for (size_t k = 0; k < batches[i].inputs.size(); ++k)
        tensors.push_back({tensor_name(name, i, "input", k), batches[i].inputs[k]});
      for (size_t k = 0; k < batches[i].outputs.size(); ++k)
        tensors.push_back({tensor_name(name, i, "output", k), batches[i].outputs[k]});
    }
  }
  static_cast<void>(store::write_safetensors(file_in(folder, "batches.safetensors"), tensors));
  const Json request = {{"format", options.format},
                        {"functions", all},
                        {"device", options.device.str()},
                        {"threads", options.threads},
                        {"tolerance", options.tolerance},
                        {"asked_by", static_cast<int64_t>(::getpid())},
                        {"same_kernels", kernels::SameKernels::are_in_use()}};
  replace_file(file_in(folder, "request.json"), request.dump());
}

// A process whose output goes to a file. The destructor kills it.
class Checker {
 public:
  Checker(const std::string& program, const std::string& folder, const Environment& environment) {
    std::vector<std::string> variables = {fmt::format("{}={}", kVariable, folder)};
    for (const auto& [name, value] : environment.variables()) variables.push_back(name + "=" + value);
    std::vector<char*> pointers;
    for (std::string& variable : variables) pointers.push_back(variable.data());
    pointers.push_back(nullptr);
    std::string name = program;
    const std::vector<char*> arguments = {name.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string log = file_in(folder, "log");
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT, 0666);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    // This process may have blocked signals in the thread that exports.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    const int error =
        posix_spawn(&pid_, program.c_str(), &actions, &attributes, arguments.data(), pointers.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) fail_errno(error, "starting " + program);
  }
  ~Checker() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  // Waits for the end of the process. Returns how it ended, "" if with the exit code 0.
  std::string wait(std::chrono::milliseconds timeout) {
    constexpr std::chrono::milliseconds kBetweenLooks{5};
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (int status = 0;; std::this_thread::sleep_for(kBetweenLooks)) {
      const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
      if (ended < 0 && errno == EINTR) continue;
      if (ended != 0) {
        pid_ = -1;
        // A program that ignores SIGCHLD never learns how its children end.
        if (ended < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return "";
        if (WIFSIGNALED(status)) return "was ended by " + signal_name(WTERMSIG(status));
        const std::string meaning = meaning_of_exit_code(WEXITSTATUS(status));
        return fmt::format("ended with exit code {}{}", WEXITSTATUS(status),
                           meaning.empty() ? "" : fmt::format(" ({})", meaning));
      }
      if (std::chrono::steady_clock::now() > deadline)
        fail(ErrorKind::Timeout, "the process that checks the exported model has not ended within {:g} s",
             std::chrono::duration<double>(timeout).count());
    }
  }

 private:
  pid_t pid_ = -1;
};

// --- The process that checks

using Mode = LoadedComputation::Mode;

// Values that are no numbers are the same.
bool same_values(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.allclose(b, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
}

// The differences between the predictions of both models.
class Differences {
 public:
  Differences(std::vector<std::string> outputs, double tolerance)
      : outputs_(std::move(outputs)), tolerance_(tolerance) {}

  // `what` names the batch.
  void add(const std::string& what, Mode mode, const std::vector<torch::Tensor>& here,
           const std::vector<torch::Tensor>& trained) {
    if (here.size() != trained.size())
      fail(ErrorKind::InvalidArgument, "{} it has {} outputs instead of {}", what, here.size(),
           trained.size());
    for (size_t i = 0; i < here.size(); ++i) {
      const torch::Tensor found = here[i].cpu();
      if (mode == Mode::Exact) same_bits_ = same_bits_ && same_values(found, trained[i]);
      add(fmt::format("{} the output '{}'", what, outputs_.at(i)), found, trained[i]);
    }
  }

  bool same_bits() const { return same_bits_; }
  double greatest() const { return greatest_; }

 private:
  void add(const std::string& what, const torch::Tensor& here, const torch::Tensor& trained) {
    if (here.sizes() != trained.sizes() || here.scalar_type() != trained.scalar_type())
      fail(ErrorKind::InvalidArgument, "{} is {} instead of {}", what, describe(here), describe(trained));
    if (same_values(here, trained)) return;
    const torch::Tensor a = here.to(torch::kDouble).flatten();
    const torch::Tensor b = trained.to(torch::kDouble).flatten();
    const torch::Tensor are_equal = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
    torch::Tensor difference = ((a - b).abs() / (b.abs() + 1)).masked_fill(are_equal, 0);
    difference = difference.masked_fill(difference.isnan(), INFINITY);
    const auto worst = difference.argmax().item<int64_t>();
    const auto greatest = difference[worst].item<double>();
    greatest_ = std::max(greatest_, greatest);
    const double tolerance = trained.is_floating_point() ? tolerance_ : 0;
    if (greatest <= tolerance) return;
    const int64_t per_example = here.dim() == 0 ? 1 : here.numel() / here.size(0);
    fail(ErrorKind::InvalidArgument,
         "{} of example {} is {:.9g} instead of {:.9g}, which differs by more than the tolerance {:g}", what,
         worst / per_example, a[worst].item<double>(), b[worst].item<double>(), tolerance);
  }

  const std::vector<std::string> outputs_;
  const double tolerance_;
  bool same_bits_ = true;
  double greatest_ = 0;
};

// The model has to have the tensors of weights.safetensors.
void compare_weights(const LoadedComputation& model, const std::string& folder) {
  const store::SafetensorsFile file(folder + "/weights.safetensors");
  const std::vector<store::NamedTensor> tensors = model.tensors();
  for (const auto& [name, tensor] : tensors) {
    if (!file.has(name) || !same_values(file.read(name), tensor.cpu()))
      fail(ErrorKind::DataLoss, "the tensor {} is not the one in weights.safetensors", name);
  }
  const size_t expected = file.tensors().size() - file.tied().size();
  if (tensors.size() != expected)
    fail(ErrorKind::DataLoss, "it has {} tensors, but weights.safetensors has {}", tensors.size(), expected);
}

CheckedFunction read_function(const store::SafetensorsFile& file, const Json& asked) {
  CheckedFunction function{.name = asked.at("name").get<std::string>(),
                           .outputs = asked.at("outputs").get<std::vector<std::string>>()};
  const auto tensors = [&](size_t batch, const char* what) {
    std::vector<torch::Tensor> found;
    for (size_t k = 0; file.has(tensor_name(function.name, batch, what, k)); ++k)
      found.push_back(file.read(tensor_name(function.name, batch, what, k)));
    return found;
  };
  for (size_t i = 0; i < asked.at("batches").get<size_t>(); ++i)
    function.batches.push_back({tensors(i, "input"), tensors(i, "output")});
  return function;
}

// "for a batch of 32 examples", and the shapes of inputs of which the batches have several.
std::string text_of(const CheckedFunction& function, const CheckedBatch& batch) {
  const std::string by = function.name == kDefaultFunction ? "" : fmt::format("{}(): ", function.name);
  if (batch.inputs.empty()) return by + "it fails:";
  std::string shapes;
  for (size_t k = 0; k < batch.inputs.size(); ++k) {
    const torch::Tensor& input = batch.inputs[k];
    const bool is_fixed =
        std::all_of(function.batches.begin(), function.batches.end(), [&](const CheckedBatch& other) {
          return other.inputs[k].sizes().slice(1) == input.sizes().slice(1);
        });
    if (!is_fixed) shapes += (shapes.empty() ? "" : ", ") + describe(input);
  }
  return fmt::format("{}for a batch of {} examples{}", by, batch.inputs[0].size(0),
                     shapes.empty() ? "" : " (" + shapes + ")");
}

// LibTorch optimises a program during its first calls, so each batch is used several times. Those who use the
// model have LibTorch's kernels; the bits are compared with the kernels of the training.
Json compared(LoadedComputation& model, const CheckedFunction& function, const Json& request) {
  const torch::Device device(request.at("device").get<std::string>());
  Differences differences(function.outputs, request.at("tolerance").get<double>());
  for (const Mode mode : {Mode::Exact, Mode::Optimised, Mode::Optimised, Mode::Optimised}) {
    std::optional<kernels::SameKernels> same;
    if (mode == Mode::Exact && request.at("same_kernels").get<bool>()) same.emplace();
    for (const CheckedBatch& batch : function.batches) {
      std::vector<torch::Tensor> here;
      for (const torch::Tensor& input : batch.inputs) here.push_back(input.to(device));
      const std::string what = text_of(function, batch);
      or_fail(ErrorKind::InvalidArgument, what,
              [&] { differences.add(what, mode, model.run(function.name, here, mode), batch.outputs); });
    }
  }
  return {{"same_bits", differences.same_bits()}, {"greatest_difference", differences.greatest()}};
}

Json result_of_check(const std::string& folder) {
  try {
    const Json request = parse_json(read_file(file_in(folder, "request.json")), "request.json");
    // Nobody is left to read the result if the process that asks is killed.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != request.at("asked_by").get<pid_t>()) return {{"error", "nobody asks"}};
    torch::set_num_threads(request.at("threads").get<int>());
    const auto format = export_format(request.at("format").get<std::string>());
    const torch::Device device(request.at("device").get<std::string>());
    const auto model = format->load(folder, device);
    compare_weights(*model, folder);
    const store::SafetensorsFile batches(file_in(folder, "batches.safetensors"));
    Json results = Json::array();
    for (const Json& function : request.at("functions"))
      results.push_back(compared(*model, read_function(batches, function), request));
    return {{"functions", results}};
  } catch (const Error& error) {
    return {{"error", error.what()}, {"kind", static_cast<int>(error.kind())}};
  } catch (const std::exception& error) {
    return {{"error", first_line(error.what())}};
  }
}

}  // namespace

std::vector<CheckResult> check_export(const std::string& folder,
                                      const std::vector<CheckedFunction>& functions,
                                      const CheckOptions& options) {
  const std::string own = fmt::format("{}/{}", folder, kCheckFolder);
  const Environment environment = Environment::of_process();
  const std::string program = options.program.empty() ? find_checker(environment) : options.program;
  make_directories(own);
  write_request(folder, functions, options);
  const std::string end = Checker(program, folder, environment).wait(options.timeout);
  const std::string answer = file_in(folder, "result.json");
  if (!path_exists(answer))
    fail(ErrorKind::InvalidArgument, "the process that checks the exported model ({}) {}: {}", program,
         end.empty() ? "ended without a result" : end, first_line(read_file(file_in(folder, "log"))));
  const Json result = parse_json(read_file(answer), "the result of the check", ErrorKind::DataLoss);
  if (result.contains("error"))
    throw Error(static_cast<ErrorKind>(result.value("kind", static_cast<int>(ErrorKind::InvalidArgument))),
                fmt::format("the exported model is not the trained one: {}", result.value("error", "")));
  fs::remove_all(own);
  std::vector<CheckResult> results;
  for (const Json& each : result.at("functions"))
    results.push_back({each.at("same_bits").get<bool>(), each.at("greatest_difference").get<double>()});
  return results;
}

std::optional<int> answer_export_check(const Environment& environment) {
  const auto folder = environment.get(kVariable);
  if (!folder) return std::nullopt;
  replace_file(file_in(*folder, "result.json"), result_of_check(*folder).dump());
  return 0;
}

}  // namespace tutti
