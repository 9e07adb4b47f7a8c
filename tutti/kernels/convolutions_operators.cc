// The operators of which LibTorch makes all layers that convolve: in 1, 2 and 3 dimensions, transposed, with
// groups, dilation and bias, contiguous and with channels last.
//
// | operator             | types                            |
// |----------------------|----------------------------------|
// | convolution          | float, double, bfloat16, float16 |
// | _convolution         | float, double, bfloat16, float16 |
// | convolution_backward | float, double, bfloat16, float16 |
//
// All tensors of a call have one type. Other types and wrong shapes go to LibTorch's kernels; complex and
// sparse tensors are remembered as not covered. Empty tensors go there too.
#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ops/_convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "tutti/kernels/convolutions.h"
#include "tutti/kernels/images.h"
#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"

namespace tutti::kernels {
namespace {

using OptionalTensor = c10::optional<at::Tensor>;  // std::optional in newer versions of LibTorch

// A convolution from the larger images, its input, to the smaller ones, its output. If it is transposed, the
// input of the operator is the output of this one.
struct Geometry {
  Space stride;
  Space padding;
  Space dilation;
  Space kernel;
  Space input;   // sizes
  Space output;  // sizes
  int64_t images;
  int64_t groups;
  int64_t input_channels;   // of a group
  int64_t output_channels;  // of a group
  bool channels_last;
};

// The arguments of the operator.
struct Arguments {
  at::IntArrayRef stride;
  at::IntArrayRef padding;
  at::IntArrayRef dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  int64_t groups;
};

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

at::MemoryFormat format_of(const at::Tensor& tensor, bool channels_last) {
  if (!channels_last) return at::MemoryFormat::Contiguous;
  return tensor.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

// Returns the geometry, or nullopt if the arguments do not fit each other, which LibTorch then reports.
std::optional<Geometry> geometry_of(const at::Tensor& input, const at::Tensor& weight,
                                    const Arguments& arguments) {
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

Images output_images(const Geometry& of) {
  return {of.output, of.output_channels * of.groups, of.channels_last};
}

// The taps of the kernel, as places relative to the one of a position.
std::vector<Space> places_of_taps(const Geometry& of) {
  std::vector<Space> taps = places_of(of.kernel);
  for (Space& tap : taps)
    for (size_t d = 0; d < 3; ++d) tap[d] = tap[d] * of.dilation[d] - of.padding[d];
  return taps;
}

// Computes all blocks of `job` for each group; `group_of` returns the job of one group.
template <class Job, class GroupOf>
void compute_groups(const Geometry& of, const Job& job, int64_t cost, const GroupOf& group_of) {
  const Cut cut = cut_of(job, std::max<int64_t>(1, threads() / of.groups));
  in_parallel(of.groups * cut.count(), cost / cut.count(), [&](int64_t first, int64_t last) {
    while (first < last) {
      const int64_t group = first / cut.count();
      const int64_t end = std::min(last, (group + 1) * cut.count());
      compute(group_of(job, group), cut, first - group * cut.count(), end - group * cut.count());
      first = end;
    }
  });
}

int64_t cost_of_group(const Geometry& of) {
  return of.images * of.input_channels * of.output_channels * size_of(of.kernel) * size_of(of.output);
}

// Copies weights (output channels of all groups, input channels, taps) so that element (o, i, t) goes to
// to[o * steps[0] + i + t * steps[1]], with o counted within its group and `group_step` between groups.
template <class T>
void arrange_weights(const Geometry& of, const at::Tensor& weight, T* to, std::array<int64_t, 2> steps,
                     int64_t group_step) {
  const bool last = of.channels_last && weight.is_contiguous(format_of(weight, true));
  const at::Tensor given = last ? weight : weight.contiguous();
  const T* const from = given.data_ptr<T>();
  const int64_t taps = size_of(of.kernel);
  const int64_t channels = of.input_channels;
  in_parallel(of.groups * of.output_channels, channels * taps, [&](int64_t first, int64_t end) {
    for (int64_t o = first; o < end; ++o) {
      const T* const row = from + o * channels * taps;
      T* const to_row = to + o / of.output_channels * group_step + o % of.output_channels * steps[0];
      for (int64_t t = 0; t < taps; ++t) {
        if (last || taps == 1)
          std::copy_n(row + t * channels, channels, to_row + t * steps[1]);
        else
          for (int64_t i = 0; i < channels; ++i) to_row[t * steps[1] + i] = row[i * taps + t];
      }
    }
  });
}

// Copies `from` (groups, taps, input channels, output channels of a group) to contiguous weights.
template <class T>
void arrange_gradient(const Geometry& of, const T* from, T* to) {
  constexpr int64_t kTogether = 64 / sizeof(T);  // the elements of a line of the cache
  const int64_t taps = size_of(of.kernel);
  const int64_t parts = (of.output_channels + kTogether - 1) / kTogether;
  const int64_t terms = of.input_channels * taps;
  in_parallel(of.groups * parts, terms * kTogether, [&](int64_t first, int64_t end) {
    for (int64_t part = first; part < end; ++part) {
      const int64_t group = part / parts;
      const int64_t o = part % parts * kTogether;
      const int64_t count = std::min(kTogether, of.output_channels - o);
      const T* const lines = from + group * terms * of.output_channels + o;
      T* const rows = to + (group * of.output_channels + o) * terms;
      for (int64_t i = 0; i < of.input_channels; ++i)
        for (int64_t t = 0; t < taps; ++t)
          for (int64_t j = 0; j < count; ++j)
            rows[j * terms + i * taps + t] = lines[(t * of.input_channels + i) * of.output_channels + j];
    }
  });
}

// Returns true if vectors of the images may be read where they are.
bool reads_vectors(const Geometry& of, const Space& stride) {
  return stride == Space{1, 1, 1} && size_of(of.kernel) > 1;
}

// Returns the offset of each position of a space, whose neighbours are `steps` apart in each dimension.
std::vector<int64_t> offsets_of(const Space& sizes, const Space& steps) {
  std::vector<int64_t> offsets;
  for (const Space& place : places_of(sizes))
    offsets.push_back(place[0] * steps[0] + place[1] * steps[1] + place[2] * steps[2]);
  return offsets;
}

// What a convolution, or its gradient by input, reads and writes.
struct Sides {
  Space from;             // sizes
  int64_t from_channels;  // of a group
  Space positions;        // for which sums are computed
  Space stride;
  std::vector<Space> taps;
  int64_t channels;  // of a group of the result
};

// Computes sums over the terms of `sides`, with the given weights of a group (channel of the result, term).
// `begin` is where the first position of the result is, and `steps` are the distances of the others.
template <class T>
void correlate(const Geometry& of, const Sides& sides, const Surrounded<T>& from, Matrix<const T> weights,
               const at::Tensor& bias, const Images& images, T* begin, const Space& steps) {
  const ConvolutionTerms<T> matrix(from, sides.from_channels, sides.positions, sides.stride, sides.taps);
  const std::vector<int64_t> places = offsets_of(sides.positions, steps);
  const bool leaves_out = are_left_out(sides.channels);
  Columns columns;
  std::vector<int64_t> kind_of;
  std::vector<KindOfPosition> kinds;
  if (leaves_out) {
    const Reach reach(sides.from, sides.positions, sides.stride, sides.taps);
    kind_of = reach.kind_of_positions();
    kinds = matrix.kinds(reach, sides.from_channels);
  } else {
    columns = matrix.columns(sides.channels, sides.taps.size());
  }
  const at::Tensor biases = bias.defined() ? bias.contiguous() : bias;
  const Correlation<T> all{matrix.gather(), leaves_out ? nullptr : &columns,
                           kinds,           kind_of,
                           weights,         sides.channels,
                           begin,           images.image,
                           images.channel,  steps[2],
                           places,          biases.defined() ? biases.data_ptr<T>() : nullptr};
  const int64_t cost = of.images * size_of(sides.positions) * sides.channels * matrix.gather().terms_count();
  compute_groups(of, all, cost, [&](Correlation<T> one, int64_t group) {
    one.from.data += group * sides.from_channels * from.layout().channel;
    one.weights.data += group * matrix.gather().terms_count() * sides.channels;
    one.out += group * sides.channels * images.channel;
    if (one.bias != nullptr) one.bias += group * sides.channels;
    return one;
  });
}

// The output of the convolution.
template <class T>
at::Tensor forward(const Geometry& of, const at::Tensor& input, const at::Tensor& weight,
                   const at::Tensor& bias, at::IntArrayRef sizes) {
  const Sides sides{of.input,  of.input_channels,  of.output,
                    of.stride, places_of_taps(of), of.output_channels};
  const bool leaves_out = are_left_out(of.output_channels);
  Margins margins;
  if (!leaves_out) margins.cover(of.input, of.output, of.stride, sides.taps);
  const bool last = leaves_out && of.channels_last;
  const Surrounded<T> from(input.contiguous(format_of(input, last)), of.input, last, margins,
                           !leaves_out && reads_vectors(of, of.stride));
  // (groups, output channels, taps, input channels)
  const int64_t terms = size_of(of.kernel) * of.input_channels;
  const at::Tensor weights = at::empty(weight.sizes(), weight.options());
  arrange_weights(of, weight, weights.data_ptr<T>(), {terms, of.input_channels}, of.output_channels * terms);
  at::Tensor out = at::empty(sizes, input.options(), format_of(input, last));
  const Images images(of.output, of.output_channels * of.groups, last);
  correlate<T>(of, sides, from, {weights.data_ptr<T>(), terms, 1}, bias, images, out.data_ptr<T>(),
               images.steps);
  return out.contiguous(format_of(input, of.channels_last));
}

// The places of the input that have the remainder `phase` when they, plus the padding, are divided by the
// stride. All of them meet the same taps.
struct Phase {
  Phase(const Geometry& of, const Space& remainder) {
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

  Space first;
  Space positions;
  std::vector<Space> taps;
  std::vector<int64_t> tap_numbers;
};

// The gradient by the input, or the output of a transposed convolution, which has a bias.
template <class T>
at::Tensor by_input(const Geometry& of, const at::Tensor& gradient, const at::Tensor& weight,
                    const at::Tensor& bias, at::IntArrayRef sizes) {
  const bool leaves_out = are_left_out(of.input_channels);
  std::vector<Phase> phases;
  Margins margins;
  for (const Space& remainder : places_of(of.stride)) {
    phases.emplace_back(of, remainder);
    if (!leaves_out) margins.cover(of.output, phases.back().positions, Space{1, 1, 1}, phases.back().taps);
  }
  const bool last = leaves_out && of.channels_last;
  const Surrounded<T> from(gradient.contiguous(format_of(gradient, last)), of.output, last, margins,
                           !leaves_out && reads_vectors(of, Space{1, 1, 1}));
  const int64_t tap_step = of.output_channels * of.input_channels;
  const at::Tensor weights =
      at::empty({of.groups, size_of(of.kernel), of.output_channels, of.input_channels}, weight.options());
  arrange_weights(of, weight, weights.data_ptr<T>(), {of.input_channels, tap_step},
                  size_of(of.kernel) * tap_step);
  at::Tensor out = at::empty(sizes, gradient.options(), format_of(gradient, last));
  const Images images(of.input, of.input_channels * of.groups, last);
  for (const Phase& phase : phases) {
    if (size_of(phase.positions) == 0) continue;
    const at::Tensor numbers = at::tensor(phase.tap_numbers, at::TensorOptions(at::kLong));
    const bool all_taps = static_cast<int64_t>(phase.taps.size()) == weights.size(1);
    const at::Tensor some = all_taps ? weights : weights.index_select(1, numbers);
    Space steps = images.steps;
    int64_t begin = 0;
    for (size_t d = 0; d < 3; ++d) {
      begin += phase.first[d] * steps[d];
      steps[d] *= of.stride[d];
    }
    const Sides sides{of.output,      of.output_channels, phase.positions,
                      Space{1, 1, 1}, phase.taps,         of.input_channels};
    correlate<T>(of, sides, from, {some.data_ptr<T>(), 1, of.input_channels}, bias, images,
                 out.data_ptr<T>() + begin, steps);
  }
  return out.contiguous(format_of(gradient, of.channels_last));
}

template <class T>
at::Tensor by_weight(const Geometry& of, const at::Tensor& input, const at::Tensor& gradient,
                     const at::Tensor& weight) {
  const at::MemoryFormat format = format_of(gradient, of.channels_last);
  const std::vector<Space> places = places_of_taps(of);
  const bool leaves_out = are_left_out_of_gradient(of.input_channels);
  std::vector<uint8_t> inside;
  Margins margins;
  margins.cover(of.input, of.output, of.stride, places);
  if (leaves_out && margins.needed()) inside = Reach(of.input, of.output, of.stride, places).inside();
  if (leaves_out) margins = {};
  const Surrounded<T> from(input.contiguous(format), of.input, of.channels_last, margins, false);
  const ConvolutionTerms<T> matrix(from, of.input_channels, of.output, of.stride, places);
  const at::Tensor right = gradient.contiguous(format);
  const int64_t taps = size_of(of.kernel);
  at::Tensor out = at::empty({of.groups, taps, of.input_channels, of.output_channels}, input.options());
  const Images images = output_images(of);
  const WeightGradient<T> all{matrix.gather(),   inside,         of.input_channels,  right.data_ptr<T>(),
                              images.image,      images.channel, of.output_channels, of.channels_last,
                              out.data_ptr<T>(), nullptr};
  compute_groups(of, all, cost_of_group(of), [&](WeightGradient<T> one, int64_t group) {
    one.from.data += group * of.input_channels * from.layout().channel;
    one.gradient += group * of.output_channels * images.channel;
    one.out += group * one.from.terms_count() * of.output_channels;
    return one;
  });
  at::Tensor result = at::empty(weight.sizes(), weight.options());
  arrange_gradient(of, out.data_ptr<T>(), result.data_ptr<T>());
  return result.contiguous(weight.suggest_memory_format());
}

// The sums of the channels of `gradient`, whose images have the given sizes.
template <class T>
at::Tensor by_bias(const Geometry& of, const Space& sizes, const at::Tensor& gradient) {
  const at::Tensor right = gradient.contiguous(format_of(gradient, of.channels_last));
  at::Tensor out = at::empty({gradient.size(1)}, gradient.options());
  const Images images(sizes, gradient.size(1), of.channels_last);
  const std::vector<int64_t> places(static_cast<size_t>(size_of(sizes)), 0);
  WeightGradient<T> all{};
  all.from.images = of.images;
  all.from.positions = places;
  all.gradient = right.data_ptr<T>();
  all.image_step = images.image;
  all.channel_step = images.channel;
  all.channels = gradient.size(1);
  all.channels_last = of.channels_last;
  all.bias_out = out.data_ptr<T>();
  const Cut cut = cut_of(all, threads());
  in_parallel(cut.count(), gradient.numel() / cut.count(),
              [&](int64_t first, int64_t last) { compute(all, cut, first, last); });
  return out;
}

std::vector<int64_t> sizes_of(const at::Tensor& input, int64_t channels, const Space& space) {
  std::vector<int64_t> sizes = {input.size(0), channels};
  sizes.insert(sizes.end(), space.end() - (input.dim() - 2), space.end());
  return sizes;
}

// Returns the geometry if the operator is ours.
std::optional<Geometry> our_convolution(std::string_view name, const at::Tensor& input,
                                        const at::Tensor& weight, const at::Tensor& bias,
                                        const Arguments& arguments) {
  const std::optional<Geometry> geometry = geometry_of(input, weight, arguments);
  if (!geometry || !are_ours_or_narrow(name, input, weight, bias.defined() ? bias : weight))
    return std::nullopt;
  const int64_t channels =
      arguments.transposed ? geometry->input_channels * geometry->groups : weight.size(0);
  if (bias.defined() && (bias.dim() != 1 || bias.size(0) != channels)) return std::nullopt;
  return geometry;
}

at::Tensor computed(const Geometry& of, const at::Tensor& input, const at::Tensor& weight,
                    const at::Tensor& bias, bool transposed) {
  if (is_narrow(input))
    return computed(of, input.to(at::kFloat), weight.to(at::kFloat),
                    bias.defined() ? bias.to(at::kFloat) : bias, transposed)
        .to(input.scalar_type());
  const bool floats = input.scalar_type() == at::kFloat;
  if (transposed) {
    const std::vector<int64_t> sizes = sizes_of(input, of.input_channels * of.groups, of.input);
    return floats ? by_input<float>(of, input, weight, bias, sizes)
                  : by_input<double>(of, input, weight, bias, sizes);
  }
  const std::vector<int64_t> sizes = sizes_of(input, of.output_channels * of.groups, of.output);
  return floats ? forward<float>(of, input, weight, bias, sizes)
                : forward<double>(of, input, weight, bias, sizes);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                       bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  const at::Tensor added = bias ? *bias : at::Tensor();
  const auto geometry = our_convolution("aten::convolution", input, weight, added,
                                        {stride, padding, dilation, transposed, output_padding, groups});
  if (geometry) return computed(*geometry, input, weight, added, transposed);
  return at::compositeexplicitautograd::convolution(input, weight, bias, stride, padding, dilation,
                                                    transposed, output_padding, groups);
}

at::Tensor traced_convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                              at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                              bool transposed, at::IntArrayRef output_padding, int64_t groups, bool benchmark,
                              bool deterministic, bool cudnn_enabled, bool allow_tf32) {
  const at::Tensor added = bias ? *bias : at::Tensor();
  const auto geometry = our_convolution("aten::convolution", input, weight, added,
                                        {stride, padding, dilation, transposed, output_padding, groups});
  if (geometry) return computed(*geometry, input, weight, added, transposed);
  return at::compositeexplicitautograd::_convolution(input, weight, bias, stride, padding, dilation,
                                                     transposed, output_padding, groups, benchmark,
                                                     deterministic, cudnn_enabled, allow_tf32);
}

using ConvolutionGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

template <class T>
ConvolutionGradients gradients_of(const Geometry& of, const at::Tensor& gradient, const at::Tensor& input,
                                  const at::Tensor& weight, bool transposed,
                                  const std::array<bool, 3>& wanted) {
  at::Tensor of_input;
  at::Tensor of_weight;
  at::Tensor of_bias;
  if (wanted[0])
    of_input = transposed ? forward<T>(of, gradient, weight, {}, input.sizes())
                          : by_input<T>(of, gradient, weight, {}, input.sizes());
  if (wanted[1])
    of_weight =
        transposed ? by_weight<T>(of, gradient, input, weight) : by_weight<T>(of, input, gradient, weight);
  if (wanted[2]) of_bias = by_bias<T>(of, transposed ? of.input : of.output, gradient);
  return {of_input, of_weight, of_bias};
}

ConvolutionGradients gradients(const Geometry& of, const at::Tensor& gradient, const at::Tensor& input,
                               const at::Tensor& weight, bool transposed, const std::array<bool, 3>& wanted) {
  if (is_narrow(input)) {
    const auto wide = gradients_of<float>(of, gradient.to(at::kFloat), input.to(at::kFloat),
                                          weight.to(at::kFloat), transposed, wanted);
    const auto narrow = [&](const at::Tensor& of_one) {
      return of_one.defined() ? of_one.to(input.scalar_type()) : of_one;
    };
    return {narrow(std::get<0>(wide)), narrow(std::get<1>(wide)), narrow(std::get<2>(wide))};
  }
  return input.scalar_type() == at::kFloat
             ? gradients_of<float>(of, gradient, input, weight, transposed, wanted)
             : gradients_of<double>(of, gradient, input, weight, transposed, wanted);
}

ConvolutionGradients convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                          const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
                                          at::IntArrayRef stride, at::IntArrayRef padding,
                                          at::IntArrayRef dilation, bool transposed,
                                          at::IntArrayRef output_padding, int64_t groups,
                                          std::array<bool, 3> wanted) {
  const auto geometry = our_convolution("aten::convolution_backward", input, weight, {},
                                        {stride, padding, dilation, transposed, output_padding, groups});
  if (geometry && are_ours_or_narrow("aten::convolution_backward", input, gradient)) {
    const int64_t channels = groups * (transposed ? geometry->input_channels : geometry->output_channels);
    if (gradient.sizes() == sizes_of(input, channels, transposed ? geometry->input : geometry->output))
      return gradients(*geometry, gradient, input, weight, transposed, wanted);
  }
  return at::compositeexplicitautograd::convolution_backward(gradient, input, weight, bias_sizes, stride,
                                                             padding, dilation, transposed, output_padding,
                                                             groups, wanted);
}

}  // namespace

void register_convolutions(Registrar& library) {
  library.impl("convolution", convolution);
  library.impl("_convolution", traced_convolution);
  library.impl("convolution_backward", convolution_backward);
}

}  // namespace tutti::kernels
