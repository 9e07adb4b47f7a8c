#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/group.h"
#include "tutti/metrics/metric.h"
#include "tutti/train/session.h"
#include "tutti/train/strategy.h"

// Functions of workers that are connected to each other, besides the steps. Every worker has to call them.
namespace tutti {

// Runs `body` on the chief alone, for work with its disk, while the other ranks wait for up to ten times
// --timeout. If `body` throws, the communicator is abandoned, so that the other ranks learn the reason.
void on_chief(const Context& context, comm::Communicator& comm, const comm::Options& options,
              const std::function<void()>& body);
// For a training of a job with --min whose workers have to stay the same, since `why`: tells the launcher,
// and the chief of the group warns. Throws PeerLost in a worker that was started while the others train.
void keep_workers(const Context& context, const Group& group, const std::string& why);
// Compares the plan of workers that join with the plan of those that train. If they differ, the workers that
// join throw InvalidArgument with the difference, and the others PeerLost: they go on without them.
void require_newcomers_to_fit(const Context& context, comm::Communicator& comm,
                              const std::vector<std::string>& plan, bool joins);
// In a job with --min: the chief tells the plan of a fit, whose first line names the fit.
void tell_fit(const Context& context, const std::vector<std::string>& plan) noexcept;
// In a worker that has joined the others in this fit: throws InvalidArgument unless the chief has told the
// same plan. Does nothing if the workers change before the chief has told one.
void require_told_fit(const Context& context, comm::Epochs& epochs, const std::vector<std::string>& plan);
// Tells the launcher that this worker, which was to join the others, ends since `why`. They go on.
void tell_refusal(const Context& context, const std::string& why) noexcept;
// See Strategy::share().
Json share(const Context& context, comm::Communicator& comm, const std::string& what,
           const Strategy::MakeValue& make);
// Starts a run: only the chief reads the checkpoint, since the others may be on machines without it. The
// others receive progress, lanes and further parts; the caller still has to send the parameters and the
// optimiser's state.
Session::Start start_together(const Context& context, comm::Communicator& comm, Session& session);
// The workers of an epoch in a run that goes on (Strategy::go_on).
struct Together {
  bool has_begun = true;      // false: the run has begun for nobody
  bool all_are_there = true;  // nobody has to take anything over
  int leader = 0;             // the rank of a worker that is farthest
  // Its standing, with all further state, on workers that are not as far; they follow its lanes already.
  std::optional<Strategy::Standing> standing = {};
};
// Finds out who is farthest; whoever is not receives what that worker knows besides the nets. `mine` is null
// in a worker without a state of the run. Usually all are as far, and only a few numbers are exchanged.
Together come_together(comm::Communicator& comm, Session& session, const Strategy::Standing* mine);
// Merges the counts of all workers, on each of them, in one exchange.
void merge(comm::Communicator& comm, const metrics::List& list);
// Returns the parts, at rank 0 with the random generators of all ranks.
Snapshots gather_generators(comm::Communicator& comm, Snapshots parts);

}  // namespace tutti
