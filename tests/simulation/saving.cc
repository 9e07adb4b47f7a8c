#include "tests/simulation/saving.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/store/folder_lock.h"
#include "tutti/store/shared_files.h"

namespace tutti::simulation {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartOfWriters = "servers";

store::NamedTensors tensors_of(int64_t step, int64_t owner) {
  constexpr int64_t kElements = 12;
  return {
      {fmt::format("{}/tensor", owner), torch::full({kElements}, static_cast<double>(step * 100 + owner))}};
}

// All numbers of a checkpoint follow from its step.
store::Checkpoint checkpoint_of(int64_t step) {
  constexpr int64_t kWeights = 90;
  constexpr int64_t kSlots = 91;
  store::Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.weights = tensors_of(step, kWeights);
  checkpoint.optimizer = tensors_of(step, kSlots);
  checkpoint.state = {{"cursor", step}};
  return checkpoint;
}

bool are_equal(const store::NamedTensors& a, const store::NamedTensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.name == other.name && torch::equal(one.tensor, other.tensor);
  });
}

std::chrono::milliseconds milliseconds_of_time(Time time) {
  return std::chrono::milliseconds(time / kMillisecond);
}

}  // namespace

SavingJob::SavingJob(uint64_t seed, Mistake mistake, bool prints)
    : world_(seed, prints),
      scenario_(draw(world_.random())),
      mistake_(mistake),
      logdir_(folder_ / "runs/job"),
      disk_(folder_.path()),
      calls_(
          disk_, [this](Process& process, const FileCall& call) { return before(process, call); },
          [this](Process& process, const FileCall& call) { after(process, call); }),
      writers_(static_cast<size_t>(scenario_.writers)),
      faults_(scenario_.faults) {
  calls_.skips_files = mistake == Mistake::FilesAreNotSynced;
  calls_.skips_folders = mistake == Mistake::FoldersAreNotSynced;
  for (size_t i = 0; i < writers_.size(); ++i) start_writer(i);
  troubles_ = 0;
  start_chief();
  plan_faults();
  watch_chief();
}

// Processes that live end, so that their stacks are empty.
SavingJob::~SavingJob() {
  is_done_ = true;
  for (const auto& chief : chiefs_) chief->kill();
  for (const Writer& writer : writers_) writer.process->kill();
}

void SavingJob::start_chief() {
  last_sign_ = world_.now();
  const auto number = static_cast<int>(chiefs_.size());
  world_.log("chief {} is started", number);
  chiefs_.push_back(std::make_unique<Process>(
      world_, comm::Member{0, number},
      [this](Process& process) {
        try {
          train(process);
        } catch (const Error& error) {  // the names of files are others each time
          throw Error(error.kind(), std::string(to_string(error.kind())));
        }
      },
      [this](Process& process) {
        if (is_done_ || &process != chiefs_.back().get()) return;
        if (process.outcome().success()) {
          is_done_ = true;
          return;
        }
        if (troubles_ == 0) world_.violate("a chief fails without a failure: {}", process.error());
        world_.after(world_.random().draw(1, 20) * kMillisecond, [this, &process] {
          if (&process == chiefs_.back().get()) start_chief();
        });
      }));
}

void SavingJob::start_writer(size_t index) {
  Writer& writer = writers_[index];
  if (writer.process) former_.push_back(std::move(writer.process));
  world_.log("writer {} is started", index);
  ++troubles_;  // for a save that has counted on the one before
  writer.is_lost = std::make_shared<std::atomic<bool>>(false);
  writer.orders.clear();
  writer.waits = 0;
  writer.process = std::make_unique<Process>(
      world_, comm::Member{static_cast<int>(index) + 1, 0},
      [this, index](Process& process) { serve(process, writers_[index]); },
      [this, index](Process& /*process*/) {
        *writers_[index].is_lost = true;
        if (is_done_) return;
        world_.after(world_.random().draw(1, 20) * kMillisecond, [this, index] {
          if (!is_done_) start_writer(index);
        });
      });
}

// RunFolder::lock() and newest(), and the saves of a training.
void SavingJob::train(Process& process) {
  std::optional<store::FolderLock> lock;
  const std::string name = fmt::format("chief {}", process.self().life);
  try {
    lock.emplace(logdir_, name, milliseconds_of_time(scenario_.patience));
  } catch (const Error&) {
    if (!store::lock_holder(logdir_)) throw;
    taker_life_ = process.self().life;
    std::error_code ignored;
    if (mistake_ == Mistake::TakesOnlyTheLock)
      fs::remove(logdir_ + "/lock", ignored);
    else
      store::take_away_lock(logdir_);
    if (!process.is_killed()) first_life_ = process.self().life;
    lock.emplace(logdir_, name, milliseconds_of_time(scenario_.patience));
  }
  if (owner_ != nullptr && owner_->lives()) ++result_.replaced;
  owner_ = &process;
  world_.log("{} has the lock", name);
  const auto check = [&lock] {
    if (lock->is_taken_away()) fail(ErrorKind::PeerLost, "this chief was replaced");
  };
  store::CheckpointDir checkpoints(
      logdir_,
      {.keep = scenario_.keep, .check = mistake_ == Mistake::NobodyAsks ? std::function<void()>() : check});
  for (int64_t step = resume(checkpoints); step < scenario_.steps;) {
    process.sleep(kMillisecond);
    if (owner_ == &process) last_sign_ = world_.now();
    ++step;
    if (step % scenario_.every == 0) save(process, checkpoints, step);
  }
}

int64_t SavingJob::resume(const store::CheckpointDir& checkpoints) {
  store::CheckpointDir::Loaded loaded;
  try {
    loaded = checkpoints.load_latest();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::DataLoss && !Process::current()->is_killed())
      world_.violate("no checkpoint is whole: {}", error.what());
    throw;
  }
  for (const std::string& skipped : loaded.skipped) world_.log("skipped: {}", skipped.substr(0, 24));
  const int64_t step = loaded.checkpoint ? loaded.checkpoint->step : 0;
  world_.log("the job goes on after step {}, {} was promised", step, promised_);
  if (step < promised_)
    world_.violate("the checkpoint of step {} was saved, but that of {} is the newest", promised_, step);
  if (!loaded.checkpoint) return 0;
  ++result_.resumed;
  store::Checkpoint expected = checkpoint_of(step);
  store::NamedTensors of_writers;
  for (int64_t i = 0; i < scenario_.writers; ++i) {
    for (store::NamedTensor& named : tensors_of(step, i)) of_writers.push_back(std::move(named));
  }
  const auto found = loaded.checkpoint->more.find(kPartOfWriters);
  const bool has_all = of_writers.empty()
                           ? found == loaded.checkpoint->more.end()
                           : found != loaded.checkpoint->more.end() && are_equal(found->second, of_writers);
  if (!has_all || !are_equal(loaded.checkpoint->weights, expected.weights) ||
      !are_equal(loaded.checkpoint->optimizer, expected.optimizer) ||
      loaded.checkpoint->state != expected.state)
    world_.violate("the checkpoint of step {} has other contents than were saved", step);
  return step;
}

// Session::open_folder() and save().
void SavingJob::save(Process& process, store::CheckpointDir& checkpoints, int64_t step) {
  const int64_t troubles = troubles_;
  try {
    store::SharedFiles shared{.timeout = milliseconds_of_time(scenario_.patience)};
    const std::string folder = writers_.empty() ? "" : checkpoints.open();
    for (size_t i = 0; i < writers_.size(); ++i) {
      Writer& writer = writers_[i];
      shared.files.push_back(
          {.part = kPartOfWriters,
           .name = store::shared_file_name(kPartOfWriters, static_cast<int>(i), scenario_.writers),
           .writer = fmt::format("ps/{}", i),
           .is_lost = writer.is_lost});
      writer.orders.push_back({.folder = folder, .step = step});
      // After a drawn time, as a message.
      world_.after(world_.random().draw(0, kMillisecond), [&writer] { writer.process->wake(writer.waits); });
    }
    checkpoints.save(checkpoint_of(step), shared);
    if (process.is_killed()) return;
    ++result_.saved;
    world_.log("chief {} has saved step {}", process.self().life, step);
    if (!is_former(process)) promised_ = step;
  } catch (const Error& error) {
    if (process.is_killed()) return;
    ++result_.failed;
    world_.log("chief {} has not saved step {}", process.self().life, step);
    if (is_former(process)) throw;
    const bool misses_writer = std::any_of(writers_.begin(), writers_.end(), [](const Writer& writer) {
      return writer.is_lost->load() || writer.process->stopped();
    });
    if (process.self().life >= taker_life_ && troubles_ == troubles && slow_calls_ == 0 && !is_full_ &&
        !misses_writer)
      world_.violate("a save fails without a failure: {}", error.what());
  }
}

// A server.
void SavingJob::serve(Process& process, Writer& writer) {
  const int64_t index = process.self().worker - 1;
  for (;;) {
    while (writer.orders.empty()) {
      writer.waits = process.begin_wait();
      process.wait();
    }
    const Order order = writer.orders.front();
    writer.orders.erase(writer.orders.begin());
    try {
      store::write_shared_file(
          order.folder, store::shared_file_name(kPartOfWriters, static_cast<int>(index), scenario_.writers),
          tensors_of(order.step, index), order.step);
    } catch (const Error&) {
      continue;  // it is in the record, or the folder is gone
    }
  }
}

// The launchers start another chief if this one shows no life.
void SavingJob::watch_chief() {
  if (is_done_) return;
  if (chiefs_.back()->lives() && owner_ == chiefs_.back().get() &&
      world_.now() > last_sign_ + scenario_.patience) {
    ++troubles_;
    start_chief();
  }
  world_.after(20 * kMillisecond, [this] { watch_chief(); });
}

bool SavingJob::is_former(const Process& process) const {
  return process.self().worker == 0 && process.self().life < first_life_;
}

bool SavingJob::is_visible(const std::string& path) const {
  const fs::path name(path);
  const std::string file = name.filename().string();
  return name.parent_path() == logdir_ && (file.starts_with("ckpt-") || file == "latest");
}

// After one more save that nothing disturbs, there is nothing but checkpoints.
void SavingJob::require_tidy() {
  const store::CheckpointDir checkpoints(logdir_);
  const int64_t newest = checkpoints.load_latest().checkpoint->step;
  // A save that fails because old checkpoints cannot be removed has made its own.
  if (newest < promised_) world_.violate("step {} was saved, but {} is the newest", promised_, newest);
  store::CheckpointDir(logdir_, {.keep = scenario_.keep}).save(checkpoint_of(scenario_.steps + 1));
  int found = 0;
  for (const auto& entry : fs::directory_iterator(logdir_)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("ckpt-")) ++found;
    if (!is_visible(entry.path().string()) && name != "lock")
      world_.violate("there is a file that is no checkpoint: {}", name.substr(0, name.find_last_of('-')));
  }
  if (found > scenario_.keep) world_.violate("{} checkpoints are left, not {}", found, scenario_.keep);
  if (!fs::exists(logdir_ + "/latest/" + store::kManifestName)) world_.violate("latest leads nowhere");
}

SavingResult SavingJob::run() {
  constexpr Time kBound = 120 * kSecond;
  const auto all_have_ended = [this] {
    return is_done_ &&
           std::none_of(chiefs_.begin(), chiefs_.end(), [](const auto& chief) { return chief->lives(); });
  };
  while (!all_have_ended() && !world_.violation() && world_.next()) {
    if (world_.now() > scenario_.calm_from + kBound) world_.violate("no end");
  }
  if (!world_.violation()) require_tidy();
  result_.violation = world_.violation().value_or("");
  result_.log_hash = world_.log_hash();
  return result_;
}

}  // namespace tutti::simulation
