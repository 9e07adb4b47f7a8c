// Computes the exact operators (operator_list.h), and sums with factors and series, which are ours, in
// processes that are limited to LibTorch's kernels for other processors, and compares their bits.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/instructions.h"
#include "tutti/kernels/operator_list.h"
#include "tutti/kernels/same_kernels.h"

namespace tutti::kernels::exact_operators_test {
namespace {

namespace F = torch::nn::functional;

// Numbers of many sizes, equal ones, zeros of both signs, and infinities. Results for NaN are not promised.
at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType type, int seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  at::Tensor x = torch::ones(sizes, torch::kDouble);
  for (int i = 0; i < 5; ++i) x.mul_(torch::randn(sizes, torch::kDouble));  // ours and exact
  const at::Tensor choice = torch::randint(0, 40, sizes);
  const double infinity = std::numeric_limits<double>::infinity();
  const double special[] = {0.0, -0.0, 1.0, -1.0, 0.5, infinity, -infinity, 0.3, 1e-40, 3.0};
  for (int i = 0; i < 10; ++i) x.masked_fill_(choice.eq(i), special[i]);
  return x.to(type);
}

// Returns a hash of the bits; any NaN is the same as any other.
uint64_t hash_of(const at::Tensor& tensor) {
  at::Tensor x = tensor.contiguous();
  if (at::isFloatingType(x.scalar_type()))
    x = x.masked_fill(x.isnan(), std::numeric_limits<double>::quiet_NaN());
  uint64_t hash = 14695981039346656037U;
  const auto* const bytes = static_cast<const unsigned char*>(x.data_ptr());
  for (size_t i = 0; i < x.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
  return hash;
}

// Calls the operator with tensors and numbers for its arguments; returns nullopt if it cannot be called so.
std::optional<std::vector<at::Tensor>> called(const c10::OperatorHandle& operation,
                                              const std::vector<at::Tensor>& tensors) {
  torch::jit::Stack stack;
  size_t next_tensor = 0;
  double next_number = 0.3;
  for (const c10::Argument& argument : operation.schema().arguments()) {
    c10::TypePtr type = argument.type();
    const auto optional = type->cast<c10::OptionalType>();
    if (optional) type = optional->getElementType();
    if (type->kind() == c10::TypeKind::TensorType && next_tensor < tensors.size())
      stack.emplace_back(tensors[next_tensor++]);
    else if (type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType)
      stack.emplace_back(std::exchange(next_number, next_number + 0.4));
    else if (argument.default_value().has_value())
      stack.push_back(*argument.default_value());
    else
      return std::nullopt;
  }
  try {
    operation.callBoxed(stack);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& result : stack)
    if (result.isTensor()) results.push_back(result.toTensor());
  return results.empty() ? std::nullopt : std::optional(results);
}

using Hashes = std::map<std::string, uint64_t>;

// Three tensors of one shape, and the text that tells them apart from others.
struct Operands {
  std::string text;
  std::vector<at::Tensor> tensors;
};

std::vector<Operands> all_operands() {
  std::vector<Operands> all;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt}) {
    for (const int64_t count : {67, 33'003}) {  // the second for two threads
      Operands operands = {std::string(" ") + at::toString(type) + " " + std::to_string(count), {}};
      for (int seed = 1; seed <= 3; ++seed) {
        at::Tensor x = numbers({count}, type == at::kInt ? at::kFloat : type, seed);
        if (type == at::kInt) x = x.nan_to_num(0, 9, -9).clamp(-9, 9).to(type);
        operands.tensors.push_back(x);
      }
      all.push_back(operands);
    }
  }
  return all;
}

// Returns the overloads of the listed operators whose arguments may be tensors of one shape.
std::vector<c10::OperatorHandle> elementwise_operators() {
  const std::set<std::string_view> topics = {"one rounding", "choices", "piecewise linear functions",
                                             "comparisons, logic and integers"};
  std::set<std::string_view> names;
  for (const OperatorGroup& group : exact_operators())
    if (topics.contains(group.topic)) names.insert(group.names.begin(), group.names.end());
  std::vector<c10::OperatorHandle> operations;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string_view listed = listed_name(name.name);
    const bool is_new =
        name.name == "aten::" + std::string(listed) && name.overload_name.find("out") == std::string::npos;
    if (!is_new || !names.contains(listed) || listed.starts_with("_assert") || listed == "is_pinned")
      continue;
    const auto found = c10::Dispatcher::singleton().findSchema(name);
    if (found.has_value()) operations.push_back(*found);
  }
  return operations;
}

void compute_elements(Hashes& hashes) {
  const std::vector<Operands> operands = all_operands();
  for (const c10::OperatorHandle& operation : elementwise_operators()) {
    for (const Operands& each : operands) {
      const auto results = called(operation, each.tensors);
      for (size_t i = 0; results.has_value() && i < results->size(); ++i)
        hashes[c10::toString(operation.operator_name()) + each.text + " " + std::to_string(i)] =
            hash_of((*results)[i]);
    }
  }
}

// Hashes a function's results and, if there are any, its gradients.
void add(Hashes& hashes, const std::string& name, const at::Tensor& x,
         const std::function<std::vector<at::Tensor>(const at::Tensor&)>& compute) {
  const at::Tensor leaf = x.detach().clone().set_requires_grad(at::isFloatingType(x.scalar_type()));
  const std::vector<at::Tensor> results = compute(leaf);
  for (size_t i = 0; i < results.size(); ++i)
    hashes[name + " " + std::to_string(i)] = hash_of(results[i].detach());
  if (!results[0].requires_grad()) return;
  torch::manual_seed(4);
  results[0].backward(torch::randn(results[0].sizes(), results[0].options()));
  hashes[name + " gradient"] = hash_of(leaf.grad());
}

void compute_others(Hashes& hashes) {
  const at::Tensor index = torch::randperm(37).remainder(13);
  const at::Tensor labels = torch::arange(23).remainder(19);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const auto named = [&](const std::string& name) { return name + " " + at::toString(type); };
    const at::Tensor rows = numbers({37, 1001}, type, 5).nan_to_num(0, 1, -1);
    const at::Tensor image = numbers({2, 5, 23, 19}, type, 6).nan_to_num(0, 1, -1);
    for (const bool last : {false, true}) {
      const at::Tensor x = last ? image.contiguous(at::MemoryFormat::ChannelsLast) : image;
      const std::string form = named(last ? " channels last" : "");
      add(hashes, "max_pool2d" + form, x, [](const at::Tensor& t) -> std::vector<at::Tensor> {
        const auto [value, at] = torch::max_pool2d_with_indices(t, {3, 2}, {2, 1}, 1);
        return {value, at};
      });
      add(hashes, "adaptive_max_pool2d" + form, x, [](const at::Tensor& t) -> std::vector<at::Tensor> {
        return {std::get<0>(torch::adaptive_max_pool2d(t, {7, 5}))};
      });
      add(hashes, "upsample_nearest2d" + form, x.detach(),
          [](const at::Tensor& t) -> std::vector<at::Tensor> {
            return {at::_ops::upsample_nearest2d::call(t.detach(), {31, 40}, {}, {}),
                    at::_ops::_upsample_nearest_exact2d::call(t.detach(), {31, 40}, {}, {})};
          });
      add(hashes, "channel_shuffle" + form, x, [](const at::Tensor& t) -> std::vector<at::Tensor> {
        return {torch::channel_shuffle(t, 5), torch::pixel_unshuffle(t.slice(2, 0, 22).slice(3, 0, 18), 2)};
      });
    }
    add(hashes, named("pad"), image.detach(), [](const at::Tensor& t) -> std::vector<at::Tensor> {
      return {torch::reflection_pad2d(t.detach(), {2, 1, 3, 2}),
              torch::replication_pad2d(t, {2, 1, 3, 2}).detach(),
              torch::constant_pad_nd(t, {1, 2}, 0.5).detach()};
    });
    add(hashes, named("index"), rows, [&](const at::Tensor& t) -> std::vector<at::Tensor> {
      return {t.index_select(0, torch::randperm(37)),
              t.detach().index({index}),
              t.detach().gather(0, index.unsqueeze(1)),
              t.detach().flip({1}),
              t.detach().roll({5}, {1}),
              t.detach().masked_fill(t.gt(0.5), 2),
              t.detach().tril()};
    });
    add(hashes, named("sort"), rows, [](const at::Tensor& t) -> std::vector<at::Tensor> {
      const auto [values, order] = t.sort(/*stable=*/true, 1);
      const auto [largest, at] = t.detach().topk(9, 1);
      return {values, order, largest, at, t.argmax(1), t.argmin(), std::get<0>(torch::_unique2(t.detach()))};
    });
    add(hashes, named("median"), rows, [](const at::Tensor& t) -> std::vector<at::Tensor> {
      return {t.median(), std::get<0>(t.detach().kthvalue(3, 1)), std::get<1>(t.detach().mode(1))};
    });
    add(hashes, named("losses"), rows, [&](const at::Tensor& t) -> std::vector<at::Tensor> {
      const at::Tensor x = t.detach();
      const at::Tensor other = x.roll({3}, {1});
      return {at::mse_loss(t, other, at::Reduction::None),
              at::smooth_l1_loss(x, other, at::Reduction::None, 0.3),
              at::huber_loss(x, other, at::Reduction::None, 0.3),
              at::mse_loss_backward(other, x, other.add(1), at::Reduction::Mean)};
    });
    add(hashes, named("nll_loss"), rows.slice(0, 0, 23), [&](const at::Tensor& t) -> std::vector<at::Tensor> {
      return {torch::nll_loss(t, labels, {}, at::Reduction::None)};
    });
    add(hashes, named("sums with factors"), rows, [](const at::Tensor& t) -> std::vector<at::Tensor> {
      const at::Tensor other = t.detach().roll({3}, {1});
      return {t.add(other, 0.3), t.detach().sub(other, 1.7), t.detach().add(0.3, 0.7),
              t.detach().clone().add_(other, -0.1)};
    });
    add(hashes, named("series"), rows, [&](const at::Tensor& t) -> std::vector<at::Tensor> {
      return {torch::arange(0.1, 70'000.7, 0.7, t.options()), torch::linspace(-0.3, 17, 70'001, t.options())};
    });
    add(hashes, named("dropout"), rows, [](const at::Tensor& t) -> std::vector<at::Tensor> {
      torch::manual_seed(1);
      return {torch::dropout(t, 0.3, true), std::get<0>(torch::native_dropout(t.detach(), 0.3, true)),
              torch::multinomial(t.detach().abs(), 50), torch::multinomial(t.detach().abs(), 50, true)};
    });
  }
}

// Run by the next test, in processes of its own.
TEST(ExactOperators, DISABLED_print_their_hashes) {
  const SameKernels same;
  Hashes hashes;
  compute_elements(hashes);
  compute_others(hashes);
  for (const auto& [name, hash] : hashes)
    std::printf("hash of %s: %016llx\n", name.c_str(), static_cast<unsigned long long>(hash));
}

Hashes hashes_with(const std::string& environment) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = environment + " '" + program +
                              "' --gtest_also_run_disabled_tests "
                              "--gtest_filter=ExactOperators.DISABLED_print_their_hashes 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  if (pipe == nullptr) return {};
  Hashes hashes;
  std::string output;
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    const std::string text = line;
    const size_t end = text.rfind(": ");
    if (text.starts_with("hash of ") && end != std::string::npos)
      hashes[text.substr(8, end - 8)] = std::stoull(text.substr(end + 2), nullptr, 16);
    else
      output += text;
  }
  EXPECT_EQ(::pclose(pipe), 0) << output;
  return hashes;
}

// LibTorch does not ask whether the processor has the instructions that the variable names.
TEST(ExactOperators, have_the_same_bits_with_the_kernels_for_other_processors) {
  const Hashes plain = hashes_with("ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1");
  EXPECT_GT(plain.size(), 900U);
  for (const std::string& instructions : available_instructions()) {
    if (!instructions.starts_with("avx")) continue;
    const std::string environment =
        fmt::format("ATEN_CPU_CAPABILITY={} OMP_NUM_THREADS={} OMP_WAIT_POLICY=passive", instructions,
                    instructions == "avx2" ? 3 : 2);
    SCOPED_TRACE(environment);
    for (const auto& [name, hash] : hashes_with(environment)) {
      const auto found = plain.find(name);
      ASSERT_NE(found, plain.end()) << name;
      EXPECT_EQ(found->second, hash) << name;
    }
  }
}

}  // namespace
}  // namespace tutti::kernels::exact_operators_test
