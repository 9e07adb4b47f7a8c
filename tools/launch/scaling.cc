#include "tools/launch/scaling.h"

#include <thread>

#include "tools/launch/host_link.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/secret.h"

namespace tutti {

std::string to_text(const ScaleRequest& request) {
  return Json{{"id", request.id}, {"workers", request.workers}}.dump();
}

ScaleRequest scale_request_of(const std::string& text) {
  return parse_message(text, [](const Json& json) {
    return ScaleRequest{.id = json.at("id").get<std::string>(), .workers = json.at("workers").get<int>()};
  });
}

std::string to_text(const ScaleAnswer& answer) {
  return Json{{"lines", answer.lines}, {"exit_code", answer.exit_code ? Json(*answer.exit_code) : Json()}}
      .dump();
}

ScaleAnswer scale_answer_of(const std::string& text) {
  return parse_message(text, [](const Json& json) {
    ScaleAnswer answer{.lines = json.at("lines").get<std::vector<std::string>>()};
    if (!json.at("exit_code").is_null()) answer.exit_code = json.at("exit_code").get<int>();
    return answer;
  });
}

std::string scaled_key(const std::string& id) { return "scaled/" + id; }

void scale(comm::Rendezvous& board, int workers, const ScaleOptions& options,
           const std::function<void(const std::string& line)>& print) {
  constexpr std::chrono::milliseconds kBetweenLooks{50};
  const ScaleRequest request{.id = random_key(), .workers = workers};
  board.set(kScaleKey, to_text(request));
  const auto deadline = deadline_after(options.timeout);
  size_t printed = 0;
  while (true) {
    const auto text = board.peek(scaled_key(request.id));
    const ScaleAnswer answer = text ? scale_answer_of(*text) : ScaleAnswer();
    const bool fails = answer.exit_code.value_or(0) != 0;
    for (; printed + (fails ? 1 : 0) < answer.lines.size(); ++printed) print(answer.lines[printed]);
    if (fails) {
      const bool is_refused = answer.exit_code == exit_code(ErrorKind::InvalidArgument);
      fail(is_refused ? ErrorKind::InvalidArgument : ErrorKind::PeerLost, "tutti scale: {}",
           answer.lines.back());
    }
    if (answer.exit_code || (text && !options.waits)) return;
    if (std::chrono::steady_clock::now() >= deadline)
      fail(ErrorKind::Timeout,
           "tutti scale: {} within {:g} s; the launcher goes on with it. Look at its output, or raise "
           "--timeout",
           text ? "not all workers have come or left" : "the launcher has not answered",
           seconds(options.timeout));
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace tutti
