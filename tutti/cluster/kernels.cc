#include "tutti/cluster/kernels.h"

#include <array>
#include <cstdint>
#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/nn/functional.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include "tutti/base/environment.h"
#include "tutti/base/hashes.h"
#include "tutti/kernels/same_kernels.h"

namespace tutti {
namespace {

// The variables by which oneDNN and MKL are told to use other kernels. LibTorch's own ATEN_CPU_CAPABILITY and
// OPENBLAS_CORETYPE show in what these libraries say of themselves.
constexpr std::array kVariables = {
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",        "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE",
    "MKL_CBWR",           "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE"};

// Returns the text after `name` in a line of LibTorch's description of itself; "?" if it has no such line.
std::string configured(std::string_view name) {
  const std::string config = at::show_config();
  const size_t at = config.find(name);
  if (at == std::string::npos) return "?";
  const size_t begin = at + name.size();
  return config.substr(begin, config.find('\n', begin) - begin);
}

std::string cpu_libraries() {
  if (kernels::SameKernels::are_in_use())
    return fmt::format("Tutti's kernels {}", kernels::SameKernels::kVersion);
  std::string text = fmt::format("LibTorch {} with {}", TORCH_VERSION, configured("CPU capability usage: "));
  const auto core = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  if (core != nullptr) text += fmt::format(", OpenBLAS for {}", core());
  const Environment environment = Environment::of_process();
  for (const char* name : kVariables) {
    if (const auto value = environment.get(name)) text += fmt::format(", {}={}", name, *value);
  }
  return text;
}

// Asks the driver, because LibTorch's headers without CUDA do not tell the kind of a GPU.
std::string gpu_name(int index) {
  constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  constexpr int kMinor = 76;
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return "a GPU";
  const auto find_device = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto find_name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  const auto attribute = reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  std::array<char, 256> name{};
  int device = 0;
  int major = 0;
  int minor = 0;
  const bool found = find_device != nullptr && find_name != nullptr && attribute != nullptr &&
                     find_device(&device, index) == 0 &&
                     find_name(name.data(), static_cast<int>(name.size()) - 1, device) == 0 &&
                     attribute(&major, kMajor, device) == 0 && attribute(&minor, kMinor, device) == 0;
  dlclose(driver);
  return found ? fmt::format("{} (compute capability {}.{})", name.data(), major, minor) : "a GPU";
}

std::string gpu_libraries(c10::Device device) {
  return fmt::format("LibTorch {} with CUDA {} and cuDNN {}{} on {}", TORCH_VERSION,
                     configured("CUDA Runtime "), configured("CuDNN "),
                     at::globalContext().deterministicCuDNN() ? " in a fixed order" : "",
                     gpu_name(device.has_index() ? device.index() : 0));
}

// Returns numbers between -1 and 1 that are the same everywhere, without LibTorch's generators and kernels.
torch::Tensor numbers(std::vector<int64_t> sizes, uint32_t seed) {
  constexpr float kToOne = 1.0F / 2147483648.0F;
  torch::Tensor tensor = torch::empty(sizes, torch::TensorOptions().dtype(torch::kFloat).device(torch::kCPU));
  auto* values = static_cast<float*>(tensor.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    seed = seed * 1664525U + 1013904223U;
    values[i] = static_cast<float>(static_cast<int32_t>(seed)) * kToOne;
  }
  return tensor;
}

torch::Tensor weights(std::vector<int64_t> sizes, uint32_t seed) {
  return numbers(std::move(sizes), seed).requires_grad_(true);
}

std::string hash_of(const std::vector<torch::Tensor>& results) {
  std::string bytes;
  for (const torch::Tensor& result : results) {
    const torch::Tensor values = result.detach().to(torch::kFloat).contiguous();
    bytes.append(static_cast<const char*>(values.data_ptr()), values.nbytes());
  }
  return fmt::format("{:016x}", xxh64(bytes));
}

// The elements are too few for several threads. Their number is odd, so that kernels that process several at
// once leave some over.
std::vector<torch::Tensor> updated_numbers() {
  constexpr int64_t kElements = 1003;
  const torch::NoGradGuard no_grad;
  const torch::Tensor gradient = numbers({kElements}, 1);
  const torch::Tensor average = numbers({kElements}, 2).mul_(0.9).add_(gradient, 0.1);
  const torch::Tensor squares =
      numbers({kElements}, 3).abs_().mul_(0.999).addcmul_(gradient, gradient, 0.001);
  const torch::Tensor scale = squares.sqrt().div_(0.3).add_(1e-8);
  const torch::Tensor updated = numbers({kElements}, 4).addcdiv_(average, scale, -0.01);
  return {average, squares, updated, updated.lerp(gradient, 0.1), squares.pow(0.75)};
}

// In these shapes the kernels of the instruction sets differ in the order of their additions.
std::vector<torch::Tensor> computed_numbers(std::string_view precision) {
  namespace F = torch::nn::functional;
  const torch::AutoGradMode with_gradients(true);
  const torch::Tensor input = weights({61, 203}, 5);
  const torch::Tensor matrix = weights({203, 47}, 6);
  const torch::Tensor bias = weights({47}, 7);
  const torch::Tensor hidden = F::gelu(torch::addmm(bias, input, matrix));
  const torch::Tensor logarithms =
      torch::log_softmax(F::layer_norm(hidden, F::LayerNormFuncOptions({47})), 1);
  const torch::Tensor images = weights({3, 5, 13, 13}, 8);
  const torch::Tensor kernels = weights({10, 5, 5, 5}, 9);
  const torch::Tensor convolved = F::conv2d(images, kernels, F::Conv2dFuncOptions().stride(1).padding(2));
  const torch::Tensor total = logarithms.sum() + convolved.tanh().mul(convolved.exp()).norm();
  total.backward();
  std::vector<torch::Tensor> all = {total,         logarithms,  convolved,     input.grad(),
                                    matrix.grad(), bias.grad(), images.grad(), kernels.grad()};
  if (precision == "bf16") {
    const torch::NoGradGuard no_grad;
    all.push_back(torch::mm(input.to(torch::kBFloat16), matrix.to(torch::kBFloat16)));
    all.push_back(F::conv2d(images.to(torch::kBFloat16), kernels.to(torch::kBFloat16)));
  }
  return all;
}

}  // namespace

std::vector<std::string> Kernels::lines_of_updates() const {
  if (!on_cpu()) return {};
  return {libraries, fmt::format("updates {}", updates)};
}

std::vector<std::string> Kernels::lines() const {
  if (!on_cpu()) return {libraries};
  std::vector<std::string> all = lines_of_updates();
  if (threads > 0) all.push_back(fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"));
  all.push_back(fmt::format("results {}", results));
  return all;
}

std::vector<std::string> find_lines_of_updates() {
  const Kernels found{
      .libraries = cpu_libraries(), .updates = hash_of(updated_numbers()), .threads = 1, .results = ""};
  return found.lines_of_updates();
}

Kernels find_kernels(c10::Device device, int threads, std::string_view precision) {
  if (!device.is_cpu())
    return {.libraries = gpu_libraries(device), .updates = "", .threads = threads, .results = ""};
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const std::vector<torch::Tensor> updates = updated_numbers();
  std::vector<torch::Tensor> results = computed_numbers(precision);
  results.insert(results.end(), updates.begin(), updates.end());
  return {.libraries = cpu_libraries(),
          .updates = hash_of(updates),
          .threads = kernels::SameKernels::are_in_use() ? 0 : threads,
          .results = hash_of(results)};
}

}  // namespace tutti
