#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/params/parameters.h"

namespace tutti {

// The options that differ for some of the parameters, like a group of torch::optim:
//   {.names = "*.bias", .weight_decay = 0}     no weight decay for biases
//   {.names = "encoder.*", .rate = 0.1}        a tenth of the learning rate, also of a schedule's
//   {.names = "!head.*", .frozen = true}       trains the head only
// If several groups apply to a parameter, their factors multiply, the last weight decay counts, and the
// parameter is frozen if any of them freezes it.
struct ParameterGroup {
  // A pattern for the full names of parameters: '*' stands for any text, '?' for one character, and a '!' at
  // the beginning selects the parameters that do not match. A pattern that matches none is an error.
  std::string names;
  double rate = 1;                          // multiplies the learning rate
  std::optional<double> weight_decay = {};  // instead of the optimiser's
  // Clears requires_grad: the parameters are not trained, and have no gradients and no optimiser state.
  bool frozen = false;
};

// Elements [begin, end) of a block of the parameters whose group changes something. The optimisers know only
// these ranges, so that a parameter server needs no names.
struct GroupRange {
  size_t block = 0;
  int64_t begin = 0;
  int64_t end = 0;
  double rate = 1;                          // multiplies the learning rate
  std::optional<double> weight_decay = {};  // instead of the optimiser's
};

// Returns true if the group's pattern selects a parameter that is registered under these names.
bool selects(const ParameterGroup& group, const std::vector<std::string>& names);

// Freezes the parameters that the groups say, and returns the same object. Throws InvalidArgument, and
// changes nothing, if a pattern matches no parameter, or if no parameter is left to train.
Parameters& freeze(Parameters& parameters, const std::vector<ParameterGroup>& groups);

// Returns the ranges of the trained parameters for which the groups change something, in the order of the
// blocks and without overlaps.
std::vector<GroupRange> ranges_of(const Parameters& parameters, const std::vector<ParameterGroup>& groups);

Json to_json(const ParameterGroup& group);
ParameterGroup group_from_json(const Json& json);
Json to_json(const std::vector<GroupRange>& ranges);
// Throws InvalidArgument if the ranges are not in order, or if a rate or weight decay is not a finite number
// of 0 or more.
std::vector<GroupRange> ranges_from_json(const Json& json);

}  // namespace tutti
