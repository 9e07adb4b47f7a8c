#include "tutti/params/optimizer_state.h"

#include <algorithm>
#include <array>
#include <string>

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/type_name.h"

namespace tutti {
namespace {

// No vector has this many elements: a larger size is invalid, or would overflow.
constexpr int64_t kMostElements = int64_t{1} << 40;

torch::ScalarType type_of(const std::string& name) {
  for (const torch::ScalarType type : {torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kFloat16}) {
    if (type_name(type) == name) return type;
  }
  fail(ErrorKind::InvalidArgument, "an optimiser has no state of type '{}'", name);
}

int64_t size_in(const Json& json, const char* key) {
  const auto size = json.at(key).get<int64_t>();
  if (size < 0 || size > kMostElements)
    fail(ErrorKind::InvalidArgument, "a slot of an optimiser has {} elements", size);
  return size;
}

}  // namespace

Json outline_of(const Optimizer::State& state) {
  Json outline = {{"steps", state.steps}, {"slots", Json::array()}};
  for (const Optimizer::Slot& slot : state.slots) {
    outline["slots"].push_back({{"name", slot.name},
                                {"block", slot.block},
                                {"offset", slot.offset},
                                {"size", slot.vector.numel()},
                                {"type", type_name(slot.vector.scalar_type())}});
  }
  if (state.archive.defined()) outline["archive"] = state.archive.numel();
  return outline;
}

Optimizer::State state_of(const Json& outline) {
  try {
    Optimizer::State state{.steps = outline.at("steps").get<int64_t>(), .slots = {}};
    if (outline.contains("archive"))
      state.archive = torch::empty({size_in(outline, "archive")}, torch::kUInt8);
    for (const Json& slot : outline.at("slots")) {
      const int64_t size = size_in(slot, "size");
      const torch::ScalarType type = type_of(slot.at("type").get<std::string>());
      state.slots.push_back({slot.at("name").get<std::string>(), slot.at("block").get<size_t>(),
                             slot.at("offset").get<int64_t>(), torch::empty({size}, type)});
    }
    return state;
  } catch (const Json::exception& error) {
    fail(ErrorKind::InvalidArgument, "the optimiser's state is invalid: {}", error.what());
  }
}

void put(Optimizer::State& whole, const Parameters& parameters, const Optimizer::Slot& part) {
  auto slot = std::find_if(whole.slots.begin(), whole.slots.end(), [&](const Optimizer::Slot& other) {
    return other.name == part.name && other.block == part.block;
  });
  if (slot == whole.slots.end()) {
    const torch::Tensor vector = torch::zeros_like(parameters.blocks()[part.block].values);
    slot = whole.slots.insert(slot, {part.name, part.block, 0, vector});
  }
  slot->vector.narrow(0, part.offset, part.vector.numel()).copy_(part.vector);
}

std::vector<Optimizer::Slot> part_of(const Optimizer::State& whole, size_t block, int64_t begin,
                                     int64_t end) {
  std::vector<Optimizer::Slot> parts;
  for (const Optimizer::Slot& slot : whole.slots) {
    if (slot.block == block)
      parts.push_back({slot.name, block, begin, slot.vector.narrow(0, begin - slot.offset, end - begin)});
  }
  return parts;
}

}  // namespace tutti
