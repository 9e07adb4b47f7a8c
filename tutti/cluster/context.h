#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "tutti/base/environment.h"
#include "tutti/cluster/device_spec.h"
#include "tutti/cluster/kernels.h"
#include "tutti/cluster/task_context.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/store/event_file.h"

namespace tutti {
namespace web {
class Page;
}

// The identity of this process, its device and its configuration. Made once in main() and passed on, never
// global. A value: copies share the log, the timeline, the event files and the claimed folders. Thread-safe.
class Context : public TaskContext {
 public:
  // For a program that does not use tutti::run(): finds the task of this process in the flags and the
  // environment, as discover() does, chooses the device and sets the number of threads. `values` are the
  // values of all flags, including the program's own (FlagSet::values()); empty: only the standard flags,
  // from `config`.
  explicit Context(const RunConfig& config, const FlagValues& values = {});

  // Takes a known identity: a result of discover(), or one made by hand. Sets the number of threads
  // only if the flags give one. Throws InvalidArgument if `identity` is the default, a single process,
  // although a launcher has started this process as one of several.
  Context(const RunConfig& config, const Identity& identity, const FlagValues& values = {});

  // Returns a copy with another configuration, for one of several trainings of a program. Identity, device,
  // threads, log and timeline stay the same.
  Context with(RunConfig config) const;
  // Returns one device for each task of the job, on which that task computes: the workers in the order of
  // their ranks, then the servers. The type and the index are left open if only the other task knows them, as
  // for tasks on other hosts if --device is auto.
  std::vector<DeviceSpec> devices() const;
  // Returns the devices of this host that this process may use, named after this task: the CPU, then the
  // GPUs.
  std::vector<DeviceSpec> local_devices() const;
  // Returns the number of GPUs that this process may use.
  int num_gpus() const;
  // Claims a log directory for one training of this program. Returns false if this context or a copy has
  // claimed it before: the trainings would overwrite and resume each other's checkpoints. Thread-safe.
  bool claim_folder(const std::string& path) const;
  // Releases a claimed folder in which nothing was written.
  void release_folder(const std::string& path) const;
  // Shows values that the program computes in TensorBoard, from any thread:
  //   ctx.events().scalar("temperature", step, value);
  // They are written to the event file of the training in --logdir. A training with a name, whose files are
  // in another folder, has a separate event file (Trainer::events(), Loop::events()). Events from before the
  // training are written when it begins, or when the program ends without one. Does nothing without --logdir,
  // and on workers other than the chief.
  store::Events events() const;
  // The events of a log directory, for the training that writes them.
  std::shared_ptr<store::EventStream> event_stream(const std::string& path) const;
  // The page of --web about the trainings of this process; null without the flag.
  web::Page* page() const { return page_.get(); }
  // Begins to serve the page, unless it is served or there is none: on the chief of the job when this context
  // is made, unless that was started again and may find another chief; and on the chief of another group, or
  // the next chief, when that trains. If the port is in use, logs a warning.
  // Throws InvalidArgument if other machines could read the page without a secret.
  void serve_page() const;
  // True after a training has stopped at --stop-after: the program then begins no other training.
  std::atomic<bool>& stopped_early() const { return *stopped_early_; }
  // The device of --device; by default the GPU of the local rank, or the CPU.
  c10::Device device() const { return device_; }
  // The number of threads inside one kernel: --threads, else share_of_cores(). Never changes, because kernels
  // may sum in a different order with another number.
  int threads() const { return threads_; }
  // The kernels with which this process computes, found with the first call, which has to be made by a thread
  // that computes. Thread-safe.
  const Kernels& kernels() const;
  // Returns "same", "strict" or "libtorch": the value of --kernels, in which "auto" is resolved for this
  // device.
  std::string_view chosen_kernels() const;
  // True after a warning that tasks compute with different kernels (--mixed-machines).
  std::atomic<bool>& warned_of_mix() const { return found_->warned_of_mix; }

 private:
  struct Folders;
  struct FoundKernels {
    std::once_flag once;
    Kernels kernels;
    std::atomic<bool> warned_of_mix = false;
  };

  Context(const RunConfig& config, const Identity& identity, const FlagValues& values,
          const std::shared_ptr<web::Page>& page);

  // The copies share all of these.
  std::shared_ptr<web::Page> page_;
  std::shared_ptr<std::atomic<bool>> stopped_early_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<Folders> folders_;
  std::shared_ptr<kernels::SameKernels> same_kernels_;                      // null with LibTorch's
  std::shared_ptr<FoundKernels> found_ = std::make_shared<FoundKernels>();  // not shared by with()
  c10::Device device_;
  int threads_;
};

}  // namespace tutti
