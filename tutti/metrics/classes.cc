#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/kernels/same_functions.h"
#include "tutti/metrics/inputs.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/running_mean.h"

// Metrics of class numbers: accuracy and perplexity. An example may have many class numbers, such as a text
// with one for each token.
namespace tutti::metrics {
namespace {

// How the predictions and labels of a metric are laid out.
struct ClassColumns {
  std::string metric;  // its name, for errors
  std::string label;
  std::string weights = {};
  std::optional<int64_t> class_dim = {};
  int64_t ignore = 0;
};

// Predictions and labels with one layout. A position is an example, or one of its parts, such as a token.
struct Positions {
  torch::Tensor scores;   // (n, classes, ...), or (n) for one score per example
  torch::Tensor labels;   // (n, ...) in double precision
  torch::Tensor counted;  // (n, ...): those that have a label and a weight
  torch::Tensor weights;  // (n), undefined without weights
};

std::vector<int64_t> sizes_without(const torch::Tensor& tensor, int64_t dim) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.erase(sizes.begin() + dim);
  return sizes;
}

// Returns the dimension of the classes. The predictions have two or more dimensions.
int64_t class_dim_of(const ClassColumns& columns, const torch::Tensor& scores, const torch::Tensor& labels) {
  const int64_t last = scores.dim() - 1;
  if (columns.class_dim) {
    const int64_t given = *columns.class_dim;
    const int64_t dim = given < 0 ? given + scores.dim() : given;
    if (dim < 1 || dim > last)
      fail(ErrorKind::InvalidArgument,
           "{}: .class_dim is {}, but predictions of {} dimensions have their classes in 1 to {}, or -1",
           columns.metric, given, scores.dim(), last);
    return dim;
  }
  const bool fits_second = labels.sizes() == sizes_without(scores, 1);
  const bool fits_last = labels.sizes() == sizes_without(scores, last);
  if (fits_second && fits_last && last > 1)
    fail(ErrorKind::InvalidArgument,
         "{}: predictions of shape [{}] may have their classes in dimension 1 or in the last one: set "
         ".class_dim to 1, or to -1 for texts (n, tokens, classes)",
         columns.metric, fmt::join(scores.sizes(), ", "));
  return fits_last ? last : 1;
}

// Reads and checks the batch. Throws InvalidArgument if it is not valid. Requires that it has examples.
Positions positions_of(const ClassColumns& columns, const torch::Tensor& prediction, const Batch& batch) {
  Checks checks;
  Positions all;
  all.weights = weights_of(columns.metric, columns.weights, batch);
  checks.weights(all.weights, columns.weights);
  all.scores = without_column(prediction);
  torch::Tensor labels = batch[columns.label];
  if (all.scores.dim() <= 2) labels = without_column(labels);
  if (all.scores.dim() == 0) fail_shapes(columns.metric, prediction, columns.label, labels);
  if (all.scores.dim() > 1) {
    const bool is_one_hot = labels.sizes() == all.scores.sizes();
    const int64_t dim = class_dim_of(columns, all.scores, labels);
    all.scores = all.scores.movedim(dim, 1);
    if (is_one_hot) labels = labels.movedim(dim, 1);
    labels = classes_of(columns.label, labels, all.scores, all.weights, checks);
  }
  const bool has_classes = all.scores.dim() > 1;
  if (labels.sizes() != (has_classes ? sizes_without(all.scores, 1) : all.scores.sizes().vec()))
    fail_shapes(columns.metric, prediction, columns.label, batch[columns.label]);
  all.labels = labels.to(torch::kDouble);
  all.counted = all.labels.isnan().logical_not() & all.labels.ne(static_cast<double>(columns.ignore));
  if (all.weights.defined()) all.counted = all.counted & per_position(all.weights, all.counted).gt(0);
  const int64_t last = has_classes ? all.scores.size(1) - 1 : 1;
  const torch::Tensor is_class =
      all.labels.ge(0) & all.labels.le(static_cast<double>(last)) & all.labels.eq(all.labels.floor());
  checks.none(is_class.logical_not() & all.counted,
              fmt::format("labels in '{}' are no class numbers from 0 to {}, nor {}, which is not counted",
                          columns.label, last, columns.ignore));
  const torch::Tensor is_nan = has_classes ? all.scores.isnan().any(1) : all.scores.isnan();
  checks.none(is_nan & all.counted, "predictions are NaN");
  checks.require(columns.metric);
  return all;
}

// A mean over positions, with options that both metrics have.
class OverPositions : public Metric {
 public:
  template <class Options>
  OverPositions(const char* usual_name, std::string label, const Options& options)
      : columns_{.metric = options.name.empty() ? usual_name : options.name,
                 .label = std::move(label),
                 .weights = options.weights,
                 .class_dim = options.class_dim,
                 .ignore = options.ignore} {}

  const std::string& name() const override { return columns_.metric; }
  std::vector<std::string> columns() const override { return {columns_.label, columns_.weights}; }
  std::vector<double> counters() const override { return mean_.counters(); }
  void merge(std::span<const double> counters) override { mean_.merge(counters); }
  std::optional<double> value() const override { return mean_.value(); }
  std::string reason() const override { return reason_without_examples(columns_.weights); }
  void reset() override { mean_ = {}; }

 protected:
  ClassColumns columns_;
  RunningMean mean_;
};

class Accuracy final : public OverPositions {
 public:
  Accuracy(std::string label, const AccuracyOptions& options)
      : OverPositions("accuracy", std::move(label), options), options_(options) {}

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const torch::NoGradGuard no_gradients;
    if (batch.size() == 0) return;
    const Positions all = positions_of(columns_, prediction, batch);
    const torch::Tensor answers =
        all.scores.dim() == 1 ? all.scores > options_.threshold : all.scores.argmax(1);
    // Compares in double precision, since a type for few classes might not represent all answers.
    const torch::Tensor correct = answers.to(torch::kDouble).eq(all.labels) & all.counted;
    if (all.weights.defined())
      mean_.add(per_example(correct) * all.weights, per_example(all.counted) * all.weights);
    else
      mean_.add(correct.sum(), all.counted.sum());
  }

  std::unique_ptr<Metric> clone() const override {
    return std::make_unique<Accuracy>(columns_.label, options_);
  }

 private:
  static torch::Tensor per_example(const torch::Tensor& positions) {
    return positions.reshape({positions.size(0), -1}).sum(1).to(torch::kDouble);
  }

  AccuracyOptions options_;
};

class Perplexity final : public OverPositions {
 public:
  Perplexity(std::string label, const PerplexityOptions& options)
      : OverPositions("perplexity", std::move(label), options), options_(options) {}

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const torch::NoGradGuard no_gradients;
    if (batch.size() == 0) return;
    const Positions all = positions_of(columns_, prediction, batch);
    if (all.scores.dim() == 1) {
      fail(ErrorKind::InvalidArgument,
           "{}: predictions of shape [{}] have no dimension with the classes; expected logits (n, ..., "
           "classes)",
           columns_.metric, fmt::join(prediction.sizes(), ", "));
    }
    const torch::Tensor tokens = all.counted.flatten().nonzero().squeeze(1);
    if (tokens.numel() == 0) return;
    const torch::Tensor losses =
        cross_entropies(all.scores.movedim(1, -1).flatten(0, -2), all.labels.flatten(), tokens);
    if (all.weights.defined()) {
      const torch::Tensor weights = per_position(all.weights, all.counted).flatten().index_select(0, tokens);
      mean_.add(losses * weights, weights);
    } else {
      mean_.add(losses, tokens.numel());
    }
  }

  std::optional<double> value() const override {
    const auto mean = mean_.value();
    return mean ? std::optional(same::exp(*mean)) : std::nullopt;
  }
  std::unique_ptr<Metric> clone() const override {
    return std::make_unique<Perplexity>(columns_.label, options_);
  }

 private:
  // Returns the cross entropies of these rows of logits (tokens, classes), in double precision. Converts only
  // some rows at once, since all together may be large. The result of a row does not depend on the others.
  torch::Tensor cross_entropies(const torch::Tensor& logits, const torch::Tensor& labels,
                                const torch::Tensor& rows) const {
    constexpr int64_t kAtOnce = 1 << 22;  // numbers
    const int64_t count = std::max<int64_t>(1, kAtOnce / std::max<int64_t>(1, logits.size(1)));
    std::vector<torch::Tensor> parts;
    for (const torch::Tensor& some : rows.split(count)) {
      const torch::Tensor of_some = labels.index_select(0, some).to(torch::kLong).unsqueeze(1);
      const torch::Tensor logarithms = logits.index_select(0, some).to(torch::kDouble).log_softmax(1);
      parts.push_back(-logarithms.gather(1, of_some).squeeze(1));
    }
    torch::Tensor losses = at::cat(parts);
    Checks checks;
    checks.none(losses.isnan(), "rows of predictions have an infinite logit, or no finite one");
    checks.require(columns_.metric);
    return losses;
  }

  PerplexityOptions options_;
};

}  // namespace

MetricPtr accuracy(const std::string& label, const AccuracyOptions& options) {
  return std::make_shared<Accuracy>(label, options);
}

MetricPtr perplexity(const std::string& label, const PerplexityOptions& options) {
  return std::make_shared<Perplexity>(label, options);
}

}  // namespace tutti::metrics
