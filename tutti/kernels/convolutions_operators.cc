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

#include <ATen/TracerMode.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/_convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "tutti/kernels/convolution_geometry.h"
#include "tutti/kernels/convolution_weights.h"
#include "tutti/kernels/convolutions.h"
#include "tutti/kernels/images.h"
#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"

namespace tutti::kernels {
namespace {

using OptionalTensor = c10::optional<at::Tensor>;  // std::optional in newer versions of LibTorch

Images output_images(const Geometry& of) {
  return {of.output, of.output_channels * of.groups, of.channels_last};
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

// The images that a convolution, or the gradient by its input, reads and the sums that it writes.
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
  const int64_t cost = of.images * size_of(sides.positions) * sides.channels *
                       std::max<int64_t>(1, matrix.gather().terms_count());
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
  // Between the positions that a short kernel reaches, all is 0.
  const bool writes_all = bias.defined() || size_of(of.kernel) >= size_of(of.stride);
  if (!writes_all) out.zero_();
  for (const Phase& phase : phases) {
    if (size_of(phase.positions) == 0 || (phase.taps.empty() && !writes_all)) continue;
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

// Returns the geometry if the operator is ours.
std::optional<Geometry> our_convolution(std::string_view name, const at::Tensor& input,
                                        const at::Tensor& weight, const at::Tensor& bias,
                                        const ConvolutionArguments& arguments) {
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

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                       bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  // The tracer of TorchScript records _convolution, which LibTorch's kernel calls.
  if (at::tracer::impl::is_dispatch_enabled())
    return at::_convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                            groups, false, false, true, true);
  const at::Tensor added = bias ? *bias : at::Tensor();
  const auto geometry = our_convolution("aten::convolution", input, weight, added,
                                        {stride, padding, dilation, transposed, output_padding, groups});
  if (geometry) return computed(*geometry, input, weight, added, transposed);
  return at::compositeexplicitautograd::convolution(input, weight, bias, stride, padding, dilation,
                                                    transposed, output_padding, groups);
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
