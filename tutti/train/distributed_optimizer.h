#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/group.h"
#include "tutti/data/batch.h"
#include "tutti/lanes/lanes.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/params/precision.h"
#include "tutti/params/random_scope.h"
#include "tutti/step/bucket_sums.h"
#include "tutti/train/data_parallel.h"

namespace tutti {

class AllReduce;

// Options of a DistributedOptimizer.
struct DistributedOptimizerOptions {
  int64_t lanes = 0;     // 0: --lanes, or one per worker if that is 0 too
  double clip_norm = 0;  // the maximum norm of the mean gradient; 0: no limit
  // Of all-reduce; if empty, the options that the flags set.
  std::optional<ReducerOptions> reducer = {};
  // The workers that train together; empty: all of the job (all_workers()).
  std::optional<Group> group = {};
  // The module of the parameters, if it has sharded embeddings: their rows are trained as well (fetch()).
  std::shared_ptr<torch::nn::Module> module = {};
  // The seed of the random numbers in lanes; empty: --seed. If a program has two optimisers, each should have
  // a seed of its own, unless both are to draw the same numbers.
  std::optional<int64_t> seed = {};
};

// An optimiser for custom training loops on any number of workers, in every way of training (--strategy) but
// in-graph:
//   tutti::Parameters params(*net);
//   tutti::DistributedOptimizer opt(ctx, params, torch::optim::AdagradOptions(0.01));
//   opt.broadcast_from(0);
//   for (...) { opt.zero_grad(); loss_of(batch).backward(); opt.step(); }
// Several backward passes between zero_grad() and step() add up. If there is only one, use
// opt.backward(loss), which sends gradients that are ready during the pass. Every worker has to call step()
// equally often: while (opt.goes_on(there_is_data)). A worker that has no data left calls step(0).
//
// With one lane per worker the result depends on the number of workers, as in other systems. To get the same
// bits with any number of workers, fix --lanes and compute each lane of the worker separately:
//   for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
//     opt.zero_grad(); loss_of(lane).backward(); opt.add_lane();
//   }
//   opt.step();
// Call zero_grad() before the forward pass. From then until the lane is added, random numbers, as in dropout,
// depend on --seed, the lane and the number of updates, and so are the same with any number of workers and
// after a resume. The program's random numbers outside of lanes are not affected. The forward pass is
// computed in the precision of --precision, up to the backward pass of opt.backward(), or until the lane is
// added.
//
// With --audit N a worker computes another worker's lane as well in some steps, for a comparison. Loop then
// over lanes_of_step() in place of lanes():
//   for (const int64_t lane : opt.lanes_of_step()) {
//     opt.zero_grad(); loss_of(lane).backward(); opt.add_lane();
//   }
//
// With parameter servers, step() pushes the gradients to them and pulls the new values, as the steps of a
// Trainer do. The steps have to be made in a Loop, which begins the run on the servers and saves their state;
// the methods for connected workers throw InvalidArgument.
//
// Between a worker's last backward() or add_lane() and step(), gradients are being sent. Calls that would
// change them, or that need the communicator, throw InvalidArgument during that time.
//
// If a lane fails, for example because a batch does not fit into memory, it can be computed again, beginning
// with zero_grad(), or skipped with add_lane(0); other workers are not affected. Only if it was the last lane
// of its worker and was being sent over a network, all workers are told why. That, and a step() that fails,
// ends the training: later calls throw the same error. Not thread-safe.
class DistributedOptimizer {
 public:
  // The parameters must outlive this object; the optimiser's groups may freeze some of them
  // (Parameters::freeze). Every worker has to make one, with the same parameters and options; otherwise
  // throws InvalidArgument that says what differs. If a program has two, as for a GAN,
  // each needs a group of its own: call tutti::connect() once, and split(0) on it for each.
  //
  // Throws InvalidArgument as well if the parameters are not as --device and --layout say (layout_for()), or
  // if the module has sharded embeddings and is not among the options.
  DistributedOptimizer(const Context& context, Parameters& parameters, const OptimizerOptions& optimizer,
                       const DistributedOptimizerOptions& options = {});

  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // Connected workers only: copies the parameters, the buffers and, unless it is sharded, the optimiser's
  // state from rank `root` to all workers.
  void broadcast_from(int root);
  // Connected workers only: gather_state() returns the whole state of the optimiser on the chief, and an
  // empty state elsewhere; restore() distributes such a state from the chief to all workers. It includes the
  // residuals of --wire-precision (GradientMean::gather_residuals).
  Optimizer::State gather_state();
  void restore(const Optimizer::State& state);

  // Returns true if another step is to be made: with --drop-remainder as long as all workers have data, else
  // as long as any has. Every worker has to call it. With ps-async each worker ends by itself, so the result
  // is `has_data`. With ps-sync and several workers throws InvalidArgument: they have to know the number of
  // steps.
  bool goes_on(bool has_data);

  // If the module has sharded embeddings: gets the rows that the lanes of the next step look up, from the
  // workers or servers that have them. There is one batch for each lane of lanes_of_step(), without examples
  // if the lane has none. Every worker has to call it before the lanes of each step, which are then made by
  // backward(), in a Loop. Returns false if a server was lost: this step cannot be made, and the next call of
  // Loop::goes_on() starts again at the step that all tasks have.
  [[nodiscard]] bool fetch(std::span<const Batch> batches);
  // Begins a lane, or begins it again. Call it before the forward pass. With --precision bf16, backward() and
  // add_lane() throw InvalidArgument if the forward pass was made before.
  void zero_grad();
  // Makes the only backward pass of a lane, from its mean loss over `examples` examples, and calls
  // add_lane(). Throws InvalidArgument if a lane of another optimiser is open, whose gradients it would
  // multiply: with one loss for several optimisers, call loss.backward(), and then add_lane() of each, in the
  // opposite order of zero_grad().
  void backward(const torch::Tensor& loss, int64_t examples = 1);
  // Adds the current gradients, which are means over `examples` examples. If all counts are equal
  // they may be omitted. A mean loss is passed on to the result of the step, and so to a Loop's history.
  void add_lane(int64_t examples = 1, const torch::Tensor& loss = {});
  // Averages the gradients over the examples of all workers and makes one update with them. If the worker has
  // a single lane and add_lane() was not called, adds that lane first; step(0) skips all its lanes. Returns
  // the number of examples of all workers; if it is 0, makes no update. With ps-async it is the number of
  // examples of this worker's last update of which the servers have told, which is the previous one with
  // --overlap. If a server was lost, returns 0, and the next call of Loop::goes_on() starts again at the step
  // that all tasks have. If an audit has found a difference, returns 0 in a Loop, which makes the step again.
  int64_t step(int64_t examples = 1);

  // The learning rate of the next step, of the parameters that are in no group; the rates of the groups
  // are multiples of it. Every worker has to set the same rate. A Loop sets it by itself if it has a schedule
  // (LoopOptions::learning_rate). Throws InvalidArgument if the rate is negative or not finite.
  void set_learning_rate(double rate) { optimizer().set_learning_rate(rate); }
  double learning_rate() const { return strategy_->replica().optimizer().learning_rate(); }

  // Sets the wishes of this worker for the next step. Has to be called before that step begins.
  void wish(const Wishes& wishes);
  // The result of the last step, which is the same on all workers. The sum of losses is undefined if no loss
  // was passed for a lane of any worker, to backward() or add_lane().
  const StepResult& last_step() const { return last_step_; }
  // The number of calls of step(), including those without examples.
  int64_t steps_here() const { return steps_here_; }

  // The lanes of this worker. After a call of Loop::goes_on() they may be other ones than before, if a worker
  // was lost or has come.
  LaneRange lanes() const { return lanes_of(group().rank, group().world, all_lanes_); }
  int64_t all_lanes() const { return all_lanes_; }
  // The lanes that this worker has to compute in the next step, in this order: its own and, in some steps
  // with --audit, before them a lane of another worker, whose results are compared and dropped. A loop that
  // counts something itself leaves out the lanes that are not in lanes().
  std::vector<int64_t> lanes_of_step();
  const ReducerOptions& reducer_options() const { return reducer_options_; }
  double clip_norm() const { return options_.clip_norm; }
  // Tells the other workers at once that this one has failed, and why. Does not throw.
  void abandon(const std::string& why) noexcept;

  // Writes the file of --timeline, for programs that continue after the workers have stopped together. Every
  // worker has to call it.
  void write_timeline() { strategy_->write_timeline(); }

  // The number of updates, including those before a resume.
  int64_t steps() const { return strategy_->updates(); }
  // Has no state if servers hold it.
  Optimizer& optimizer() { return strategy_->replica().optimizer(); }
  // Connected workers only.
  comm::Communicator& communicator();
  const Group& group() const { return strategy_->group(); }
  const Parameters& parameters() const { return parameters_; }

 private:
  friend class Loop;

  void require_between_steps(const char* what) const;
  bool note_loss_of_task(const Error& error);
  void give_up(const std::exception& error);
  void close_lane();
  embedding::Tables& tables() { return strategy_->replica().tables(); }
  void require_forward_in_lane(const torch::Tensor& loss) const;
  void enter_step(const char* what);
  template <class Body>
  void add(const char* what, Body body);
  void begin_step();
  void require_audits() const;
  int64_t lane() const { return copy_.value_or(lanes().begin + lanes_added_); }
  size_t batch_of_lane() const { return static_cast<size_t>(copy_ ? lanes().size() : lanes_added_); }
  AllReduce& all_reduce();

  const Context context_;
  Parameters& parameters_;
  const DistributedOptimizerOptions options_;
  const ReducerOptions reducer_options_;
  const Precision precision_;
  const StrategyOptions strategy_options_;
  const int64_t all_lanes_;
  Wishes wishes_;  // for the next step
  StepResult last_step_;
  int64_t steps_here_ = 0;
  std::optional<Error> lost_;  // a task was lost in the last step, which was not made
  std::string failure_;        // why the present step could not be made
  bool again_ = false;         // the last step was not made, since an audit has found a difference
  bool in_loop_ = false;       // which has begun
  bool fetched_ = false;       // the rows of the current step
  bool in_step_ = false;
  int64_t lanes_added_ = 0;                // in the current step
  std::optional<int64_t> copy_;            // another worker's lane, which has to be computed first
  bool knows_audits_ = false;              // the program has called lanes_of_step()
  std::optional<RandomScope> random_;      // from zero_grad() until the lane is added
  std::optional<PrecisionScope> forward_;  // from zero_grad() until backward(), or until the lane is added
  uint64_t first_node_ = 0;                // of autograd's graph, in this forward pass
  LaneSum* sum_ = nullptr;                 // of the current step; null before the first
  AllReduce* all_reduce_ = nullptr;        // the strategy of connected workers; null with servers
  // Last member: its destructor waits until everything has been sent.
  const std::unique_ptr<DataParallel> strategy_;
};

}  // namespace tutti
