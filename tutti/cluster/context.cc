#include "tutti/cluster/context.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/cores.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/net.h"
#include "tutti/base/this_host.h"
#include "tutti/cluster/chosen_kernels.h"
#include "tutti/cluster/device_spec.h"
#include "tutti/cluster/roles.h"
#include "tutti/cluster/threads.h"
#include "tutti/web/page.h"

namespace tutti {
namespace {

// Warnings and errors are events of the page, if there is one.
Log::Listener listener_of(const std::shared_ptr<web::Page>& page) {
  if (page == nullptr) return {};
  return [page](LogLevel level, std::string_view text) {
    if (level >= LogLevel::Warning) page->note(level, text);
  };
}

// A server sends its part from host memory, so it uses a GPU only if --device asks for one and there is one:
// `tutti run` gives servers the flags of the workers, but shows them no GPU.
c10::Device device_of(const RunConfig& config, const Identity& identity) {
  const c10::Device cpu(c10::DeviceType::CPU);
  const std::string& asked = config.compute.device;
  if (asked == "cpu") return cpu;
  const int local_rank = identity.membership.local_rank;
  const bool is_server = is_server_job(identity.task.job);
  if (is_server && asked == "auto") return cpu;
  const int gpus = count_gpus();
  if (!is_server || gpus > 0) return choose_device(asked, local_rank, gpus);
  constexpr int kAny = std::numeric_limits<c10::DeviceIndex>::max();
  static_cast<void>(choose_device(asked, local_rank, kAny));  // throws if it is no device
  return cpu;
}

int threads_of(const RunConfig& config, const Identity& identity) {
  if (config.compute.threads < 0 || config.compute.threads > std::numeric_limits<int>::max()) {
    fail(ErrorKind::InvalidArgument, "--threads {} is not a valid number of threads", config.compute.threads);
  }
  if (config.compute.threads > 0) return static_cast<int>(config.compute.threads);
  return share_of_cores(identity.membership.local_world);
}

DeviceSpec spec_of(const Task& task) {
  DeviceSpec spec;
  spec.job = task.job;
  spec.replica = 0;
  spec.task = task.index;
  return spec;
}

DeviceSpec spec_of(const Task& task, c10::Device device) {
  DeviceSpec spec = spec_of(task);
  spec.device_type = device.is_cpu() ? "CPU" : "GPU";
  spec.device_index = device.has_index() ? device.index() : 0;
  return spec;
}

// Returns the device as far as this task can know it.
DeviceSpec device_of_task(const Task& task, const RunConfig& config, const Identity& identity,
                          c10::Device own) {
  const bool is_given = config.compute.device != "auto";
  const bool is_cpu = config.compute.device == "cpu" || (own.is_cpu() && !is_server_job(identity.task.job));
  if (is_server_job(task.job) || (is_given && is_cpu)) return spec_of(task, c10::DeviceType::CPU);
  const bool sees_no_gpu = is_given && own.is_cpu();  // a server, which cannot know the numbers of the GPUs
  if (!sees_no_gpu && !identity.cluster.empty() && is_on_same_host(identity.cluster, task, identity.task)) {
    const Membership membership = identity_in(identity.cluster, task, identity.source).membership;
    return spec_of(task, choose_device(config.compute.device, membership.local_rank, count_gpus()));
  }
  DeviceSpec spec = spec_of(task);
  if (is_given) spec.device_type = "GPU";
  return spec;
}

// Returns the page of --web, which a task that trains may have to serve; null without the flag.
std::shared_ptr<web::Page> make_page(const RunConfig& config, const Identity& identity) {
  if (config.output.web.empty()) return nullptr;
  web::Status status{.task = identity.task.short_name(),
                     .host = host_name(),
                     .device = device_of(config, identity).str(),
                     .timeout = config.network.timeout,
                     .started = web::Moment::now()};
  std::vector<Task> tasks = workers_of(identity);
  for (const Task& server : servers_of(identity.cluster)) tasks.push_back(server);
  for (const Task& task : tasks)
    status.tasks.push_back(identity.cluster.empty() ? task.short_name()
                                                    : name_with_address(identity.cluster, task));
  return std::make_shared<web::Page>(std::move(status));
}

// Two paths to one existing folder are the same, also through a link.
std::string normal_path(const std::string& path) {
  std::error_code error;
  std::filesystem::path canonical = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
  if (error) canonical = std::filesystem::absolute(path).lexically_normal();
  std::string normal = canonical.string();
  if (normal.ends_with('/')) normal.pop_back();
  return normal;
}

// Makes the report's folder. Fails at the start, and not after hours of training, if the path cannot be
// written.
void require_writable_report(const std::string& path) {
  if (path.empty()) return;
  try {
    make_folder_for(path);
    require_replaceable(path);
  } catch (const Error& error) {
    fail(error.kind(), "--report: {}", error.what());
  }
}

}  // namespace

// The folders that trainings of this program use, by their normal paths.
struct Context::Folders {
  std::mutex mutex;
  // Guarded by mutex.
  std::set<std::string> claimed;
  std::map<std::string, std::shared_ptr<store::EventStream>> events;
};

Context::Context(const RunConfig& config, const FlagValues& values)
    : Context(config, discover(config, Environment::of_process()), values) {
  set_threads(threads_);
}

Context::Context(const RunConfig& config, const Identity& identity, const FlagValues& values)
    : Context(config, identity, values, make_page(config, identity)) {}

Context::Context(const RunConfig& config, const Identity& identity, const FlagValues& values,
                 const std::shared_ptr<web::Page>& page)
    : TaskContext(config, identity, values, listener_of(page)),
      page_(page),
      folders_(std::make_shared<Folders>()),
      device_(device_of(config_, identity_)),
      threads_(threads_of(config_, identity_)) {
  same_kernels_ = tutti::chosen_kernels(config_.compute.kernels, device_, log_);
  if (config_.compute.threads > 0) set_threads(threads_);
  if (config_.compute.inter_op_threads > 0)
    set_inter_op_threads(static_cast<int>(config_.compute.inter_op_threads));
  if (is_chief()) require_writable_report(config_.output.report);
  if (is_chief() && identity_.life == 0) serve_page();
}

Context Context::with(RunConfig config) const {
  Context other = *this;
  other.set_config(std::move(config));
  other.same_kernels_ = tutti::chosen_kernels(other.config_.compute.kernels, device_, log_);
  other.found_ = std::make_shared<FoundKernels>();
  return other;
}

void Context::serve_page() const {
  if (page_ == nullptr || !page_->address().empty()) return;
  const Address address = parse_page_address(config_.output.web);
  const bool is_local = address.host == "localhost" || is_loopback(address.host);
  // Nobody knows the secret that a launcher has made.
  const bool is_known = config_.security.secret != identity_.secret;
  const std::string secret = is_known && !is_local ? config_.security.secret : "";
  if (!is_local && secret.empty() && !config_.security.insecure)
    fail(ErrorKind::InvalidArgument,
         "--web {}: other machines could read the page without a secret. Set the variable TUTTI_SECRET, for "
         "example to what `openssl rand -hex 16` prints, or give --insecure if you trust the network",
         config_.output.web);
  try {
    page_->serve(address.host, address.port, {.secret = secret, .local = is_local});
    log_.info("this run has a page at http://{}/{}", page_->address(),
              secret.empty() ? "" : "?secret=..., with the secret of the job");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Overloaded) throw;
    log_.warning("--web: this run has no page: {}", error.what());
  }
}

std::string_view Context::chosen_kernels() const {
  if (same_kernels_ == nullptr) return "libtorch";
  return config_.compute.kernels == "strict" ? "strict" : "same";
}

const Kernels& Context::kernels() const {
  std::call_once(found_->once,
                 [this] { found_->kernels = find_kernels(device_, threads_, config_.compute.precision); });
  return found_->kernels;
}

std::vector<DeviceSpec> Context::devices() const {
  std::vector<Task> tasks = workers_of(identity_);
  for (const Task& server : servers_of(identity_.cluster)) tasks.push_back(server);
  std::vector<DeviceSpec> devices;
  for (const Task& task : tasks)
    devices.push_back(task == identity_.task ? spec_of(task, device_)
                                             : device_of_task(task, config_, identity_, device_));
  return devices;
}

std::vector<DeviceSpec> Context::local_devices() const {
  std::vector<DeviceSpec> devices = {spec_of(task(), c10::DeviceType::CPU)};
  for (int gpu = 0; gpu < num_gpus(); ++gpu)
    devices.push_back(spec_of(task(), {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpu)}));
  return devices;
}

int Context::num_gpus() const { return count_gpus(); }

bool Context::claim_folder(const std::string& path) const {
  const std::lock_guard lock(folders_->mutex);
  return folders_->claimed.insert(normal_path(path)).second;
}

void Context::release_folder(const std::string& path) const {
  const std::lock_guard lock(folders_->mutex);
  folders_->claimed.erase(normal_path(path));
}

std::shared_ptr<store::EventStream> Context::event_stream(const std::string& path) const {
  const std::lock_guard lock(folders_->mutex);
  std::shared_ptr<store::EventStream>& stream = folders_->events[normal_path(path)];
  if (!stream) stream = std::make_shared<store::EventStream>(is_chief() ? path : "");
  return stream;
}

store::Events Context::events() const {
  const std::string& logdir = config_.checkpoints.logdir;
  return logdir.empty() ? store::Events() : store::Events(event_stream(logdir));
}

}  // namespace tutti
