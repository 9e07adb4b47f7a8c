#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "tutti/params/optimizer_options.h"
#include "tutti/params/parameter_groups.h"
#include "tutti/params/parameters.h"
#include "tutti/transport/reduce.h"

namespace tutti {

// Used instead of a learning rate by a worker that does not update the parameters.
inline constexpr double kNoRate = std::numeric_limits<double>::quiet_NaN();

// torch::optim on flat vectors. It is run on chunks of the vectors that fit into the cache: torch::optim
// makes several passes over a tensor (ten for Adam), and in this way all but one of them stay in the cache
// (bench/optimizer.cc). Ends of groups of parameters cut chunks too, and each group is one of torch::optim's.
// Updates the values in place and leaves the gradients alone. Not thread-safe.
class Optimizer {
 public:
  // A part of one of the vectors that the optimiser keeps, such as "exp_avg".
  struct Slot {
    std::string name;
    size_t block;    // the block of the parameters
    int64_t offset;  // where in the block the part begins
    torch::Tensor vector;
  };

  // Everything that the optimiser has learnt.
  struct State {
    int64_t steps = 0;
    std::vector<Slot> slots;
    // The bytes that a ReplicatedOptimizer has saved of itself, in place of slots; else undefined.
    torch::Tensor archive = {};
  };

  // Optimises sections of these parameters, which the groups of the options have frozen already (freeze).
  // Throws InvalidArgument if an option is out of range (require_in_range).
  // A ReplicatedOptimizer updates the parameters as a whole, whatever the sections.
  Optimizer(const Parameters& parameters, std::vector<Section> sections, const OptimizerOptions& options);
  // Optimises sections of parameters that are elsewhere. `ranges` is the result of ranges_of() there, and
  // the names in the options' groups are not used. Only a ReplicatedOptimizer uses the parameters `views`.
  Optimizer(std::vector<Section> sections, const OptimizerOptions& options,
            std::vector<GroupRange> ranges = {}, std::vector<Parameters::View> views = {});
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void step();
  // Makes a step with these gradients, one vector per section, instead of the sections' own. Not for a
  // ReplicatedOptimizer.
  void step(std::span<const torch::Tensor> gradients);

  // "adam", "sgd", ...
  std::string name() const { return name_of(options_); }
  // The options as given, without a learning rate that was set later.
  const OptimizerOptions& options() const { return options_; }
  // The rate of parameters that are in no group; kNoRate if a ReplicatedOptimizer does not tell it.
  double learning_rate() const { return rate_; }
  // Sets that rate, and the rates of the groups to its multiples. Throws InvalidArgument if the rate is
  // negative or not finite.
  void set_learning_rate(double rate);
  // The number of calls of step(), including those before a restore.
  int64_t steps() const { return steps_; }

  // Returns a copy. Each slot has a part for every section; before the first step there are no slots.
  State state() const;
  // Continues from the state of an optimiser of the same kind over these sections or more, whose slots may be
  // in several parts. A state of 0 steps resets this one. The learning rate is kept. Throws InvalidArgument
  // if the slots do not cover a section.
  void restore(const State& state);

  // Updates other sections of the same parameters from now on. Forgets the state; keeps the learning rate.
  // Not for a ReplicatedOptimizer.
  void set_sections(std::vector<Section> sections);

  // The names of the slots. SlotVectors are memory of the caller's for them: for each section and each name
  // a vector as long as the section.
  std::vector<std::string> slot_names() const;
  using SlotVectors = std::vector<std::vector<torch::Tensor>>;
  // Moves the slots, as far as there are any, to these vectors.
  void move_slots(const SlotVectors& to);
  // Makes a step that writes the slots to these vectors, and leaves the slots before the step as they are.
  void step_into(const SlotVectors& to);

  // Returns the parts of the slots that lie in these elements of a block, without copies, as far as there are
  // any.
  std::vector<Slot> slots_in(size_t block, const comm::ElementRange& elements) const;
  // Returns an optimiser like this one, with the learning rate of this one, that continues from the state and
  // updates this section in its place. Not for a ReplicatedOptimizer.
  std::unique_ptr<Optimizer> for_section(const Section& section, const State& state) const;

  // The number of chunks in which a step updates the parameters.
  size_t chunks() const { return chunks_.size(); }
  // The number of elements that are updated at a time, on the CPU and with one thread.
  static constexpr int64_t kChunkElements = 65536;

 private:
  void begin();
  void begin_replicated();
  void make_anew();
  void restore_slots(const State& restored);
  template <class Visit>
  void for_each_slot(const Visit& visit) const;
  void cut(size_t section);
  void use_gradients(const std::function<torch::Tensor(size_t section)>& gradient_of);
  std::vector<Slot> slots() const;
  std::unique_ptr<torch::optim::Optimizer> make() const;

  struct Chunk {
    size_t section;
    int64_t offset;
    torch::Tensor values;
    size_t group;
  };
  // A group of torch::optim; the first has all parameters for which nothing is different.
  struct Group {
    double rate = 1;
    std::optional<double> weight_decay = {};
  };
  size_t group_of(const GroupRange& range);

  std::vector<Section> sections_;
  OptimizerOptions options_;
  std::vector<GroupRange> ranges_;
  std::vector<Group> groups_ = {{}};
  const std::vector<Parameters::View> views_;  // for a ReplicatedOptimizer only
  std::vector<Chunk> chunks_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  double rate_ = 0;
  int64_t steps_ = 0;
};

}  // namespace tutti
