#include "tutti/cluster/device_spec.h"

#include <algorithm>
#include <cctype>
#include <sched.h>
#include <string>
#include <thread>
#include <vector>

#include <climits>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

bool is_identifier(std::string_view text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

std::string upper(std::string_view text) {
  std::string raised(text);
  std::transform(raised.begin(), raised.end(), raised.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return raised;
}

// Parses the parts between the slashes into a spec.
class Parser {
 public:
  explicit Parser(std::string_view whole) : whole_(whole) {}

  DeviceSpec parse() {
    if (whole_.empty() || whole_ == "/") return spec_;
    if (whole_[0] != '/') {
      fail(ErrorKind::InvalidArgument,
           "device '{}' does not begin with '/', as '/job:worker/task:0' and '/gpu:0' do", whole_);
    }
    for (const std::string& piece : split(whole_.substr(1), '/')) read(piece);
    return spec_;
  }

 private:
  void read(const std::string& piece) {
    const std::vector<std::string> parts = split(piece, ':');
    const std::string& key = parts[0];
    if (key == "job" || key == "replica" || key == "task") {
      if (parts.size() != 2) bad(piece, "is not NAME:VALUE");
      read_field(piece, key, parts[1]);
    } else if (key == "device") {
      if (parts.size() < 2 || parts.size() > 3) bad(piece, "is not device:TYPE:INDEX");
      read_device(piece, parts[1], parts.size() == 3 ? parts[2] : "*");
    } else if (upper(key) == "CPU" || upper(key) == "GPU") {
      if (parts.size() > 2) bad(piece, "is not TYPE:INDEX");
      read_device(piece, key, parts.size() == 2 ? parts[1] : "*");
    } else {
      static const std::vector<std::string> kKnown = {"job", "replica", "task", "device", "cpu", "gpu"};
      bad(piece, "is not a known field (" + fmt::format("{}", fmt::join(kKnown, ", ")) + ")" +
                     did_you_mean(key, kKnown));
    }
  }

  void read_field(const std::string& piece, const std::string& key, const std::string& value) {
    take_once(piece, key);
    if (key == "job") {
      if (value != "*" && !is_identifier(value)) bad(piece, "is not a job name");
      if (value != "*") spec_.job = value;
    } else {
      (key == "task" ? spec_.task : spec_.replica) = read_index(piece, value);
    }
  }

  void read_device(const std::string& piece, const std::string& type, const std::string& index) {
    take_once(piece, "device");
    if (type != "*" && !is_identifier(type)) bad(piece, "has no device type");
    if (type != "*") spec_.device_type = upper(type);
    spec_.device_index = read_index(piece, index);
  }

  std::optional<int> read_index(const std::string& piece, const std::string& text) {
    if (text == "*") return std::nullopt;
    const auto number = parse_int(text);
    if (!number || *number < 0 || *number > INT_MAX) bad(piece, "needs a number or '*' after its last ':'");
    return static_cast<int>(*number);
  }

  void take_once(const std::string& piece, const std::string& field) {
    if (std::find(seen_.begin(), seen_.end(), field) != seen_.end())
      bad(piece, "gives the " + field + " a second time");
    seen_.push_back(field);
  }

  [[noreturn]] void bad(const std::string& piece, const std::string& why) const {
    fail(ErrorKind::InvalidArgument, "device '{}': '{}' {}", whole_, piece, why);
  }

  std::string_view whole_;
  DeviceSpec spec_;
  std::vector<std::string> seen_;
};

template <class Value>
bool agree(const std::optional<Value>& a, const std::optional<Value>& b) {
  return !a || !b || *a == *b;
}

template <class Value>
bool covers(const std::optional<Value>& pattern, const std::optional<Value>& value) {
  return !pattern || pattern == value;
}

template <class Value>
void override_with(std::optional<Value>& field, const std::optional<Value>& inner) {
  if (inner) field = inner;
}

// Parses "cuda:1" and "gpu", or a DeviceSpec.
DeviceSpec read_device(std::string_view asked) {
  if (asked.starts_with('/')) return DeviceSpec::parse(asked);
  const auto colon = asked.find(':');
  const std::string_view kind = asked.substr(0, colon);
  const std::string_view index = colon == std::string_view::npos ? "" : asked.substr(colon);
  if (kind != "cpu" && kind != "gpu" && kind != "cuda") {
    const std::vector<std::string> known = {"auto", "cpu", "cuda", "gpu"};
    fail(ErrorKind::InvalidArgument, "--device '{}': expected auto, cpu, cuda, cuda:N or /gpu:N{}", asked,
         did_you_mean(kind, known));
  }
  return DeviceSpec::parse("/" + std::string(kind == "cpu" ? "cpu" : "gpu") + std::string(index));
}

c10::Device gpu(int index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

c10::Device choose_gpu(std::string_view asked, std::optional<int> index, int local_rank, int gpus) {
  if (gpus == 0) {
    fail(ErrorKind::InvalidArgument,
         "--device '{}': LibTorch finds no GPU here. Use --device cpu or auto; if there is a GPU, check its "
         "driver, CUDA_VISIBLE_DEVICES, and whether this LibTorch was built with CUDA (`tutti doctor` shows "
         "it)",
         asked);
  }
  if (index && *index >= gpus) {
    fail(ErrorKind::InvalidArgument, "--device '{}': there {} here, numbered from 0", asked,
         gpus == 1 ? "is 1 GPU" : fmt::format("are {} GPUs", gpus));
  }
  return gpu(index.value_or(local_rank % gpus));
}

}  // namespace

DeviceSpec DeviceSpec::parse(std::string_view text) { return Parser(text).parse(); }

std::string DeviceSpec::to_string() const {
  std::string text;
  if (job) text += "/job:" + *job;
  if (replica) text += fmt::format("/replica:{}", *replica);
  if (task) text += fmt::format("/task:{}", *task);
  if (device_type || device_index) {
    text += fmt::format("/device:{}:{}", device_type.value_or("*"),
                        device_index ? std::to_string(*device_index) : "*");
  }
  return text.empty() ? "/" : text;
}

DeviceSpec merge(const DeviceSpec& outer, const DeviceSpec& inner) {
  DeviceSpec merged = outer;
  override_with(merged.job, inner.job);
  override_with(merged.replica, inner.replica);
  override_with(merged.task, inner.task);
  if (!agree(outer.device_type, inner.device_type)) merged.device_index.reset();
  override_with(merged.device_type, inner.device_type);
  override_with(merged.device_index, inner.device_index);
  return merged;
}

bool matches(const DeviceSpec& pattern, const DeviceSpec& device) {
  return covers(pattern.job, device.job) && covers(pattern.replica, device.replica) &&
         covers(pattern.task, device.task) && covers(pattern.device_type, device.device_type) &&
         covers(pattern.device_index, device.device_index);
}

bool is_compatible(const DeviceSpec& a, const DeviceSpec& b) {
  return agree(a.job, b.job) && agree(a.replica, b.replica) && agree(a.task, b.task) &&
         agree(a.device_type, b.device_type) && agree(a.device_index, b.device_index);
}

c10::Device choose_device(std::string_view asked, int local_rank, int gpus) {
  if (asked == "auto") return gpus > 0 ? gpu(local_rank % gpus) : c10::Device(c10::DeviceType::CPU);
  const DeviceSpec spec = read_device(asked);
  if (spec.job || spec.task || spec.replica) {
    fail(ErrorKind::InvalidArgument,
         "--device '{}' names a task, but must name a device of this task, such as /gpu:0", asked);
  }
  const std::string type = spec.device_type.value_or("");
  if (type == "CPU") {
    if (spec.device_index.value_or(0) != 0) {
      fail(ErrorKind::InvalidArgument,
           "--device '{}': there is only one CPU device, /cpu:0, which has all cores", asked);
    }
    return {c10::DeviceType::CPU};
  }
  if (type == "GPU" || type == "CUDA") return choose_gpu(asked, spec.device_index, local_rank, gpus);
  fail(ErrorKind::InvalidArgument, "--device '{}' has a type that Tutti does not support: use CPU or GPU",
       asked);
}

int count_gpus() { return torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0; }

}  // namespace tutti
