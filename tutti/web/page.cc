#include "tutti/web/page.h"

#include <nlohmann/json.hpp>

#include "tutti/base/address.h"

namespace tutti::web {

void Page::serve(const std::string& host, int port, const Admission& admission) {
  const std::lock_guard lock(mutex_);
  if (server_) return;
  server_ = std::make_unique<Server>(
      to_string(Address{host, port}), [this](const Request& request) { return answer(request); },
      ServerOptions{.admission = admission});
  const bool is_everywhere = host == "0.0.0.0" || host == "::";
  address_ = to_string(Address{is_everywhere ? "127.0.0.1" : host, server_->port()});
}

std::string Page::address() const {
  const std::lock_guard lock(mutex_);
  return address_;
}

void Page::update(const std::string& training,
                  const std::function<void(TrainingStatus&, const Moment&)>& change) {
  const Moment now = Moment::now();
  const std::lock_guard lock(mutex_);
  change(status_.trainings[training], now);
}

void Page::note(LogLevel level, std::string_view text, std::optional<double> time) {
  const double at = time.value_or(Moment::now().unix);
  const std::lock_guard lock(mutex_);
  status_.note(level, text, at);
}

Answer Page::answer(const Request& request) const {
  const Moment now = Moment::now();
  std::unique_lock lock(mutex_);
  const Status status = status_;
  lock.unlock();
  if (request.path == "/") return {.type = "text/html; charset=utf-8", .body = std::string(kPageHtml)};
  if (request.path == "/status.json")
    return {.type = "application/json",
            .body = to_json(status, now).dump(-1, ' ', false, Json::error_handler_t::replace)};
  if (request.path == "/metrics")
    return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_text(status, now)};
  if (request.path == "/healthz") {
    const std::string trouble = trouble_of(status, now);
    return {.status = trouble.empty() ? 200 : 503, .body = (trouble.empty() ? "ok" : trouble) + "\n"};
  }
  return {.status = 404, .body = "only /, /status.json, /metrics and /healthz are here\n"};
}

}  // namespace tutti::web
