#include "tutti/kernels/convolution_geometry.h"

#include <algorithm>
#include <array>

namespace tutti::kernels {
namespace {

// Returns `values`, of which one may stand for all dimensions, with `fill` in front.
Space space_of(at::IntArrayRef values, int64_t dimensions, int64_t fill) {
  Space space = {fill, fill, fill};
  for (int64_t d = 0; d < dimensions; ++d)
    space[static_cast<size_t>(3 - dimensions + d)] = values[values.size() == 1 ? 0 : static_cast<size_t>(d)];
  return space;
}

bool has_channels_last(const at::Tensor& tensor) {
  const at::MemoryFormat format = tensor.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

}  // namespace

at::MemoryFormat format_of(const at::Tensor& tensor, bool channels_last) {
  if (!channels_last) return at::MemoryFormat::Contiguous;
  return tensor.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

std::optional<Geometry> geometry_of(const at::Tensor& input, const at::Tensor& weight,
                                    const ConvolutionArguments& arguments) {
  const int64_t dimensions = input.dim() - 2;
  if (dimensions < 1 || dimensions > 3 || weight.dim() != input.dim() || arguments.groups < 1)
    return std::nullopt;
  const auto fits = [&](at::IntArrayRef values, int64_t least) {
    const bool size = values.size() == 1 || static_cast<int64_t>(values.size()) == dimensions;
    return size && std::all_of(values.begin(), values.end(), [&](int64_t value) { return value >= least; });
  };
  if (!fits(arguments.stride, 1) || !fits(arguments.padding, 0) || !fits(arguments.dilation, 1))
    return std::nullopt;
  if (arguments.transposed && !fits(arguments.output_padding, 0)) return std::nullopt;
  if (input.numel() == 0 || weight.numel() == 0) return std::nullopt;
  const int64_t groups = arguments.groups;
  const int64_t of_input = arguments.transposed ? weight.size(0) : weight.size(1) * groups;
  if (input.size(1) != of_input || weight.size(0) % groups != 0) return std::nullopt;

  Geometry geometry{};
  geometry.stride = space_of(arguments.stride, dimensions, 1);
  geometry.padding = space_of(arguments.padding, dimensions, 0);
  geometry.dilation = space_of(arguments.dilation, dimensions, 1);
  geometry.kernel = space_of(weight.sizes().slice(2), dimensions, 1);
  geometry.images = input.size(0);
  geometry.groups = groups;
  geometry.output_channels = weight.size(0) / groups;
  geometry.input_channels = weight.size(1);
  geometry.channels_last = dimensions > 1 && (has_channels_last(input) || has_channels_last(weight));
  const Space given = space_of(input.sizes().slice(2), dimensions, 1);
  const Space more = arguments.transposed ? space_of(arguments.output_padding, dimensions, 0) : Space{};
  for (size_t d = 0; d < 3; ++d) {
    const int64_t reach = geometry.dilation[d] * (geometry.kernel[d] - 1) + 1;
    if (arguments.transposed) {
      geometry.output[d] = given[d];
      geometry.input[d] = (given[d] - 1) * geometry.stride[d] - 2 * geometry.padding[d] + reach + more[d];
      if (geometry.input[d] < 1 || more[d] >= std::max(geometry.stride[d], geometry.dilation[d]))
        return std::nullopt;
    } else {
      geometry.input[d] = given[d];
      if (given[d] + 2 * geometry.padding[d] < reach) return std::nullopt;
      geometry.output[d] = (given[d] + 2 * geometry.padding[d] - reach) / geometry.stride[d] + 1;
    }
  }
  return geometry;
}

std::vector<int64_t> sizes_of(const at::Tensor& input, int64_t channels, const Space& space) {
  std::vector<int64_t> sizes = {input.size(0), channels};
  sizes.insert(sizes.end(), space.end() - (input.dim() - 2), space.end());
  return sizes;
}

std::vector<Space> places_of_taps(const Geometry& of) {
  std::vector<Space> taps = places_of(of.kernel);
  for (Space& tap : taps)
    for (size_t d = 0; d < 3; ++d) tap[d] = tap[d] * of.dilation[d] - of.padding[d];
  return taps;
}

Phase::Phase(const Geometry& of, const Space& remainder) {
  std::array<std::vector<Space>, 3> of_dimension;  // {tap, what it adds to the position}
  for (size_t d = 0; d < 3; ++d) {
    first[d] = remainder[d];
    positions[d] = (of.input[d] - remainder[d] + of.stride[d] - 1) / of.stride[d];
    for (int64_t tap = 0; tap < of.kernel[d]; ++tap) {
      const int64_t at = remainder[d] + of.padding[d] - tap * of.dilation[d];
      if (at % of.stride[d] == 0) of_dimension[d].push_back({tap, at / of.stride[d], 0});
    }
  }
  for (const Space& i : of_dimension[0]) {
    for (const Space& j : of_dimension[1]) {
      for (const Space& k : of_dimension[2]) {
        taps.push_back({i[1], j[1], k[1]});
        tap_numbers.push_back((i[0] * of.kernel[1] + j[0]) * of.kernel[2] + k[0]);
      }
    }
  }
}

}  // namespace tutti::kernels
