#include "tutti/kernels/operator_list.h"

#include <algorithm>

#include <ATen/core/dispatch/Dispatcher.h>

#include "tutti/kernels/same_kernels.h"

namespace tutti::kernels {
namespace {

// Splits a text at its spaces.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// Overloads of exact operators that add up, in an order that may depend on the processor.
constexpr std::string_view kExceptions[] = {"aten::scatter.reduce",       "aten::scatter.reduce_out",
                                            "aten::scatter.value_reduce", "aten::scatter.value_reduce_out",
                                            "aten::scatter_.reduce",      "aten::scatter_.value_reduce"};

template <class Find>
const OperatorGroup* group_of(std::span<const OperatorGroup> groups, const Find& name) {
  for (const OperatorGroup& group : groups)
    if (std::find(group.names.begin(), group.names.end(), name) != group.names.end()) return &group;
  return nullptr;
}

// Returns true if the operator has no kernel on the CPU, but one for all devices.
bool is_made_of_others(const c10::OperatorName& name) {
  using Key = c10::DispatchKey;
  const auto found = c10::Dispatcher::singleton().findSchema(name);
  if (!found.has_value() || found->hasKernelForDispatchKey(Key::CPU)) return false;
  if (found->hasKernelForDispatchKey(Key::CompositeImplicitAutograd)) return true;
  return name.name.starts_with("aten::") &&
         (found->hasKernelForDispatchKey(Key::CompositeExplicitAutograd) ||
          found->hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional));
}

}  // namespace

// Nothing here multiplies and then adds, which some targets do with one rounding and others with two, and
// nothing adds up in an order that depends on the width of vectors.
std::span<const OperatorGroup> exact_operators() {
  static const std::vector<OperatorGroup> kAll = {
      {"views and shapes",
       words_of(
           "alias as_strided as_strided_scatter conj_physical detach diagonal diagonal_backward "
           "diagonal_scatter expand "
           "lift lift_fresh narrow_copy permute resize resize_as select select_backward select_scatter set "
           "slice "
           "slice_backward slice_inverse slice_scatter split split_with_sizes squeeze t transpose unbind "
           "unfold unsafe_split unsafe_split_with_sizes unsqueeze view view_as_real "
           "_conj _efficientzerotensor _fw_primal _make_dual _neg_view _reshape_alias _unsafe_view")},
      {"copies and new tensors",
       words_of("cat chunk clone constant_pad_nd copy empty empty_like empty_permuted empty_strided eye fill "
                "full full_like new_empty new_empty_strided new_full new_ones new_zeros ones ones_like "
                "reflection_pad1d reflection_pad2d reflection_pad3d repeat replication_pad1d "
                "replication_pad2d replication_pad3d scalar_tensor stack tril tril_indices triu "
                "triu_indices zero zeros zeros_like _chunk_cat _pin_memory _stack _to_copy")},
      {"one rounding",
       words_of("abs addcdiv ceil copysign deg2rad div floor floor_divide frac frexp heaviside mul neg "
                "nextafter rad2deg reciprocal round sgn sign trunc")},
      {"choices", words_of("clamp clamp_max clamp_min cummax cummin hardshrink "
                           "hardshrink_backward hardtanh hardtanh_backward leaky_relu leaky_relu_backward "
                           "maximum minimum nan_to_num relu softshrink_backward threshold "
                           "threshold_backward where _aminmax _cummax_helper _cummin_helper _prelu_kernel")},
      {"piecewise linear functions",
       words_of("hardsigmoid hardsigmoid_backward hardswish hardswish_backward")},
      {"gradients of products and quotients",
       words_of("binary_cross_entropy_backward glu_backward log_sigmoid_backward "
                "sigmoid_backward _prelu_kernel_backward")},
      {"comparisons, logic and integers",
       words_of("all any bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift "
                "bitwise_xor count_nonzero eq equal gcd ge gt is_pinned is_same_size is_set_to isin isinf "
                "isnan isneginf isposinf lcm le logical_and logical_not logical_or logical_xor lt ne signbit "
                "__ilshift__ __irshift__ __lshift__ __rshift__ _assert_async _assert_scalar "
                "_assert_tensor_metadata _is_all_true _is_any_true _local_scalar_dense")},
      {"indices", words_of("channel_shuffle flip gather index index_fill index_select masked_fill "
                           "masked_scatter masked_select native_channel_shuffle nonzero nonzero_static "
                           "pixel_shuffle pixel_unshuffle repeat_interleave roll rot90 scatter take "
                           "_unsafe_index _unsafe_masked_index")},
      {"orders", words_of("argmax argmin bucketize kthvalue median mode nanmedian searchsorted sort topk "
                          "unique_consecutive unique_dim unique_dim_consecutive _unique _unique2")},
      {"largest values of windows",
       words_of("adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d "
                "adaptive_max_pool3d_backward max_pool2d_with_indices_backward "
                "max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d max_unpool3d")},
      {"sums in the order of the elements",
       words_of("adaptive_avg_pool3d adaptive_avg_pool3d_backward avg_pool2d avg_pool2d_backward "
                "avg_pool3d avg_pool3d_backward bincount col2im cumprod cumsum im2col "
                "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
                "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward "
                "scatter_add scatter_reduce trace unfold_backward upsample_nearest1d_backward "
                "upsample_nearest2d_backward upsample_nearest3d_backward _adaptive_avg_pool2d "
                "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
                "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward "
                "_upsample_nearest_exact3d_backward")},
      {"steps that are other operators", words_of("adaptive_avg_pool2d addbmm embedding_renorm renorm vdot "
                                                  "_embedding_bag_backward _fused_sdp_choice")},
      {"nearest neighbours",
       words_of("upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
                "_upsample_nearest_exact2d _upsample_nearest_exact3d")},
      {"losses whose sums are other operators",
       words_of("huber_loss mse_loss mse_loss_backward nll_loss2d_backward "
                "nll_loss_backward smooth_l1_loss")},
      {"choices by random numbers of other operators",
       words_of("multinomial native_dropout native_dropout_backward _masked_scale")},
  };
  return kAll;
}

std::span<const OperatorGroup> operators_not_covered() {
  static const std::vector<OperatorGroup> kAll = {
      {"LAPACK computes it",
       words_of("cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig linalg_inv_ex "
                "linalg_lstsq linalg_lu_factor_ex linalg_qr linalg_solve_triangular ormqr "
                "triangular_solve _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd")},
      {"a Fourier transform of MKL or PocketFFT", words_of("_fft_c2c _fft_c2r _fft_r2c")},
      {"LibTorch interpolates with other roundings on other processors",
       words_of("affine_grid_generator grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d "
                "grid_sampler_3d_backward upsample_bicubic2d upsample_bicubic2d_backward "
                "upsample_linear1d "
                "upsample_linear1d_backward upsample_trilinear3d upsample_trilinear3d_backward")},
      {"LibTorch draws it by functions of the C library",
       words_of("binomial poisson rrelu_with_noise _sample_dirichlet _standard_gamma")},
      {"LibTorch rounds products and sums once or twice", words_of("linalg_cross")},
      {"arithmetic of complex numbers is LibTorch's", words_of("complex polar view_as_complex")},
      {"a special function of LibTorch", words_of("digamma i0 igamma igammac kaiser_window lgamma polygamma "
                                                  "special_i0e special_i1 special_ndtri special_zeta")},
      {"a distance with sums of LibTorch",
       words_of("_cdist_backward _cdist_forward _pdist_backward _pdist_forward")},
      {"LibTorch's own sums and logarithms",
       words_of("batch_norm_backward logaddexp2 logspace put _batch_norm_with_update _ctc_loss "
                "_ctc_loss_backward _logcumsumexp")},
  };
  return kAll;
}

std::string_view listed_name(std::string_view name) {
  constexpr std::string_view kNamespace = "aten::";
  if (name.starts_with(kNamespace)) name.remove_prefix(kNamespace.size());
  name = name.substr(0, name.find('.'));
  if (name.ends_with('_') && !name.ends_with("__")) name.remove_suffix(1);
  return name;
}

OperatorKind kind_of(const c10::OperatorName& name) {
  const std::string full = c10::toString(name);
  const std::vector<std::string> ours = SameKernels::operators();
  if (std::binary_search(ours.begin(), ours.end(), full)) return OperatorKind::Ours;
  const bool is_exception =
      std::find(std::begin(kExceptions), std::end(kExceptions), full) != std::end(kExceptions);
  const bool is_listed = group_of(exact_operators(), listed_name(full)) != nullptr;
  if (full.starts_with("aten::") && is_listed && !is_exception) return OperatorKind::Exact;
  const bool is_known = group_of(operators_not_covered(), listed_name(full)) != nullptr;
  return !is_known && is_made_of_others(name) ? OperatorKind::MadeOfOthers : OperatorKind::NotCovered;
}

std::string_view why_not_covered(const c10::OperatorName& name) {
  const OperatorGroup* const group = group_of(operators_not_covered(), listed_name(name.name));
  return group != nullptr ? group->topic : "LibTorch's kernel may round differently on another processor";
}

}  // namespace tutti::kernels
