#include "tutti/train/strategies/evaluation_only.h"

#include "tutti/base/check.h"

namespace tutti {

Team::Start EvaluationOnly::start(Session& session, const std::vector<std::string>& /*plan*/) {
  embedding::Tables& tables = replica_.tables();
  if (!tables.empty())
    tables.place(*group_.connected(), context_.config().training.seed, session.lanes(),
                 replica_.optimizer().options());
  return {};
}

StepResult EvaluationOnly::step(int64_t step, const Wishes& /*wishes*/, data::BatchQueue& /*queue*/,
                                const LaneObserver& /*observe*/) {
  TUTTI_CHECK(false, "an evaluator was asked to make step {}", step);
  return {};
}

}  // namespace tutti
