#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tutti::testing {

// Random choices that are equal on every machine, unlike the standard's distributions.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}

  // Returns a whole number from `least` to `most`.
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(engine_() % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int64_t count) { return between(1, count) == 1; }
  template <class Value>
  const Value& one_of(const std::vector<Value>& values) {
    return values[static_cast<size_t>(between(0, static_cast<int64_t>(values.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

enum class Layer { Linear, Tanh, BatchNorm, LayerNorm, Dropout, Shared, Frozen, Double };

// The operator that is applied to the output of a layer, whose elements are float32 between -1 and 1.
enum class Operator {
  None,
  Gelu,
  Mish,
  Power,
  Angle,
  Softmax,
  LogSumExp,
  Cumsum,
  Moments,
  Norm,
  GroupNorm,
  Convolution,
  AveragePool,
  Resize,
  Attention,
  Recurrent,
  IndexAdd,
  Remainder,
};

// A random training program: everything that determines its result to the bit, and nothing about where it
// runs. Equal numbers draw equal programs.
struct Draw {
  explicit Draw(uint64_t number);

  // Returns this program with operators between its layers, which trains with --kernels same.
  Draw with_operators() const;

  uint64_t number;

  // The data: "vector" or "ids" (looked up in an embedding) of `width` columns, and class numbers.
  int64_t examples = 0;
  std::string input;
  int64_t width = 0;
  int64_t classes = 0;
  bool shuffled = false;

  std::vector<Layer> layers;
  std::vector<Operator> operators;  // one for each layer; None with the kernels of LibTorch
  int64_t hidden = 0;
  std::string optimizer;
  bool warm_up = false;
  double clip_norm = 0;
  bool evaluates = false;

  // A Trainer with this number of fits, or a user's own loop (fits is 1).
  bool own_loop = false;
  int64_t fits = 1;
  int64_t steps = 0;            // of each fit
  int64_t stop_after = 0;       // a hook ends the first fit after this many steps; 0: none does
  bool decays_weights = false;  // a hook scales the weights before every step

  // The flags that the result depends on, with the members for them.
  int64_t lanes = 0;
  int64_t batch = 0;
  bool drop_remainder = true;
  std::string precision;
  std::string layout;
  std::string kernels;

  std::vector<std::string> flags() const;
  // Returns a readable line.
  std::string describe() const;
};

}  // namespace tutti::testing
