#include "tools/launch/gpus.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr const char* kCuda = "CUDA_VISIBLE_DEVICES";
constexpr const char* kContainer = "NVIDIA_VISIBLE_DEVICES";

bool is_digit(unsigned char byte) { return std::isdigit(byte) != 0; }

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

// Returns true for the UUID of a GPU or a MIG instance, which is valid inside a container too.
bool is_uuid(std::string_view text) { return text.starts_with("GPU-") || text.starts_with("MIG-"); }

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Counts device nodes, since the driver's folder in /proc also lists GPUs that a container may not use.
size_t count_devices(const std::filesystem::path& root) {
  std::error_code error;
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root / "dev", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia") && is_number(std::string_view(name).substr(6))) ++count;
  }
  return count;
}

std::vector<std::string> first_indices(size_t count) {
  std::vector<std::string> indices;
  for (size_t index = 0; index < count; ++index) indices.push_back(std::to_string(index));
  return indices;
}

// Returns an entry of CUDA's list in its simplest form: "2" for " 02", since CUDA reads only leading digits.
// Returns nullopt if the entry is known not to be a GPU of this machine (`devices` 0: not known).
std::optional<std::string> cuda_entry(std::string_view entry, size_t devices) {
  if (is_uuid(entry)) return std::string(entry);
  const auto end = std::find_if_not(entry.begin(), entry.end(), is_digit);
  const auto index = parse_int(std::string_view(entry.data(), static_cast<size_t>(end - entry.begin())));
  if (!index || (devices > 0 && static_cast<size_t>(*index) >= devices)) return std::nullopt;
  return std::to_string(*index);
}

std::vector<std::string> cuda_list(const std::string& text, size_t devices) {
  std::vector<std::string> gpus;
  for (const std::string& piece : split(text, ',')) {
    const auto gpu = cuda_entry(trimmed(piece), devices);
    // All entries must be of the same kind as the first: index or UUID.
    if (!gpu || (!gpus.empty() && is_uuid(*gpu) != is_uuid(gpus.front()))) break;
    if (std::find(gpus.begin(), gpus.end(), *gpu) != gpus.end()) {
      fail(ErrorKind::InvalidArgument,
           "{}='{}' names GPU '{}' twice, which makes CUDA hide all GPUs; name each GPU once, and use -n to "
           "start more workers than GPUs",
           kCuda, text, *gpu);
    }
    gpus.push_back(*gpu);
  }
  return gpus;
}

// Returns nullopt if the device files in /dev decide: for "void", which turns the container runtime off (CDI
// has then provided the devices), and for texts that only the runtime understands.
std::optional<std::vector<std::string>> container_list(const std::string& text) {
  if (text == "none") return std::vector<std::string>();
  std::vector<std::string> given;
  for (const std::string& piece : split(text, ',')) {
    const std::string entry(trimmed(piece));
    if (!is_number(entry) && !is_uuid(entry)) return std::nullopt;
    if (std::find(given.begin(), given.end(), entry) == given.end()) given.push_back(entry);
  }
  const bool uuids = std::all_of(given.begin(), given.end(), is_uuid);
  return uuids ? given : first_indices(given.size());
}

// Returns true if there are GPUs without /dev/nvidia0: under WSL, or on a Tegra.
bool has_other_gpus(const std::filesystem::path& root) {
  std::error_code ignored;
  return std::filesystem::exists(root / "dev/dxg", ignored) ||
         std::filesystem::exists(root / "dev/nvhost-gpu", ignored) ||
         std::filesystem::exists(root / "dev/nvgpu", ignored);
}

}  // namespace

std::vector<std::string> visible_gpus(const Environment& environment, const std::filesystem::path& root) {
  const size_t devices = count_devices(root);
  if (const auto text = environment.get(kCuda)) return cuda_list(*text, devices);
  if (const auto text = environment.get(kContainer)) {
    if (const auto given = container_list(*text)) return *given;
  }
  return first_indices(devices);
}

void warn_of_missing_gpus(const std::vector<std::string>& gpus, const Log& log,
                          const std::filesystem::path& root) {
  if (gpus.empty() || count_devices(root) > 0 || has_other_gpus(root)) return;
  log.warning(
      "{} or {} names {} GPU{}, but this machine shows none (there is no /dev/nvidia0). Without GPUs, the "
      "programs train on CPUs: unset the variable, and give -n to start several",
      kCuda, kContainer, gpus.size(), gpus.size() == 1 ? "" : "s");
}

}  // namespace tutti
