#include "tutti/transport/mpi/mpi.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mpi.h>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/group_call.h"
#include "tutti/transport/mpi/library.h"
#include "tutti/transport/mpi/messages.h"

namespace tutti::comm {
namespace {

using mpi::Backoff;
using mpi::check;
using mpi::Group;
using mpi::Library;
using mpi::Messages;
using mpi::rank_in;
using mpi::ranks_of;

// Returns the MPI type with which MPI's own all-reduce is used, or MPI_DATATYPE_NULL if it is not.
MPI_Datatype mpi_type(ElementType type) {
  switch (type) {
    case ElementType::Float32:
      return MPI_FLOAT;
    case ElementType::Float64:
      return MPI_DOUBLE;
    case ElementType::Int32:
      return MPI_INT32_T;
    case ElementType::Int64:
      return MPI_INT64_T;
    default:
      return MPI_DATATYPE_NULL;
  }
}

// The least that every MPI allows as the largest tag.
constexpr uint64_t kTags = 1 << 15;

// Returns a tag that tells this exchange from other ones, but for one in kTags.
int tag_of(const Operation& operation, uint64_t number) {
  return static_cast<int>((key_of(operation) + number * 0x9E3779B97F4A7C15U) >> 32 & (kTags - 1));
}

constexpr int64_t kMostAtATime = int64_t{1} << 22;  // elements

class MpiTransport final : public Transport {
 public:
  // Both groups have the same ranks. Messages of one group never match messages of the other.
  MpiTransport(std::shared_ptr<Rendezvous> board, MpiOptions options, Group exchanges, Group messages)
      : board_(std::move(board)),
        options_(std::move(options)),
        who_([this](int rank) { return name_of(options_.who, rank); }),
        exchanges_(std::move(exchanges)),
        messages_(std::move(messages)),
        rank_(rank_in(exchanges_.get())),
        world_(static_cast<int>(ranks_of(exchanges_.get()).size())),
        labels_(static_cast<size_t>(world_)) {
    if (world_ == 1) return;
    failures_ = std::make_unique<Failures>(with_prefix(board_, "failures/"),
                                           FailuresOptions{.rank = rank_,
                                                           .world = world_,
                                                           .who = options_.who,
                                                           .holder = options_.holder,
                                                           .silence = options_.timeout},
                                           [this] { give_up(); });
  }

  ~MpiTransport() override {
    if (adding_) Library::get().leave_to_mpi(adding_);
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  std::string name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  Failures* failures() override { return failures_.get(); }

  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override {
    const SpanScope span = span_of_exchange(sends, recvs, operation);
    const int tag = tag_of(operation, exchanged_++);
    std::vector<int> talking;
    for (int r = 0; r < world_; ++r) {
      const auto i = static_cast<size_t>(r);
      if (r != rank_ && !(sends[i].empty() && recvs[i].empty())) talking.push_back(r);
    }
    if (talking.empty()) return;
    Messages messages(exchanges_.get(), who_, tag, [&](int peer, int) {
      return fmt::format(
          "{} calls {}, but {} calls another operation: every rank has to call the same operations in the "
          "same "
          "order, with the same sizes and root",
          who_(rank_), OperationLabel(operation).text(), who_(peer));
    });
    attempt(operation, Failures::Party::All, talking, messages, [&] {
      for (const int r : talking) messages.recv(recvs[static_cast<size_t>(r)], r);
      for (const int r : talking) messages.send(sends[static_cast<size_t>(r)], r);
    });
  }

  // Its label goes before each message.
  void send(ConstBytes bytes, int to, const Operation& operation) override {
    const OperationLabel label(operation);
    between_two(operation, to, [&](Messages& messages) {
      messages.send(std::as_bytes(std::span(&label, 1)), to);
      messages.send(bytes, to);
    });
  }

  void recv(Bytes bytes, int from, const Operation& operation) override {
    const OperationLabel own(operation);
    const OperationLabel sent = await_message(from, operation);
    label_of(from).reset();
    between_two(operation, from, [&](Messages& messages) {
      if (!other_message(who_(rank_), own, who_(from), sent).empty())
        fail(ErrorKind::InvalidArgument, "{} expects {} from {}, which sends {}", who_(rank_), own.elements(),
             who_(from), sent.elements());
      messages.recv(bytes, from);
    });
  }

  OperationLabel await_message(int from, const Operation& operation) override {
    if (!label_of(from)) {
      OperationLabel label;
      between_two(operation, from, [&](Messages& messages) {
        messages.recv(std::as_writable_bytes(std::span(&label, 1)), from);
      });
      label_of(from) = label;
    }
    return *label_of(from);
  }

  std::optional<OperationLabel> next_message(int from) override {
    failures_->throw_if_failed();
    if (!label_of(from) && !mpi::has_come(messages_.get(), from)) return std::nullopt;
    Operation operation = operation_of("recv", {}, options_.timeout);
    operation.peer = kAnyRank;
    return await_message(from, operation);
  }

  void abandon(const std::string& text) override { failures_->give_up(text); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

 private:
  // Uses MPI's own all-reduce.
  bool add_in_any_order(const Array& values, const Operation& operation) override {
    const MPI_Datatype type = mpi_type(values.type);
    if (type == MPI_DATATYPE_NULL) return false;
    std::vector<int> others;
    for (int r = 0; r < world_; ++r) {
      if (r != rank_) others.push_back(r);
    }
    // After a failure MPI may still write to this memory, so it is not the caller's, and is then never freed.
    const int64_t room = std::min(kMostAtATime, values.count);
    adding_ = memory_for(values.part(0, room).size());
    for (int64_t done = 0; done < values.count; done += room) {
      const Array place = values.part(done, std::min(room, values.count - done));
      const Array chunk{adding_.get(), values.type, place.count};
      copy(place, chunk);
      Messages messages(exchanges_.get(), who_, 0, {});
      attempt(operation, Failures::Party::All, others, messages,
              [&] { messages.add_all(chunk, type, others); });
      copy(chunk, place);
    }
    adding_.reset();
    return true;
  }

  void give_up() {
    // Some messages may still be in progress.
    exchanges_.broken();
    messages_.broken();
    mpi_never_finalise();
    given_up_ = true;
  }

  // The label of the next message from this rank, once that is known.
  std::optional<OperationLabel>& label_of(int from) { return labels_[static_cast<size_t>(from)]; }

  template <class Post>
  void between_two(const Operation& operation, int peer, const Post& post) {
    Messages messages(messages_.get(), who_, 0, {});
    attempt(operation, Failures::Party::Two, {peer}, messages, [&] { post(messages); });
  }

  template <class Post>
  void attempt(const Operation& operation, Failures::Party party, const std::vector<int>& peers,
               Messages& messages, const Post& post) {
    auto watch = failures_->watch(operation, party, peers);
    try {
      post();
      if (messages.finish(watch, given_up_)) return;
    } catch (const Error& error) {
      messages.cancel();
      failures_->report(error.kind(), fmt::format("{} failed: {}", describe(operation), error.what()));
    }
    messages.cancel();
    failures_->throw_if_failed();
  }

  const std::shared_ptr<Rendezvous> board_;  // shared with users of other prefixes of it
  const MpiOptions options_;
  const std::function<std::string(int rank)> who_;
  Group exchanges_;
  Group messages_;
  const int rank_;
  const int world_;
  std::vector<std::optional<OperationLabel>> labels_;
  uint64_t exchanged_ = 0;  // exchanges begun so far
  std::shared_ptr<std::byte> adding_;
  std::atomic<bool> given_up_{false};
  std::unique_ptr<Failures> failures_;  // last, so that it is destroyed first
};

// All ranks must be here before MPI creates a group, since that waits for all of them and has no timeout.
std::unique_ptr<Transport> make_transport(std::shared_ptr<Rendezvous> board, MpiOptions options,
                                          MPI_Comm world, const std::vector<int>& ranks, int rank) {
  roll_call(*board, {.rank = rank, .world = static_cast<int>(ranks.size()), .who = options.who}, "",
            options.timeout);
  Group exchanges = Group::make(world, ranks, 0);
  Group messages = Group::make(world, ranks, 1);
  return std::make_unique<MpiTransport>(std::move(board), std::move(options), std::move(exchanges),
                                        std::move(messages));
}

std::unique_ptr<Transport> MpiTransport::split(const std::vector<int>& ranks, const std::string& name) {
  MpiOptions options = options_;
  options.who = names_of(options_.who, ranks);
  const auto me = std::find(ranks.begin(), ranks.end(), rank_);
  TUTTI_CHECK(me != ranks.end(), "rank {}", rank_);
  auto board = with_prefix(board_, name + "/");
  meet_for_group(*board, {.ranks = ranks, .rank = rank_, .who = options_.who, .timeout = options_.timeout});
  return make_transport(std::move(board), std::move(options), exchanges_.get(), ranks,
                        static_cast<int>(me - ranks.begin()));
}

// Broadcasts in place. Returns false if the bytes do not arrive in time.
bool broadcast(const std::shared_ptr<std::string>& bytes, int root,
               std::chrono::steady_clock::time_point deadline) {
  Library& library = Library::get();
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const auto lock = library.lock();
    check(
        MPI_Ibcast(bytes->data(), static_cast<int>(bytes->size()), MPI_BYTE, root, MPI_COMM_WORLD, &request));
  }
  for (Backoff backoff;; backoff.wait()) {
    int done = 0;
    {
      const auto lock = library.lock();
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    }
    if (done != 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) break;
  }
  library.leave_to_mpi(bytes);
  return false;
}

}  // namespace

bool mpi_built() { return true; }

void mpi_initialise() { Library::get(); }

void mpi_never_finalise() noexcept { mpi::never_finalise(); }

std::string mpi_broadcast_text(const std::string& text, int root, std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  uint64_t size = text.size();
  const auto size_bytes = std::make_shared<std::string>(sizeof(size), '\0');
  std::memcpy(size_bytes->data(), &size, sizeof(size));
  const auto bytes = std::make_shared<std::string>(text);
  const bool knows = broadcast(size_bytes, root, deadline);
  std::memcpy(&size, size_bytes->data(), sizeof(size));
  if (knows) bytes->resize(size);
  if (!knows || !broadcast(bytes, root, deadline))
    fail(ErrorKind::Timeout,
         "nothing from rank {} through MPI for {:g} s. Look at what it is doing, or raise --timeout", root,
         seconds(timeout));
  return *bytes;
}

std::unique_ptr<Transport> mpi_transport(std::shared_ptr<Rendezvous> board, const MpiOptions& options) {
  mpi_initialise();
  return make_transport(std::move(board), options, MPI_COMM_WORLD, ranks_of(MPI_COMM_WORLD),
                        rank_in(MPI_COMM_WORLD));
}

}  // namespace tutti::comm
