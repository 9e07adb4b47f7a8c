#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tools/launch/meeting.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/transport/board/tcp_rendezvous.h"
#include "tutti/transport/rendezvous.h"

// The board at which launchers meet (meeting.h). The keys:
//
//   terms        the lines of Meeting::terms, by the launcher that serves the board
//   offer/HOST   the offer of the launcher of this host, which holds it as long as it is connected
//   answer       MeetingResult, by the launcher that serves the board; "": the meeting is over
//   refused      the last launcher that was refused, and why
namespace tutti {

inline constexpr const char* kTermsKey = "terms";
inline constexpr const char* kAnswerKey = "answer";

// To and from the texts on the board. The functions that read throw DataLoss.
Json to_json(const HostOffer& offer);
HostOffer host_offer_of(const Json& json);
std::string to_text(const MeetingResult& result);
std::string terms_text(const Meeting& meeting);
// Returns nullopt for an answer without a result.
std::optional<MeetingResult> meeting_result_of(const std::string& text);

// Serves the board of a meeting at this address. `report` as in comm::ServeOptions. Throws as
// comm::serve_tcp_rendezvous().
comm::ServedRendezvous serve_meeting(const std::string& address, const std::string& secret,
                                     std::function<void(const std::string& text)> report);
// Tries once to find the board of a meeting.
comm::FindAttempt try_to_find_meeting(const std::string& address, const std::string& secret,
                                      std::chrono::milliseconds timeout);

// A meeting that stays open for launchers that come again: the launcher that keeps the list of the workers
// tells them the result, at its address of the meeting, if that is known to all, and on its board of members,
// to which the log directory leads. Not thread-safe.
class OpenMeeting {
 public:
  // `result`: with this launcher as the keeper. `board`: where the result is told already; null: nowhere.
  OpenMeeting(Meeting meeting, std::string secret, MeetingResult result,
              std::shared_ptr<comm::ServedBoard> board, Log log);
  // From here on this launcher keeps the list, and this is its board of members.
  void keep(std::shared_ptr<comm::Rendezvous> members_board);
  // Nobody gets the result any more. Frees the port.
  void close();

 private:
  void tell(comm::Rendezvous& board) const;

  const Meeting meeting_;
  const std::string secret_;
  const MeetingResult result_;
  const Log log_;
  std::shared_ptr<comm::ServedBoard> board_;  // of the meeting
  std::shared_ptr<comm::Rendezvous> members_board_;
};

// Returns the result of a meeting that has stayed open at one of these addresses, HOST:PORT,HOST:PORT,...;
// nullopt if there is none. `secret` as in MeetingOptions. Throws InvalidArgument if it is another one.
std::optional<MeetingResult> find_meeting(const std::string& addresses, const std::string& secret);

// Returns the board of the launcher that keeps the list of the workers of the job that trains in this log
// directory; null if none answers.
std::shared_ptr<comm::Rendezvous> try_to_find_keeper(const std::string& folder);

}  // namespace tutti
