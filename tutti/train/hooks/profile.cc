#include "tutti/train/hooks/profile.h"

#include <fstream>
#include <utility>

#include <torch/csrc/autograd/profiler_legacy.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::hooks {
namespace {

class Profile final : public Hook {
 public:
  Profile(StepRange steps, std::string file) : steps_(steps), file_(std::move(file)) {}

  void before_step(Training& training) override {
    if (training.step != steps_.begin) return;
    out_.open(file_);
    if (!out_)
      fail(ErrorKind::InvalidArgument, "the trace {} cannot be written; give another --logdir", file_);
    recording_ = std::make_unique<torch::autograd::profiler::RecordProfile>(out_);
  }

  void after_step(Training& training, const StepResult&) override {
    if (recording_ && training.step >= steps_.end) finish(training);
  }

  void end(Training& training) override {
    if (recording_) finish(training);
  }

  void on_error(Training&, const std::exception&) noexcept override { recording_.reset(); }

 private:
  void finish(const Training& training) {
    recording_.reset();  // writes
    out_.close();
    training.context.log().info(
        "trace of the steps {} to {} in {}: open it in ui.perfetto.dev or chrome://tracing", steps_.begin,
        training.step - 1, file_);
  }

  const StepRange steps_;
  const std::string file_;
  std::ofstream out_;
  std::unique_ptr<torch::autograd::profiler::RecordProfile> recording_;
};

}  // namespace

StepRange parse_step_range(const std::string& text) {
  const auto dots = text.find("..");
  const auto begin = parse_int(text.substr(0, dots));
  const auto end = dots == std::string::npos ? begin : parse_int(text.substr(dots + 2));
  if (begin && end && dots == std::string::npos && *begin >= 0) return {*begin, *begin + 1};
  if (!begin || !end || *begin < 0 || *end <= *begin) {
    fail(ErrorKind::InvalidArgument,
         "'{}' are no steps: write 10 for step 10, 10..12 for the steps 10 and 11", text);
  }
  return {*begin, *end};
}

std::unique_ptr<Hook> profile(StepRange steps, std::string file) {
  return std::make_unique<Profile>(steps, std::move(file));
}

}  // namespace tutti::hooks
