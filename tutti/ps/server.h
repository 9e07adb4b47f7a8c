#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/log.h"
#include "tutti/base/waiting.h"
#include "tutti/cluster/context.h"
#include "tutti/params/optimizer.h"
#include "tutti/ps/address_book.h"
#include "tutti/ps/service.h"
#include "tutti/rpc/host.h"

namespace tutti::ps {

// Serves the groups of workers of a job, each of which trains a model of its own, with a Service for each. A
// group is known by the ranks of its workers in the job, which they send when they connect (hello_of()). No
// worker is in two groups. The job is over when every worker belongs to a group whose run is over; "stop"
// ends it for all groups.
//
// If the workers change, the next server holds a copy of each server's part (--replicas): workers call it
// once more, with "copy" in what they send when they connect, and another Service answers. Thread-safe.
class GroupServices final : public rpc::Service {
 public:
  // `options` has all workers of the job.
  GroupServices(const Log& log, const ServiceOptions& options);

  // Throws InvalidArgument if the caller's group shares a worker with another group that is at work.
  rpc::Message serve(const rpc::Caller& caller, const std::string& method,
                     const rpc::Message& request) override;
  bool takes_incoming(const rpc::Caller& caller, const std::string& method) const override;
  void gone(const rpc::Caller& caller) override;

  // See Service. The Timeout of one group is thrown when the runs of the others are over.
  bool join_for(std::chrono::milliseconds patience);
  void end();
  int callers() const;

 private:
  using Ranks = std::vector<int>;
  using Services = std::map<Ranks, std::shared_ptr<ps::Service>>;

  std::optional<Ranks> ranks_of(const rpc::Caller& caller) const;
  std::shared_ptr<ps::Service> service_of(const rpc::Caller& caller);
  std::string name_of_group(const Ranks& ranks) const;
  bool is_at_work(const std::shared_ptr<ps::Service>& service) const;
  std::shared_ptr<ps::Service> make_service(const Ranks& ranks) const;
  Services awaited() const;
  std::vector<std::string> in_no_group(const Services& services) const;

  const Log log_;
  const ServiceOptions options_;
  const Ranks all_;
  const std::shared_ptr<ps::Service> copy_;   // of another server's part
  const std::shared_ptr<ps::Service> whole_;  // of the job: the service of callers that name no group
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  // All members below are guarded by mutex_.
  Services parts_;
  std::map<uint64_t, std::shared_ptr<ps::Service>> callers_;
  bool is_ending_ = false;  // no more groups are waited for
  std::string said_;        // the last Timeout of a group that was logged
  Reminder reminder_;
};

// The parameter server of this task. Listens at the task's own address in the cluster from construction to
// destruction. Thread-safe.
class Server {
 public:
  // The task has to be in a job of servers. The context must outlive the server.
  // `optimizers` are those besides torch::optim's that the program may use.
  explicit Server(const Context& context, std::vector<ElementwiseOptimizer> optimizers = {});

  // "grpc://host:port".
  std::string target() const;
  // Waits up to `patience` for the end of the job and returns true when it is done: the chiefs or end() have
  // ended it and all callers have left, or `tutti stop` was called. Throws InvalidArgument if the chief
  // refuses this server (address_book.h).
  bool join_for(std::chrono::milliseconds patience) {
    announcement_.check();
    return services_.join_for(patience);
  }
  // Ends the job: it is done as soon as the present callers have left. New ones are not waited for.
  void end() { services_.end(); }
  int callers() const { return services_.callers(); }

 private:
  const Context& context_;
  const std::shared_ptr<SharedByGroups> shared_ = std::make_shared<SharedByGroups>();
  GroupServices services_;
  rpc::Host host_;  // after the services, so that it ends first
  Announcement announcement_;
};

}  // namespace tutti::ps
