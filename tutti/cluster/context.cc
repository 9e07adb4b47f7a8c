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

bool stands_alone(const Identity& identity) {
  return identity.membership.world == 1 && !identity.is_evaluator && servers_of(identity.cluster).empty();
}

// Warnings and errors are events of the page, if there is one.
Log make_log(const RunConfig& config, const Identity& identity, const std::shared_ptr<web::Page>& page) {
  Log::Listener listener;
  if (page != nullptr)
    listener = [page](LogLevel level, std::string_view text) {
      if (level >= LogLevel::Warning) page->note(level, text);
    };
  return Log(parse_log_level(config.output.log_level),
             stands_alone(identity) ? "" : identity.task.short_name(), listener);
}

std::shared_ptr<Timeline> make_timeline(const RunConfig& config) {
  if (config.output.timeline.empty()) return nullptr;
  auto timeline = std::make_shared<Timeline>();
  timeline->name_thread("main");
  return timeline;
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

// Returns the config of a task. If it has no secret, it gets the secret of the launcher.
RunConfig checked(RunConfig config, const Identity& identity) {
  if (!config.output.report.empty() && config.output.report == config.output.timeline)
    fail(ErrorKind::InvalidArgument, "--report and --timeline name the same file: {}", config.output.report);
  if (config.security.secret.empty()) config.security.secret = identity.secret;
  return config;
}

// Returns the flags among `values` that a program has added to the standard ones.
FlagValues added_by_program(const FlagValues& values) {
  if (values.empty()) return {};
  const FlagValues standard = values_of(RunConfig());
  FlagValues added;
  std::copy_if(values.begin(), values.end(), std::back_inserter(added), [&](const FlagValue& value) {
    return std::none_of(standard.begin(), standard.end(),
                        [&](const FlagValue& other) { return other.name == value.name; });
  });
  return added;
}

FlagValues all_values(FlagValues program_flags, const RunConfig& config) {
  for (FlagValue& value : values_of(config)) program_flags.push_back(std::move(value));
  return program_flags;
}

// Returns the identity from the environment if this process is one of several tasks, else nullopt.
std::optional<Identity> place_among_others() {
  try {
    Identity found = discover(RunConfig(), Environment::of_process());
    if (found.membership.world > 1 || found.is_evaluator || is_server_job(found.task.job)) return found;
  } catch (const Error&) {
    // Contradictory variables are reported only to callers of discover().
  }
  return std::nullopt;
}

void require_own_place(const Identity& identity) {
  if (identity.source != Identity().source || identity.membership.world != 1) return;
  if (const auto found = place_among_others()) {
    fail(ErrorKind::InvalidArgument,
         "this process is {} in a job of {} workers (found through {}), but its Context was given the "
         "Identity of a single process. Use Context(config), which finds the identity of this process, or "
         "tutti::run(). To run alone on purpose, set Identity::source",
         found->task.short_name(), found->membership.world, found->source);
  }
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

// If the launcher provides no addresses, only the number of the other workers is known.
std::vector<Task> all_workers(const Identity& identity) {
  if (!identity.cluster.empty()) return workers_of(identity.cluster);
  if (identity.membership.world == 1) return {identity.task};
  std::vector<Task> workers;
  for (int rank = 0; rank < identity.membership.world; ++rank)
    workers.push_back({.job = identity.task.job, .index = rank});
  return workers;
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
  std::vector<Task> tasks = all_workers(identity);
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

Context::Context(RunConfig config, Identity identity, const FlagValues& values)
    : config_(checked(std::move(config), identity)),
      program_flags_(added_by_program(values)),
      flag_values_(all_values(program_flags_, config_)),
      identity_(std::move(identity)),
      page_(make_page(config_, identity_)),
      log_(make_log(config_, identity_, page_)),
      timeline_(make_timeline(config_)),
      folders_(std::make_shared<Folders>()),
      device_(device_of(config_, identity_)),
      threads_(threads_of(config_, identity_)) {
  require_own_place(identity_);
  same_kernels_ = tutti::chosen_kernels(config_.compute.kernels, device_, log_);
  if (config_.compute.threads > 0) set_threads(threads_);
  if (config_.compute.inter_op_threads > 0)
    set_inter_op_threads(static_cast<int>(config_.compute.inter_op_threads));
  if (is_chief()) require_writable_report(config_.output.report);
  if (is_chief() && identity_.life == 0) serve_page();
}

Context Context::with(RunConfig config) const {
  Context other = *this;
  other.config_ = checked(std::move(config), identity_);
  other.flag_values_ = all_values(program_flags_, other.config_);
  other.same_kernels_ = tutti::chosen_kernels(other.config_.compute.kernels, device_, log_);
  other.found_ = std::make_shared<FoundKernels>();
  return other;
}

Context Context::with(const Membership& membership) const {
  Context copy = *this;
  copy.identity_.membership = membership;
  copy.identity_.is_chief = membership.rank == 0;
  copy.chief_ = std::make_shared<std::atomic<bool>>(copy.identity_.is_chief);
  return copy;
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

int Context::rank_at(const Task& task) const {
  const std::vector<Task> workers = all_workers(identity_);
  const auto found = std::find(workers.begin(), workers.end(), task);
  if (found == workers.end())
    fail(ErrorKind::InvalidArgument, "{} is not a worker of this job, which has {}", task.short_name(),
         workers.size() == 1 ? fmt::format("one worker, {}", workers.front().short_name())
                             : fmt::format("{} workers, {} to {}", workers.size(),
                                           workers.front().short_name(), workers.back().short_name()));
  return static_cast<int>(found - workers.begin());
}

std::vector<DeviceSpec> Context::devices() const {
  std::vector<Task> tasks = all_workers(identity_);
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

std::string Context::tf_config() const {
  if (cluster().empty() && world() > 1) return "";
  Json config = Json::object();
  if (!cluster().empty()) config["cluster"] = Json::parse(cluster().to_json());
  config["task"] = {{"type", task().job}, {"index", task().index}};
  return config.dump();
}

void Context::require_worker() const {
  if (identity_.is_evaluator) {
    fail(ErrorKind::InvalidArgument,
         "{} is an evaluator, which does not train: the fit() of its Trainer, or its Loop, evaluates the "
         "checkpoints of the training",
         task().short_name());
  }
  if (is_server_job(task().job)) {
    fail(ErrorKind::InvalidArgument,
         "{} is a parameter server, which does not train: call tutti::serve(context) in it, "
         "as tutti::run() does",
         task().short_name());
  }
}

std::vector<std::string> Context::shared_flags() const {
  std::vector<std::string> lines;
  for (const FlagValue& flag : flag_values_) {
    if (flag.scope != FlagScope::Local) lines.push_back(fmt::format("{} {}", flag.name, flag.text));
  }
  return lines;
}

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
