#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/store/manifest.h"
#include "tutti/store/shared_files.h"
#include "tutti/train/snapshot.h"
#include "tutti/train/strategies/connected.h"
#include "tutti/train/strategies/parameter_servers.h"

// The part of ParameterServers that saves checkpoints.
namespace tutti {

std::string ParameterServers::save_key(int64_t step) { return fmt::format("save {}", step); }
std::string ParameterServers::saved_key(int64_t fits) { return fmt::format("saved {}", fits); }

// Marks the servers that are known to be lost and had to write a part of the last checkpoint.
void ParameterServers::mark_lost_writers() {
  const std::vector<int>& without_run = client_->servers_without_run();
  for (const auto& [server, is_lost] : writers_) {
    const bool has_run = std::find(without_run.begin(), without_run.end(), server) == without_run.end();
    if (!has_run || !client_->is_connected(server)) *is_lost = true;
  }
}

// Waits until the last checkpoint is written, or cannot be written because a server was lost.
void ParameterServers::await_writers(const Session& session) {
  constexpr std::chrono::milliseconds kBetweenLooks{5};
  constexpr std::chrono::milliseconds kBetweenQuestions{500};
  auto next_question = std::chrono::steady_clock::now() + kBetweenQuestions;
  for (; !writers_.empty() && !session.has_saved(); std::this_thread::sleep_for(kBetweenLooks)) {
    if (std::chrono::steady_clock::now() < next_question) continue;
    try {
      static_cast<void>(client_->standing());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
    }
    mark_lost_writers();
    next_question = std::chrono::steady_clock::now() + kBetweenQuestions;
  }
}

// If workers make every step together, they wait until all copies were taken; else they go on.
void ParameterServers::save(Session& session, const Progress& progress, const Snapshots& more) {
  if (connected() != nullptr)
    return on_chief(context_, *connected(), {.what = "the checkpoint", .step = progress.step},
                    [&] { save_state(session, progress, more); });
  const std::string key = save_key(progress.step);
  if (group_.is_chief()) save_state(session, progress, more);
  if (!facts_.in_step) return;
  group_.is_chief() ? client_->note(key, true) : static_cast<void>(client_->read(key));
}

// If all servers share the folder of the checkpoint, each writes its part of the optimiser's state into it;
// else the chief receives all of it. The chief writes the values of the parameters, which it receives with
// every step, in one file for other programs.
void ParameterServers::save_state(Session& session, const Progress& progress, const Snapshots& more) {
  await_writers(session);
  std::optional<store::FolderMark> mark;
  if (const std::string folder = session.open_folder(); !folder.empty()) mark.emplace(folder);
  writers_.clear();
  const bool shared = mark && client_->all_share(mark->path());
  using Which = embedding::RowShard::Which;
  const std::vector<embedding::TableSpec> tables = replica_.tables().specs(replica_.optimizer().options());
  const auto base = tables.empty() || all_rows_next_ ? std::nullopt : session.rows_base(progress.step);
  const ps::Client::Snapshot snapshot = client_->snapshot(
      shared ? ps::Client::Slots::Keep : ps::Client::Slots::Send, base ? Which::Changed : Which::All);
  constexpr double kMostChanged = 0.5;
  all_rows_next_ = snapshot.changed_share > kMostChanged;
  vectors_->take_over_buffers();
  Progress saved = progress;
  saved.step = snapshot.step;
  saved.examples = snapshot.progress.value("examples", progress.examples);
  std::vector<store::SharedFile> files;
  if (shared) files = write_on_servers(mark->path(), snapshot);
  mark.reset();
  Snapshots all = more;
  if (!tables.empty())
    all[store::kRowsPart] = {snapshot.rows,
                             embedding::saved_facts(tables, snapshot.row_counts, snapshot.averaged_steps)};
  session.save(saved, {snapshot.state}, all, files, base);
}

std::vector<store::SharedFile> ParameterServers::write_on_servers(const std::string& mark,
                                                                  const ps::Client::Snapshot& snapshot) {
  std::vector<store::SharedFile> files;
  for (int server = 0; server < client_->servers(); ++server) {
    std::vector<std::vector<store::NamedTensor>> tensors;
    for (const Optimizer::Slot& slot : snapshot.kept.at(static_cast<size_t>(server)))
      tensors.push_back(tensors_of(replica_.parameters(), {slot}));
    const std::string name = store::shared_file_name(store::kOptimizerPart, server, client_->servers());
    std::string rows_name;
    if (!replica_.tables().empty())
      rows_name = store::shared_file_name(store::kRowsPart, server, client_->servers());
    client_->write(server, mark, name, snapshot.step, tensors, rows_name);
    const auto is_lost = writers_[server] = std::make_shared<std::atomic<bool>>(false);
    files.push_back({store::kOptimizerPart, name, client_->name(server), is_lost});
    if (!rows_name.empty()) files.push_back({store::kRowsPart, rows_name, client_->name(server), is_lost});
  }
  return files;
}

// All workers wait for the chief: if a server is lost before it has written its part, they have to make the
// last steps again together.
void ParameterServers::finish_saving(Session& session) {
  if (connected() != nullptr)
    return on_chief(context_, *connected(), {.what = "the checkpoint"}, [&] {
      await_writers(session);
      try {
        session.finish_saving();
      } catch (const Error&) {
        has_lost_checkpoint_ = true;
        throw;
      }
    });
  const std::string key = saved_key(fits_);
  if (!group_.is_chief()) {
    const Json saved = client_->read(key);
    if (saved.is_object())
      throw Error(static_cast<ErrorKind>(saved.at("kind").get<int>()), saved.at("error").get<std::string>());
    return;
  }
  try {
    await_writers(session);
    session.finish_saving();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::PeerLost) throw;
    client_->note(key, {{"kind", static_cast<int>(error.kind())},
                        {"error", fmt::format("{}: {}", context_.task().short_name(), error.what())}});
    throw;
  }
  client_->note(key, true);
}

}  // namespace tutti
