#include "tutti/train/strategies/evaluation_only.h"

#include "tutti/base/error.h"

namespace tutti {

Team::Start EvaluationOnly::start(Session& session, const std::vector<std::string>& /*plan*/) {
  if (!replica_.tables().empty())
    rows_.emplace(replica_.tables(), *group_.connected(), context_.config().training.seed, session.lanes(),
                  replica_.optimizer().options());
  return {};
}

void EvaluationOnly::take_rows(const Session::Start& start) {
  if (!rows_) return;
  if (start.rows.empty())
    fail(ErrorKind::InvalidArgument,
         "the checkpoint of step {} has no rows of sharded tables: it is that of another model, or of one "
         "whose tables were small enough to be replicated",
         start.progress.step);
  rows_->restore(start.rows, start.changed_rows, embedding::RowParts::WithAverage);
}

Snapshot EvaluationOnly::rows() { return rows_->gather_weights(); }

void EvaluationOnly::fill(store::Report& report) const {
  report.strategy = facts_.name;
  if (rows_) add_rows(report, rows_->checksum(), rows_->counts());
}

LaneSum& EvaluationOnly::begin_step(int64_t step, const Wishes& /*wishes*/) {
  context_.require_worker();  // throws
  fail(ErrorKind::Bug, "an evaluator was asked to make step {}", step);
}

}  // namespace tutti
