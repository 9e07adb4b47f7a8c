// tutti scale: changes the number of workers of a job that was started with --min.
#include <cstdio>

#include <fmt/format.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/launch/open_meeting.h"
#include "tools/launch/scaling.h"
#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/transport/board/follow.h"
#include "tutti/transport/board/tcp_rendezvous.h"
#include "tutti/transport/job_board.h"

namespace tutti {
namespace {

constexpr const char* kAboutScale =
    "Changes the number of workers of a job that `tutti run --min M` has started, to one between M and "
    "--max.\n"
    "New workers join, and workers that are too many leave, after a step of the others, which make no step\n"
    "again. JOB is the --logdir of the run, whose owner may do this, or the HOST:PORT,... of --rendezvous,\n"
    "for which TUTTI_SECRET has to be that of the launchers. The exit code is 0 once the job has so many "
    "workers,\n"
    "2 if the job may not have so many, 10 if it has ended, or has another number since workers were lost,\n"
    "and 11 after --timeout, or if the launcher does not answer.";

std::shared_ptr<comm::Rendezvous> board_at(const std::string& job, const std::string& address,
                                           const std::string& secret, const std::string& advice = "") {
  const Address at = parse_address(address);
  const comm::FindAttempt attempt = comm::try_tcp_rendezvous({.hosts = {at.host},
                                                              .port = static_cast<uint16_t>(at.port),
                                                              .credentials = {.secret = secret},
                                                              .holder = "tutti run"});
  // Another launcher may keep the list.
  if (attempt.board) return comm::follow_members_board({.address = address, .secret = secret});
  if (attempt.listens && !attempt.refused)
    fail(ErrorKind::Timeout,
         "tutti scale: {}: the launcher at {} does not answer: check that it is not stopped ({})", job,
         address, attempt.obstacle);
  fail(ErrorKind::PeerLost, "tutti scale: {}: the job has ended: no launcher answers at {} ({}){}", job,
       address, attempt.obstacle, advice);
}

std::shared_ptr<comm::Rendezvous> board_in(const std::string& logdir) {
  const std::optional<comm::JobBoard> board = comm::read_job_board(logdir);
  if (!board)
    fail(ErrorKind::InvalidArgument,
         "tutti scale: {} has no {}: no job of `tutti run --min` has trained there yet{}", logdir,
         comm::kJobBoardName, runs_below(logdir, [](const std::string& folder) {
           return path_exists(folder + "/" + comm::kJobBoardName);
         }));
  const std::string address = comm::address_from_here(*board);
  const bool is_elsewhere = address != board->address;
  return board_at(logdir, address, board->secret,
                  is_elsewhere ? fmt::format("; or try it on host {}", board->host) : "");
}

std::shared_ptr<comm::Rendezvous> board_of(const std::string& job, const std::string& secret) {
  if (path_exists(job)) return board_in(job);
  if (job.find(':') == std::string::npos)
    fail(ErrorKind::InvalidArgument,
         "tutti scale: there is no {}: give the --logdir of a run, or the addresses of --rendezvous", job);
  const std::optional<MeetingResult> met = find_meeting(job, secret);
  if (!met)
    fail(ErrorKind::PeerLost, "tutti scale: {}: no job of `tutti run --nnodes N --min M` is there", job);
  const HostOffer& keeper = met->hosts.at(met->keeper);
  return board_at(job, to_string(Address{keeper.address, keeper.members_port}),
                  comm::members_secret(met->launch, secret));
}

}  // namespace

int scale_command(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(kAboutScale, "tutti scale");
  std::string job;
  int workers = 0;
  bool at_once = false;
  double timeout = 600;
  app.add_option("JOB", job, "The --logdir of a run, or the addresses of its --rendezvous")->required();
  app.add_option("WORKERS", workers, "The number of workers that the job is to have")
      ->required()
      ->check(CLI::Range(1, kMostWorkersOfAHost));
  app.add_flag("--no-wait", at_once, "Return as soon as the launcher has begun");
  app.add_option("--timeout", timeout, "Seconds to wait for the workers (default: 600)")
      ->check(CLI::Range(0.001, 1e6));
  if (!parse_arguments(app, arguments)) return 0;
  const auto board = board_of(job, environment.get("TUTTI_SECRET").value_or(""));
  scale(*board, workers, {.timeout = milliseconds_of(timeout), .waits = !at_once},
        [](const std::string& line) {
          fmt::print("{}\n", line);
          std::fflush(stdout);
        });
  return 0;
}

}  // namespace tutti
