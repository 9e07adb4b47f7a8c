#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/timeline_file.h"
#include "tutti/params/gradient_mean.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"

namespace tutti {

struct DistributedOptimizerOptions {
  int64_t lanes = 0;     // 0: --lanes, else one a worker
  double clip_norm = 0;  // the largest norm of the mean gradient; 0: any
  // Empty: as the flags say.
  std::optional<ReducerOptions> reducer = {};
  // Empty: connected as the flags and the launcher say.
  std::shared_ptr<comm::Communicator> communicator = {};
};

// An optimiser for a training loop of one's own, on as many workers as there are:
//   tutti::Parameters params(*net);
//   tutti::DistributedOptimizer opt(ctx, params, torch::optim::AdagradOptions(0.01));
//   opt.broadcast_from(0);
//   for (...) { opt.zero_grad(); loss.backward(); opt.step(); }
// Several backward passes between zero_grad() and step() add up. Where there is one, opt.backward(loss) in
// its place sends what is ready while the pass goes on. Every worker calls step() equally often: while
// (opt.goes_on(there_is_data)); one that has no data left gives 0 examples.
// With one lane a worker the result depends on the number of workers, as it does everywhere. For the same
// bits at any, fix --lanes and make each lane of the worker by itself:
//   for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
//     opt.zero_grad(); loss_of(lane).backward(); opt.add_lane();
//   }
//   opt.step();
// From the last backward() or add_lane() of a worker on until step(), gradients are on their way: what would
// change them, or needs the communicator, is an InvalidArgument meanwhile.
//
// A lane that fails, because a batch does not fit into memory, say, can be made again, from zero_grad() on,
// or be left out with add_lane(0): the others hear nothing of it. Only where it was the last of its worker,
// and on its way over a network, do all hear why. That, and a step() that fails, ends the training: whatever
// is tried then throws the same. Not thread-safe.
class DistributedOptimizer {
 public:
  // Context and parameters outlive this. Where the workers share memory, the parameters are moved into it.
  // Every worker makes one, with the same parameters and options: else InvalidArgument says what differs. Two
  // in one program, as for a GAN, each need a communicator of their own: comm::connect() once, and split(0)
  // of it for each.
  DistributedOptimizer(const Context& context, Parameters& parameters, const OptimizerOptions& optimizer,
                       const DistributedOptimizerOptions& options = {});

  // Parameters, buffers and, unless each worker has its own part of it, the optimiser's state as `root` has
  // them.
  void broadcast_from(int root);
  // The whole state of the optimiser, at rank 0, nothing elsewhere; and back, from there to all.
  Optimizer::State gather_state();
  void restore(const Optimizer::State& state);

  // Whether another step is to be made, when this worker still has data or has none: with --drop-remainder as
  // long as all have, else as long as any has. Every worker asks.
  bool goes_on(bool has_data);

  void zero_grad();
  // The one backward pass of a lane, of its mean loss over so many examples, and add_lane().
  void backward(const torch::Tensor& loss, int64_t examples = 1);
  // The gradients are those of the mean over so many examples. Equal counts may be left out: then all weigh
  // the same.
  void add_lane(int64_t examples = 1);
  // Averages the gradients over the examples of all workers and makes one update with them. Adds the lane
  // first, where the worker has one alone and add_lane() was not called. Returns the examples of all; 0, and
  // no update, where nobody had any.
  int64_t step(int64_t examples = 1);

  // What this worker asks of all others in the next step. Before that has begun.
  void wish(const Wishes& wishes);
  // What has come of the last step, which all know alike. The sum of losses is undefined where a lane of this
  // worker did not tell its loss to backward().
  const GradientMean::Result& last_step() const { return last_step_; }
  // step() was called so often, for those without any examples, too.
  int64_t steps_here() const { return steps_here_; }

  // Those of this worker.
  LaneRange lanes() const { return mean_.lanes(); }
  int64_t all_lanes() const { return all_lanes_; }
  // Each worker has its own part of the optimiser's state.
  bool is_sharded() const { return reducer_options_.scatter; }
  // This worker goes no further, and why: the others hear of it at once.
  void abandon(const std::exception& error);

  // What --timeline asks for, where the workers stop together and the process may live on. Every worker calls
  // it.
  void write_timeline() { timeline_file_.write(); }

  // "tree" or "fast".
  std::string reduce() const { return mean_.name(); }
  // Updates made, restored ones included.
  int64_t steps() const { return optimizer_.steps(); }
  Optimizer& optimizer() { return optimizer_; }
  comm::Communicator& communicator();

 private:
  void require_between_steps(const char* what) const;
  void enter_step(const char* what);
  template <class Body>
  void add(const char* what, Body body);
  void begin_step();
  void update();

  const Context& context_;
  Parameters& parameters_;
  const DistributedOptimizerOptions options_;
  const ReducerOptions reducer_options_;
  const std::shared_ptr<comm::Communicator> comm_;
  const int64_t all_lanes_;
  Optimizer optimizer_;
  comm::TimelineFile timeline_file_;
  const std::shared_ptr<comm::Communicator> module_group_;  // where some module wants one
  Wishes wishes_;                                           // for the next step
  GradientMean::Result last_step_;
  int64_t steps_here_ = 0;
  bool losses_known_ = true;  // in the step
  bool in_step_ = false;
  int64_t lanes_added_ = 0;  // in it
  GradientMean mean_;        // last: when it has gone nothing is being sent any more
};

}  // namespace tutti
