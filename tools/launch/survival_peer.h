#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/epoch_agreement.h"
#include "tools/launch/open_meeting.h"
#include "tools/launch/survival_guest.h"
#include "tools/launch/survival_keeper.h"
#include "tutti/base/address.h"
#include "tutti/transport/board/tcp_rendezvous.h"

namespace tutti {

struct PeerOptions {
  SurvivalOptions keeper = {};  // for the time when this launcher keeps the list; `own` is set
  std::string token = {};       // of this launcher
  bool comes_again = false;     // another launcher of this host was part of the job
  // The launcher that has the list in the beginning: its host, and its board.
  size_t keeper_host = 0;
  Address keeper_address = {};
  std::shared_ptr<OpenMeeting> meeting = {};
  std::chrono::milliseconds start_timeout{300'000};
};

// The Survival of one of several launchers of which each may keep the list: the first one in the beginning,
// and another one when it is lost (succession.h). Serves the board of this launcher, at which its workers
// learn who keeps the list.
class SurvivalPeer final : public Survival {
 public:
  // Throws as SurvivalGuest.
  explicit SurvivalPeer(const PeerOptions& options);

  int first_worker() const override { return present().first_worker(); }
  void add_variables(int worker, std::map<std::string, std::string>& variables) const override {
    present().add_variables(worker, variables);
  }
  std::chrono::milliseconds timeout() const override { return present().timeout(); }
  bool has_other_hosts() const override { return true; }
  bool begins_with(int worker) const override { return present().begins_with(worker); }
  bool dismiss_own_workers() override { return present().dismiss_own_workers(); }
  std::chrono::milliseconds look_again() const override { return present().look_again(); }
  void ended(const EndedWorker& ended) override { present().ended(ended); }
  void stays_away(int worker) override { present().stays_away(worker); }
  void stop(const JobEnd& end) override { present().stop(end); }
  std::chrono::milliseconds failure_grace() const override { return present().failure_grace(); }
  std::vector<WorkerOrder> look(const Say& say) override;
  bool job_is_done() const override { return present().job_is_done(); }
  bool is_over() const override { return present().is_over(); }
  std::optional<JobEnd> end() const override { return present().end(); }

 private:
  Survival& present() const { return keeper_ ? static_cast<Survival&>(*keeper_) : *guest_; }

  void keep_list(EpochAgreement agreement);

  const SurvivalOptions options_;
  const std::shared_ptr<OpenMeeting> meeting_;
  const comm::ServedRendezvous served_;
  std::unique_ptr<SurvivalGuest> guest_;  // as long as another launcher keeps the list
  std::unique_ptr<SurvivalKeeper> keeper_;
};

}  // namespace tutti
