#include "tutti/train/run_folder.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/secret.h"
#include "tutti/base/this_host.h"
#include "tutti/store/manifest.h"
#include "tutti/train/run_state.h"
#include "tutti/transport/job_board.h"
#include "tutti/web/page.h"

namespace tutti {
namespace {

using nlohmann::json;

// A name must not collide with checkpoints, which are folders in the same place.
void require_name(const std::string& name) {
  const bool path = name.find_first_of("/\\") != std::string::npos || name.starts_with('.');
  if (path || name.starts_with("ckpt-") || name == "latest" || name == "lock" || name == kRunStateName ||
      name == comm::kJobBoardName || name == kEvaluatorFolder)
    fail(ErrorKind::InvalidArgument,
         "'{}' is not a valid name for a training, since the name becomes a folder in --logdir, next to "
         "the checkpoints",
         name);
}

std::string folder_of(const Context& context, const std::string& name) {
  require_name(name);
  const std::string& logdir = context.config().checkpoints.logdir;
  if (!logdir.empty() && std::filesystem::exists(std::filesystem::path(logdir) / store::kManifestName))
    fail(ErrorKind::InvalidArgument,
         "--logdir {}: this is a checkpoint; give the folder that it is in, from whose newest checkpoint a "
         "run resumes",
         logdir);
  return logdir.empty() || name.empty() ? logdir : (std::filesystem::path(logdir) / name).string();
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// Throws DataLoss if values have other types. This can happen in a manifest that was edited, or was written
// by another version of Tutti.
void require_well_formed(const json& state, const std::string& where) {
  const auto require_count = [&where](const json& object, const char* name, int64_t least, int64_t most) {
    const auto count = value_in<int64_t>(object, name, where, least);
    if (count < least || count > most)
      fail(ErrorKind::DataLoss, "{}: '{}' is {}, expected {} to {}", where, name, count, least, most);
  };
  const auto require_type = [&](const char* name, json::value_t type) {
    const auto found = state.find(name);
    if (found != state.end() && found->type() != type)
      fail(ErrorKind::DataLoss, "{}: '{}' should be {}, but it is {}", where, name,
           json_type_name(json(type)), found->dump());
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  for (const char* name : {"fit", "fit_begin", "end_step", "examples", "restarts"})
    require_count(state, name, 0, kMost);
  for (const char* name : {"batch", "threads", "workers"}) require_count(state, name, 1, kMost);
  require_count(state, "lanes", 1, kMostLanes);
  if (state.contains("loss") && !state.at("loss").is_number())
    fail(ErrorKind::DataLoss, "{}: 'loss' should be a number, but it is {}", where, state.at("loss").dump());
  static_cast<void>(value_in<int64_t>(state, "seed", where, 0));
  for (const char* name : {"drop-remainder", "stopped"}) require_type(name, json::value_t::boolean);
  require_type("feeds", json::value_t::array);
  for (const char* name : {"precision", "launch", "stop_reason", "libraries", "results"})
    require_type(name, json::value_t::string);
  for (const char* name : {"flags", "settings", "data", "parts", "optimizer", "order", "state"})
    require_type(name, json::value_t::object);
  const json feeds = state.value("feeds", json::array());
  for (const json& step : feeds) {
    if (!step.is_number_integer() || step < 0)
      fail(ErrorKind::DataLoss, "{}: 'feeds' should be a list of steps, but contains {}", where, step.dump());
  }
  const json data = state.value("data", json::object());
  for (const auto& [name, value] : data.items()) {
    if (!value.is_string())
      fail(ErrorKind::DataLoss, "{}: '{}' of the data should be a string, but it is {}", where, name,
           value.dump());
  }
}

// Checks the state of one net: of the whole checkpoint if there is only one, else of one of its parts.
void require_well_formed_net(const json& state, const std::string& where) {
  const auto optimizer = state.find("optimizer");
  if (optimizer == state.end()) fail(ErrorKind::DataLoss, "{}: 'optimizer' is missing", where);
  static_cast<void>(value_in<std::string>(*optimizer, "name", where));
  const auto steps = value_in<int64_t>(*optimizer, "steps", where, 0);
  if (steps < 0) fail(ErrorKind::DataLoss, "{}: 'steps' of the optimiser is {}", where, steps);
}

void require_well_formed(const store::Checkpoint& checkpoint, const std::string& folder) {
  const std::string where = fmt::format("{}/ckpt-{}/{}", folder, checkpoint.step, store::kManifestName);
  const json& state = checkpoint.state;
  if (!state.is_object())
    fail(ErrorKind::DataLoss, "{}: 'state' should be an object, but it is {}", where, json_type_name(state));
  require_well_formed(state, where);
  if (!state.contains("parts")) return require_well_formed_net(state, where);
  for (const auto& [name, part] : state.at("parts").items()) {
    if (!part.is_object())
      fail(ErrorKind::DataLoss, "{}: part '{}' should be an object, but it is {}", where, name, part.dump());
    require_well_formed_net(part, where);
  }
}

double seconds_since_change(const std::string& path) {
  using std::filesystem::file_time_type;
  return std::chrono::duration<double>(file_time_type::clock::now() - std::filesystem::last_write_time(path))
      .count();
}

}  // namespace

std::vector<std::string> differing(const Json& saved, const Json& now) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : now.items()) {
    if (saved.contains(name) && SortedJson(saved.at(name)) != SortedJson(value))
      lines.push_back(fmt::format("{} {}, not {}", name, text_of(saved.at(name)), text_of(value)));
  }
  return lines;
}

void record_flags(const Context& context, store::Checkpoint& checkpoint) {
  for (const FlagValue& flag : context.flag_values()) {
    if (flag.scope != FlagScope::Local) checkpoint.state["flags"][flag.name] = flag.text;
  }
}

RunFolder::RunFolder(const Context& context, const std::string& name)
    : context_(context), path_(folder_of(context, name)) {
  if (path_.empty()) return;
  if (!context_.claim_folder(path_))
    fail(ErrorKind::InvalidArgument,
         "two trainings of this program use the log directory {}: they would overwrite and resume each "
         "other's checkpoints. Give each a name (TrainerOptions::name, LoopOptions::name), which becomes a "
         "folder in --logdir, or train several nets in one Loop",
         path_);
  checkpoints_.emplace(
      path_, store::CheckpointDirOptions{
                 .keep = static_cast<int>(context.config().checkpoints.keep),
                 .warn = [log = context.log()](const std::string& text) { log.warning("{}", text); },
                 .check = [this] { require_lock(); }});
}

RunFolder::~RunFolder() {
  if (exists() && !begun_) context_.release_folder(path_);
}

// A job that was killed and restarted may find that a process of its former run has not exited yet.
void RunFolder::lock() {
  constexpr std::chrono::milliseconds kPatience{3000};
  if (!exists() || (lock_ && !lock_->is_taken_away())) return;
  run_.chief = store::holder_name(context_.task().short_name());
  const auto take = [&] { lock_.emplace(path_, run_.chief, kPatience); };
  try {
    take();
  } catch (const Error&) {
    if (!is_used_by_this_job()) throw;
    context_.log().warning("{} has the lock of {}, but is lost to the others: taking it away",
                           store::lock_holder(path_).value_or("a former chief"), path_);
    store::take_away_lock(path_);
    take();
  }
  if (!lock_->is_held())
    context_.log().warning("{} is on a file system without locks: make sure that no second job uses it",
                           path_);
  name_launcher();
}

// Only a job whose workers change takes the lock away from itself. Elsewhere a lock that is gone was deleted
// by hand.
void RunFolder::require_lock() const {
  if (!lock_ || !lock_->is_taken_away()) return;
  const std::optional<std::string> holder = store::lock_holder(path_);
  if (!holder && context_.identity().members_board.empty()) return;
  fail(ErrorKind::PeerLost,
       "{} belongs to {} now: this process was lost to the others of its job, or {}/lock was deleted", path_,
       holder.value_or("nobody"), path_);
}

bool RunFolder::is_of_this_launch(const store::Checkpoint& checkpoint) const {
  if (context_.identity().attempt > 0) return true;
  const std::string launch = launch_of(context_);
  return !launch.empty() && checkpoint.state.value("launch", "") == launch;
}

std::optional<RunFolder::Found> RunFolder::newest(const OnProgress& on_progress) {
  const std::string& mode = context_.config().checkpoints.resume;
  const bool anew = !std::exchange(begun_, true) && (mode == "never" || mode == "weights");
  const Identity& identity = context_.identity();
  const bool started_again = identity.attempt > 0 || !identity.launch.empty();  // or may be
  std::optional<Found> found;
  only_weights_ = false;
  if (anew && mode == "never" && !started_again) return found;
  if (checkpoints_) {
    store::CheckpointDir::Loaded loaded;
    try {
      loaded = checkpoints_->load_latest(
          [this](const store::Checkpoint& checkpoint) { require_well_formed(checkpoint, path_); },
          on_progress);
    } catch (const Error&) {
      if (mode != "never") throw;
    }
    const bool ours = loaded.checkpoint && (!anew || is_of_this_launch(*loaded.checkpoint));
    if (mode == "never" && !ours) return std::nullopt;
    only_weights_ = mode == "weights" && !ours;
    for (const std::string& line : loaded.skipped) context_.log().warning("skipped {}", line);
    if (loaded.checkpoint) {
      const std::string where = path_of(loaded.checkpoint->step);
      found = {*std::move(loaded.checkpoint), where};
    }
  }
  if (!found && (mode == "must" || mode == "weights") && path_.empty())
    fail(ErrorKind::InvalidArgument, "--resume {} needs --logdir, the folder with the checkpoint", mode);
  if (!found && (mode == "must" || mode == "weights"))
    fail(ErrorKind::InvalidArgument, "--resume {}: no checkpoint was found in '{}'", mode, path_);
  return found;
}

void RunFolder::begin_run(Begins begins) {
  if (!exists() || !run_.id.empty()) return;
  constexpr size_t kLongestId = 16;
  run_.id = random_key().substr(0, kLongestId);
  run_.launch = launch_of(context_);
  if (begins == Begins::Anew) {
    const std::vector<store::SavedCheckpoint> saved = checkpoints_->saved();
    if (!saved.empty()) run_.first_sequence = saved.back().manifest.sequence + 1;
    return;
  }
  try {
    const std::optional<RunState> before = read_run_state(path_);
    if (!before) return;
    run_.id = before->id;
    run_.first_sequence = before->first_sequence;
    run_.failures = before->failures;
    if (begins == Begins::FromItsCheckpoint && before->phase == RunState::Phase::Training) ++run_.failures;
    run_.since = before->since + seconds_since_change(path_ + "/" + kRunStateName);
  } catch (const Error& error) {
    context_.log().warning("{}; evaluators begin again with the checkpoints of this run", error.what());
  }
}

void RunFolder::note(const RunState& now) {
  run_.phase = now.phase;
  run_.fit = now.fit;
  run_.step = now.step;
  run_.end_step = now.end_step;
  run_.workers = now.workers;
  if (!now.change.empty()) run_.change = now.change;
  run_.error.clear();
  write_state();
}

void RunFolder::note_error(const std::string& error) {
  if (run_.id.empty() || !lock_ || !lock_->is_held()) return;  // else another chief may have taken over
  run_.error = error;
  write_state();
}

void RunFolder::write_state() {
  last_sign_ = std::chrono::steady_clock::now();
  if (!lock_ || lock_->is_taken_away()) return;
  if (lock_->is_removed()) {
    if (!std::exchange(told_removal_, true))
      context_.log().warning(
          "{} was removed while this job uses it: its checkpoints are gone, and other jobs are not kept out",
          path_);
    return;
  }
  if (context_.page() != nullptr) run_.web = context_.page()->address();
  try {
    write_run_state(path_, run_);
  } catch (const Error& error) {
    context_.log().warning("evaluators cannot follow this run: {}", error.what());
  }
}

// For `tutti scale`.
void RunFolder::name_launcher() const {
  if (context_.identity().members_board.empty()) return;
  comm::write_job_board(
      path_,
      {.address = context_.identity().members_board, .host = host_name(), .secret = secret_of_members()});
}

std::string RunFolder::secret_of_members() const {
  const Identity& identity = context_.identity();
  const std::string& secret = identity.secret.empty() ? context_.config().security.secret : identity.secret;
  return comm::members_secret(identity.launch, secret);
}

// Returns true if the folder belongs to the job of `tutti run --min` that has made this worker its chief.
bool RunFolder::is_used_by_this_job() const {
  if (context_.identity().members_board.empty()) return false;
  const auto board = comm::read_job_board(path_);
  return board && board->secret == secret_of_members();
}

void RunFolder::show_life(const RunState& now) {
  constexpr std::chrono::seconds kBetweenSigns{10};
  if (std::chrono::steady_clock::now() >= last_sign_ + kBetweenSigns) note(now);
}

std::string RunFolder::path_of(int64_t step) const { return fmt::format("{}/ckpt-{}", path_, step); }

void RunFolder::refuse_other_run(const std::string& what) {
  if (context_.config().checkpoints.resume == "anyway") {
    context_.log().warning("the run in {} was made with {}; it continues anyway (--resume anyway)", path_,
                           what);
    differences_.push_back(what);
    return;
  }
  fail(ErrorKind::InvalidArgument,
       "the run in {} was made with {}. To continue it, use the same settings and data. If its weights fit "
       "this model, --resume anyway continues it all the same, and --resume weights starts at step 0 with "
       "them. To start from scratch, give another --logdir or --resume never",
       path_, what);
}

// Returns the flags of this scope that had another value in the run.
std::vector<std::string> RunFolder::changed_flags(const json& state, FlagScope scope) const {
  const json saved = state.value("flags", json::object());
  std::vector<std::string> lines;
  for (const FlagValue& flag : context_.flag_values()) {
    if (flag.scope != scope) continue;
    // Checkpoints that were written before all flags were recorded have "batch" instead of "--batch".
    const bool recorded = saved.contains(flag.name);
    const json& all = recorded ? saved : state;
    const std::string key = recorded ? flag.name : flag.name.substr(std::min<size_t>(2, flag.name.size()));
    if (!all.contains(key) || text_of(all.at(key)) == flag.text) continue;
    lines.push_back(fmt::format("{} {}, not {}", flag.name, text_of(all.at(key)), flag.text));
  }
  return lines;
}

void RunFolder::require_same_run(const Found& found, int64_t lanes, const RunFacts& facts) {
  const json& state = found.checkpoint.state;
  std::vector<std::string> other;
  if (state.value("lanes", lanes) != lanes)
    other.push_back(fmt::format("--lanes {}, not {}", state.value("lanes", lanes), lanes));
  for (const std::string& line : changed_flags(state, FlagScope::Model)) other.push_back(line);
  for (const std::string& line : differing(state.value("settings", json::object()), facts.settings))
    other.push_back(line);
  if (!other.empty()) refuse_other_run(fmt::format("{}", fmt::join(other, "; ")));
  if (const auto flags = changed_flags(state, FlagScope::Run); !flags.empty())
    context_.log().warning("{} was made with {}; the run continues with the new values", found.where,
                           fmt::join(flags, "; "));
  if (const auto bits = differing(state, facts.conditions); !bits.empty())
    context_.log().warning("{} was made with {}: sums may be added in another order, so the bits may differ",
                           found.where, fmt::join(bits, "; "));
}

void RunFolder::require_finite(const Parameters& parameters, int64_t step) const {
  if (!context_.config().training.nan_guard) return;
  const torch::NoGradGuard no_grad;
  for (const Section& block : parameters.blocks()) {
    if (torch::isfinite(block.values).all().item<bool>()) continue;
    fail(ErrorKind::InvalidArgument,
         "the weights are no longer finite after step {} and were not saved. Resume from the previous "
         "checkpoint with a lower learning rate or other data; --no-nan-guard saves them anyway",
         step);
  }
}

void RunFolder::save(store::Checkpoint checkpoint, int64_t lanes, const RunFacts& facts,
                     const store::SharedFiles& shared, const OnProgress& on_progress) {
  if (!checkpoints_) return;
  const RunConfig& config = context_.config();
  checkpoint.state["lanes"] = lanes;
  checkpoint.state["batch"] = config.training.batch;
  checkpoint.state["drop-remainder"] = config.training.drop_remainder;
  checkpoint.state["seed"] = config.training.seed;
  checkpoint.state["precision"] = config.compute.precision;
  checkpoint.state["settings"] = facts.settings;
  checkpoint.state.update(facts.conditions);
  if (const std::string launch = launch_of(context_); !launch.empty()) checkpoint.state["launch"] = launch;
  record_flags(context_, checkpoint);
  checkpoints_->save(checkpoint, shared, on_progress);
  context_.log().debug("saved {}", path_of(checkpoint.step));
}

}  // namespace tutti
