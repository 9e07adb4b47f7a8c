#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/transport/rendezvous.h"

// `tutti scale` asks the launcher of a job with --min for another number of workers, on the board of the
// launcher that keeps the list of members (comm/members.h). The keys:
//
//   scale          ScaleRequest; a later one takes the place of the one before
//   scaled/ID      ScaleAnswer, by the launcher
namespace tutti {

struct ScaleRequest {
  std::string id = {};
  int workers = 0;

  bool operator==(const ScaleRequest&) const = default;
};

struct ScaleAnswer {
  std::vector<std::string> lines = {};  // what has happened so far; the list only grows
  std::optional<int> exit_code = {};    // once all is done

  bool operator==(const ScaleAnswer&) const = default;
};

// To and from the texts on the board. The functions that read throw DataLoss.
std::string to_text(const ScaleRequest& request);
ScaleRequest scale_request_of(const std::string& text);
std::string to_text(const ScaleAnswer& answer);
ScaleAnswer scale_answer_of(const std::string& text);

inline constexpr const char* kScaleKey = "scale";
std::string scaled_key(const std::string& id);

struct ScaleOptions {
  std::chrono::milliseconds timeout{600'000};  // for the workers to come or to leave
  bool waits = true;                           // until they have, and not only until the launcher has begun
};

// Asks the launcher whose board this is, and prints its lines as they come. Throws its last one if that tells
// why the job has another number of workers, and a Timeout if it does not come in time.
void scale(comm::Rendezvous& board, int workers, const ScaleOptions& options,
           const std::function<void(const std::string& line)>& print);

}  // namespace tutti
