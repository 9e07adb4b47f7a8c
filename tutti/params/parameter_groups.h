#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/params/optimizer_options.h"
#include "tutti/params/parameters.h"

namespace tutti {

// Elements [begin, end) of a block of the parameters whose group changes something. The optimisers know only
// these ranges, so that a parameter server needs no names.
struct GroupRange {
  size_t block = 0;
  int64_t begin = 0;
  int64_t end = 0;
  double rate = 1;                          // multiplies the learning rate
  std::optional<double> weight_decay = {};  // instead of the optimiser's
};

// Returns true if the pattern (ParameterGroup::names) selects this name.
bool selects(std::string_view pattern, std::string_view name);

// Freezes the parameters that the groups say, and returns the same object. Throws InvalidArgument, and
// changes nothing, if a pattern matches no parameter, or if no parameter is left to train.
Parameters& freeze(Parameters& parameters, const std::vector<ParameterGroup>& groups);

// Returns the ranges of the trained parameters for which the groups change something, in the order of the
// blocks and without overlaps.
std::vector<GroupRange> ranges_of(const Parameters& parameters, const std::vector<ParameterGroup>& groups);

Json to_json(const std::vector<GroupRange>& ranges);
std::vector<GroupRange> ranges_from_json(const Json& json);

}  // namespace tutti
