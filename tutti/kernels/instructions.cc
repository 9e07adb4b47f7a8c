#include "tutti/kernels/instructions.h"

#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/instructions.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/base/error.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

bool is_fused() { return HWY_NATIVE_FMA != 0; }

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {
namespace {

HWY_EXPORT(is_fused);

// Highway distinguishes more targets, such as several with AVX-512.
std::string name_of(int64_t target) {
  constexpr std::array<std::pair<std::string_view, const char*>, 4> kNames = {
      {{"AVX3", "avx512"}, {"AVX2", "avx2"}, {"SSE4", "sse4"}, {"NEON", "neon"}}};
  const std::string_view highways = hwy::TargetName(target);
  for (const auto& [begin, name] : kNames) {
    if (highways.starts_with(begin)) return name;
  }
  return "portable";
}

}  // namespace

std::vector<std::string> available_instructions() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    std::string name = name_of(target);
    if (names.empty() || names.back() != name) names.push_back(std::move(name));
  }
  return names;
}

void use_instructions(std::string_view name) {
  int64_t wanted = 0;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name_of(target) == name) wanted |= target;
  }
  if (wanted == 0)
    fail(ErrorKind::InvalidArgument, "this processor does not have the instructions '{}'; it has {}", name,
         fmt::join(available_instructions(), ", "));
  hwy::GetChosenTarget().Update(wanted);
}

bool have_fused_instructions() { return HWY_DYNAMIC_DISPATCH(is_fused)(); }

}  // namespace tutti::kernels
#endif
