#include "tutti/train/teams/driven.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/params/agreement.h"
#include "tutti/ps/peer.h"
#include "tutti/ps/wire.h"
#include "tutti/train/passive/lane_wire.h"
#include "tutti/train/session.h"
#include "tutti/train/strategies/driven.h"
#include "tutti/train/teams/alone.h"

namespace tutti {

Driven::Driven(const Context& context)
    : context_(context),
      line_(context, passive::Line::Stop::ByNobody),
      alone_(group_of_one()),
      timeline_file_(context.timeline(), *alone_, timeline_of_its_own(context)) {}

Driven::~Driven() {
  if (!finished_ || std::uncaught_exceptions() > exceptions_) return;
  try {
    for (bool ended = false; !ended;) {
      const passive::Line::Request request = line_.next();
      ended = request.method == "end";
      // Metrics that the master sends are not needed here.
      line_.answer({});
    }
  } catch (const std::exception& error) {
    context_.log().warning("{}", error.what());
  }
}

Team::Start Driven::start(Session& session, Replica& replica, const std::vector<std::string>& plan) {
  const auto request = line_.next_beginning(milliseconds_of(context_.flags().start_timeout));
  if (!request) {
    fail(ErrorKind::Timeout, "no master has connected to {} within {:g} s (--start-timeout)",
         context_.task().short_name(), context_.flags().start_timeout);
  }
  Progress progress;
  line_.answer_with([&]() -> rpc::Message {
    const Json& head = request->message->head;
    require_same_plan(ps::lines_in(head, "plan"), plan, context_.task().short_name());
    warn_of_other_threads(context_, static_cast<int>(ps::number_in(head, "threads")));
    place_.emplace(head);
    server_.emplace(replica, *place_);
    ps::Reader reader(*request->message);
    passive::take_into(reader, passive::frozen(replica.parameters()));
    progress = progress_of(head.at("progress"));
    session.follow(place_->lanes);
    return {};
  });
  return {progress, std::make_unique<DrivenSteps>(line_, *server_), 0};
}

void Driven::finish_fit(Strategy& /*strategy*/, Progress& progress) {
  for (;;) {
    const passive::Line::Request request = line_.next();
    if (request.method == "finish") progress = progress_of(request.message->head.at("progress"));
    line_.answer_with([&] { return server_->serve(request.method, *request.message, {}); });
    if (request.method != "finish") continue;
    finished_ = true;
    return;
  }
}

// The master has counted everything.
void Driven::merge(metrics::Metric& metric) {
  const std::string key = passive::note_of(metric);
  const passive::Line::Request request = line_.next();
  line_.answer_with([&]() -> rpc::Message {
    if (request.method != "note" || ps::text_in(request.message->head, "key") != key) {
      fail(ErrorKind::InvalidArgument,
           "{} expects '{}' from the master, but it sent '{}': all tasks have to run the same program",
           context_.task().short_name(), key, request.method);
    }
    metric.reset();
    metric.merge(request.message->head.at("value").get<std::vector<double>>());
    return {};
  });
}

}  // namespace tutti
