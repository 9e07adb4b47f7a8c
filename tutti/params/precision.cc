#include "tutti/params/precision.h"

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti {
namespace {

bool is_of_images(const torch::Tensor& parameter) { return parameter.dim() == 4; }

}  // namespace

Precision parse_precision(const std::string& text) {
  if (text == "fp32") return Precision::Float32;
  if (text == "bf16") return Precision::BFloat16;
  fail(ErrorKind::InvalidArgument, "--precision {}: use fp32 or bf16", text);
}

Layout layout_for(const Context& context, const torch::nn::Module& module) {
  const std::string& asked = context.config().compute.layout;
  if (asked == "contiguous") return Layout::Contiguous;
  if (asked == "channels-last") return Layout::ChannelsLast;
  const auto all = module.parameters();
  return std::any_of(all.begin(), all.end(), is_of_images) ? Layout::ChannelsLast : Layout::Contiguous;
}

void require_layout(const Context& context, const Parameters& parameters) {
  const std::string& asked = context.config().compute.layout;
  const bool lies_last = parameters.layout() == Layout::ChannelsLast;
  if (asked == "auto" || lies_last == (asked == "channels-last")) return;
  for (const auto& view : parameters.trained()) {
    if (!is_of_images(view.tensor)) continue;
    fail(ErrorKind::InvalidArgument,
         "--layout {}: the program has placed the parameters, such as {}, {}. Make them as the flag says: "
         "Parameters(net, {{.layout = tutti::layout_for(context, net)}})",
         asked, view.name, lies_last ? "with their channels last" : "contiguously");
  }
}

}  // namespace tutti
