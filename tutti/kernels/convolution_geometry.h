#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/kernels/convolutions.h"
#include "tutti/kernels/images.h"

// Finds the sizes and taps that the arguments of a convolution ask for.
namespace tutti::kernels {

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
struct ConvolutionArguments {
  at::IntArrayRef stride;
  at::IntArrayRef padding;
  at::IntArrayRef dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  int64_t groups;
};

// Returns the geometry, or nullopt if the arguments do not fit each other, which LibTorch then reports.
std::optional<Geometry> geometry_of(const at::Tensor& input, const at::Tensor& weight,
                                    const ConvolutionArguments& arguments);

// The format of a tensor of so many dimensions, with channels last or contiguous.
at::MemoryFormat format_of(const at::Tensor& tensor, bool channels_last);

// The sizes of a tensor like `input` with other channels and another space.
std::vector<int64_t> sizes_of(const at::Tensor& input, int64_t channels, const Space& space);

// The taps of the kernel, as places relative to the one of a position.
std::vector<Space> places_of_taps(const Geometry& of);

// The places of the input that have the same remainder when they, plus the padding, are divided by the
// stride. All of them meet the same taps.
struct Phase {
  Phase(const Geometry& of, const Space& remainder);

  Space first;
  Space positions;
  std::vector<Space> taps;
  std::vector<int64_t> tap_numbers;
};

}  // namespace tutti::kernels
