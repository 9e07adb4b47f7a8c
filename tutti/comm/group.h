#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"

namespace tutti {

// The workers that train a model together, and the place of this one among them. By default a training uses
// all workers of the job. To train several models at once, split them:
//   const tutti::Group mine = tutti::all_workers(ctx).split([](int rank) { return rank % 2; });
//   tutti::Trainer trainer(ctx, net, optimizer, loss, {.group = mine});
// A value: copies share the communicator.
struct Group {
  // A group of this worker alone, without a communicator.
  Group() = default;
  // The ranks of a communicator. Rank 0 is the chief.
  Group(std::shared_ptr<comm::Communicator> connected, uint64_t epoch = 0);  // NOLINT: converts on purpose
  // All workers of the job, which reach each other only through parameter servers or a master.
  static Group unconnected(const Context& context);

  // Workers that pass the same colour form a group, in the order of their ranks. Every worker of this group
  // has to call it. Requires a communicator.
  Group split(int colour) const;
  // Like split(colour_of(rank)), but also works without a communicator: every worker computes the colours of
  // all ranks of this group, so `colour_of` has to be the same function on all of them.
  Group split(const std::function<int(int rank)>& colour_of) const;
  bool is_chief() const { return rank == chief; }
  // Takes rank and world from the communicator, after it has been reconfigured. A worker that has not joined
  // the others yet is alone, without a chief.
  void refresh();
  // Returns the communicator. Throws InvalidArgument if there is none.
  const std::shared_ptr<comm::Communicator>& connected() const;

  // Null if the workers are not connected to each other.
  std::shared_ptr<comm::Communicator> communicator = {};
  int rank = 0;
  int world = 1;
  // The rank that reads and writes checkpoints, events and the report; -1 in an evaluator, which does not.
  int chief = 0;
  uint64_t epoch = 0;  // the number of times that the workers of the job have been numbered anew
  // Without a communicator: the ranks in the job of a part of its workers. Empty: the group is not a part.
  std::vector<int> part = {};
  // Without a communicator: returns the rank in the job of a worker of this group.
  int rank_in_job(int of) const { return part.empty() ? of : part.at(static_cast<size_t>(of)); }
};

// Connects all workers of the job, as comm::connect() does. An evaluator forms a group alone, without a
// chief.
Group connect(const Context& context);

// Returns true if the workers of the job train through parameter servers (--strategy), and so need no
// connection to each other.
bool train_through_servers(const Context& context);
// All workers of the job: unconnected if they train through parameter servers and never change, else
// connected.
Group all_workers(const Context& context);

// Returns the number of workers with which the group began: to them data and lanes are dealt, whoever
// computes them now.
int first_world(const Context& context, const Group& group);
// Returns the number of lanes: --lanes, else one for each of these workers.
int64_t lanes_for(const Context& context, const Group& group);

}  // namespace tutti
