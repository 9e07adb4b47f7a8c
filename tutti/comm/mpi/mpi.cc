#include "tutti/comm/mpi/mpi.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mpi.h>
#include <mutex>
#include <optional>
#include <sched.h>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/type_name.h"
#include "tutti/comm/failure_board.h"

namespace tutti::comm {
namespace {

// Largest message in bytes: MPI uses int for counts.
constexpr size_t kPiece = size_t{1} << 30;

void check(int code, int line = __builtin_LINE()) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int size = 0;
  MPI_Error_string(code, text, &size);
  fail(ErrorKind::PeerLost, "MPI reports '{}' (mpi.cc:{})", text, line);
}

// Not a member of Library: setting it must not initialise MPI.
std::atomic<bool> may_finalise{true};

// MPI itself. MPI exists once per process, so this file has static objects, unlike all others.
class Library {
 public:
  static Library& get() {
    static Library library;
    return library;
  }

  // Hold this around every call. It locks only if MPI supports just one thread at a time.
  std::unique_lock<std::mutex> lock() {
    return one_thread_ ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
  }
  // Keeps memory that MPI may still write to alive forever.
  void leave_to_mpi(std::shared_ptr<void> memory) {
    const auto one_at_a_time = lock();
    left_.push_back(std::move(memory));
  }
  // Call this if a message cannot be cancelled: it may still be written to memory that its owner is about to
  // free. MPI only writes during its calls, so MPI is not called any more.
  void stop() {
    stopped_ = true;
    may_finalise = false;
  }
  bool stopped() const { return stopped_; }
  void require_usable() const {
    if (stopped_)
      fail(ErrorKind::PeerLost,
           "MPI can no longer be used, since it has a message in progress that cannot be cancelled");
  }

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

 private:
  Library() {
    int there = 0;
    check(MPI_Initialized(&there));
    int level = MPI_THREAD_SINGLE;
    if (there != 0) {
      check(MPI_Query_thread(&level));
    } else {
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level));
      ours_ = true;
    }
    one_thread_ = level < MPI_THREAD_MULTIPLE;
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  }

  ~Library() {
    int done = 1;
    MPI_Finalized(&done);
    if (ours_ && may_finalise && done == 0) MPI_Finalize();
  }

  std::mutex mutex_;
  bool one_thread_ = false;
  bool ours_ = false;  // initialised here
  std::atomic<bool> stopped_{false};
  std::vector<std::shared_ptr<void>> left_;
};

class Group {
 public:
  explicit Group(MPI_Comm group) : group_(group) {}
  Group(Group&& other) noexcept : group_(std::exchange(other.group_, MPI_COMM_NULL)) {}
  Group(const Group&) = delete;
  ~Group() {
    // If a message is still in progress, freeing would wait for it.
    if (group_ == MPI_COMM_NULL || broken_ || Library::get().stopped()) return;
    const auto lock = Library::get().lock();
    MPI_Comm_free(&group_);
  }

  MPI_Comm get() const { return group_; }
  void broken() { broken_ = true; }

 private:
  MPI_Comm group_;
  std::atomic<bool> broken_{false};
};

Group group_of(MPI_Comm world, const std::vector<int>& ranks, int tag) {
  Library::get().require_usable();
  const auto lock = Library::get().lock();
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm group = MPI_COMM_NULL;
  check(MPI_Comm_group(world, &all));
  check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some));
  check(MPI_Comm_create_group(world, some, tag, &group));
  check(MPI_Group_free(&some));
  check(MPI_Group_free(&all));
  check(MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN));
  return Group(group);
}

int rank_in(MPI_Comm group) {
  int rank = 0;
  check(MPI_Comm_rank(group, &rank));
  return rank;
}

std::vector<int> ranks_of(MPI_Comm group) {
  int world = 0;
  check(MPI_Comm_size(group, &world));
  std::vector<int> ranks(static_cast<size_t>(world));
  for (int r = 0; r < world; ++r) ranks[static_cast<size_t>(r)] = r;
  return ranks;
}

// How a thread waits for others: at first it spins, so that short messages are fast; then it yields, since
// there may be more ranks than cores; then it sleeps.
class Backoff {
 public:
  void wait() {
    ++waited_;
    if (waited_ < 100) return;
    if (waited_ < 2000) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  void forget() { waited_ = 0; }

 private:
  int waited_ = 0;
};

// Returns the MPI type with which MPI's own all-reduce is used, or MPI_DATATYPE_NULL if it is not.
MPI_Datatype mpi_type(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat:
      return MPI_FLOAT;
    case torch::kDouble:
      return MPI_DOUBLE;
    case torch::kInt:
      return MPI_INT32_T;
    case torch::kLong:
      return MPI_INT64_T;
    default:
      return MPI_DATATYPE_NULL;
  }
}

std::optional<torch::ScalarType> type_of(const Operation& operation) {
  return operation.whole ? std::optional(operation.whole->type) : std::nullopt;
}

constexpr int64_t kMostAtATime = int64_t{1} << 28;  // elements: MPI uses int for counts

// Messages in progress, in pieces of at most kPiece bytes.
class Messages {
 public:
  // `who` returns the name of a rank for error messages; it must outlive this object. The elements of a
  // message are its tag.
  Messages(MPI_Comm group, const std::function<std::string(int rank)>& who,
           std::optional<torch::ScalarType> type = {})
      : group_(group), who_(who), tag_(type ? static_cast<int>(*type) : 0) {}

  void send(ConstBytes bytes, int to) {
    post(bytes.size(), to, Way::Out, [&](size_t done, int size, MPI_Request* request) {
      return MPI_Isend(bytes.data() + done, size, MPI_BYTE, to, tag_, group_, request);
    });
  }
  void recv(Bytes bytes, int from) {
    post(bytes.size(), from, Way::In, [&](size_t done, int size, MPI_Request* request) {
      return MPI_Irecv(bytes.data() + done, size, MPI_BYTE, from, MPI_ANY_TAG, group_, request);
    });
  }

  // Starts MPI's own all-reduce over all ranks of the group, in place.
  void add_all(const torch::Tensor& flat, MPI_Datatype type, const std::vector<int>& peers) {
    Library::get().require_usable();
    const auto lock = Library::get().lock();
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallreduce(MPI_IN_PLACE, flat.data_ptr(), static_cast<int>(flat.numel()), type, MPI_SUM, group_,
                         &request));
    requests_.push_back(request);
    posts_.push_back({kEverybody, kAnySize});
    everybody_ = peers;
  }

  // Waits until all requests have completed, and tells the watch of each peer that has none left. Returns
  // false if `give_up` becomes true.
  bool finish(FailureBoard::Watch& watch, const std::atomic<bool>& give_up) {
    std::vector<int> done(requests_.size());
    Backoff backoff;
    for (size_t left = requests_.size(); left > 0;) {
      const int count = test(done);
      if (count == 0) {
        if (give_up) return false;
        backoff.wait();
        continue;
      }
      backoff.forget();
      left -= static_cast<size_t>(count);
      for (int i = 0; i < count; ++i) {
        const int peer = posts_[static_cast<size_t>(done[static_cast<size_t>(i)])].peer;
        if (peer == kEverybody) {
          for (const int each : everybody_) watch.arrived(each);
        } else if (--open_[peer] == 0) {
          watch.arrived(peer);
        }
      }
    }
    return true;
  }

  // Cancels what can still be cancelled. Waits up to kLastBytes for messages that have begun to arrive, so
  // that nothing is written to the caller's memory afterwards. MPI gives no guarantee about sends that are
  // never received; after a failure the job ends anyway.
  void cancel() noexcept {
    if (Library::get().stopped()) return;
    {
      const auto lock = Library::get().lock();
      for (size_t i = 0; i < requests_.size(); ++i) {
        if (requests_[i] == MPI_REQUEST_NULL || posts_[i].peer == kEverybody) continue;
        MPI_Cancel(&requests_[i]);
        if (!is_receive(posts_[i])) MPI_Request_free(&requests_[i]);
      }
    }
    const auto deadline = std::chrono::steady_clock::now() + kLastBytes;
    for (Backoff backoff; receiving(); backoff.wait()) {
      if (std::chrono::steady_clock::now() < deadline) continue;
      Library::get().stop();
      return;
    }
  }

 private:
  enum class Way { In, Out };
  struct Posted {
    int peer;
    int expected;  // bytes
  };

  template <class Post>
  void post(size_t size, int peer, Way way, const Post& one) {
    Library::get().require_usable();
    for (size_t done = 0; done < size; done += kPiece) {
      const auto lock = Library::get().lock();
      MPI_Request request = MPI_REQUEST_NULL;
      const int piece = static_cast<int>(std::min(kPiece, size - done));
      check(one(done, piece, &request));
      requests_.push_back(request);
      posts_.push_back({peer, way == Way::In ? piece : kAnySize});
      ++open_[peer];
    }
  }

  int test(std::vector<int>& done) {
    Library::get().require_usable();
    const auto lock = Library::get().lock();
    int count = 0;
    statuses_.resize(requests_.size());
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, done.data(),
                                  statuses_.data());
    if (code != MPI_ERR_IN_STATUS) check(code);
    TUTTI_CHECK(count != MPI_UNDEFINED, "{} requests", requests_.size());
    for (int i = 0; i < count; ++i) {
      const auto place = static_cast<size_t>(i);
      look_at(posts_[static_cast<size_t>(done[place])], statuses_[place], code);
    }
    return count;
  }

  // MPI does not report a message that is shorter than its buffer, so this checks the size.
  void look_at(const Posted& posted, const MPI_Status& status, int code) const {
    const int error = code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
    if (error == MPI_ERR_TRUNCATE) fail_other_size(posted, "more");
    check(error);
    if (posted.expected == kAnySize) return;
    int received = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &received));
    if (received != posted.expected) fail_other_size(posted, std::to_string(received));
    if (status.MPI_TAG != tag_)
      fail(ErrorKind::InvalidArgument, "{} expects {} from {}, which sends {}", who_(rank_in(group_)),
           type_name(static_cast<torch::ScalarType>(tag_)), who_(posted.peer),
           type_name(static_cast<torch::ScalarType>(status.MPI_TAG)));
  }

  [[noreturn]] void fail_other_size(const Posted& posted, const std::string& sent) const {
    fail(ErrorKind::InvalidArgument, "{} expects {} bytes from {}, which sends {}", who_(rank_in(group_)),
         posted.expected, who_(posted.peer), sent);
  }

  static bool is_receive(const Posted& posted) {
    return posted.peer != kEverybody && posted.expected != kAnySize;
  }

  bool receiving() {
    const auto lock = Library::get().lock();
    bool any = false;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL || !is_receive(posts_[i])) continue;
      int done = 0;
      MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
      any = any || done == 0;
    }
    return any;
  }

  static constexpr std::chrono::milliseconds kLastBytes{1000};
  static constexpr int kEverybody = -1;
  static constexpr int kAnySize = -1;

  const MPI_Comm group_;
  const std::function<std::string(int rank)>& who_;
  const int tag_;
  std::vector<int> everybody_;  // all ranks but this one; set by add_all()
  std::vector<MPI_Request> requests_;
  std::vector<Posted> posts_;         // the message of each request
  std::vector<MPI_Status> statuses_;  // buffer for MPI_Testsome
  std::map<int, int> open_;           // number of open requests by peer
};

class MpiTransport final : public Transport, public OwnAllReduce {
 public:
  // Both groups have the same ranks. Messages of one group never match those of the other.
  MpiTransport(std::shared_ptr<Rendezvous> table, MpiOptions options, Group exchanges, Group messages)
      : table_(std::move(table)),
        options_(std::move(options)),
        who_([this](int rank) { return name_of(options_.who, rank); }),
        exchanges_(std::move(exchanges)),
        messages_(std::move(messages)),
        rank_(rank_in(exchanges_.get())),
        world_(static_cast<int>(ranks_of(exchanges_.get()).size())) {
    if (world_ == 1) return;
    board_ = std::make_unique<FailureBoard>(with_prefix(table_, "board/"),
                                            BoardOptions{.rank = rank_,
                                                         .world = world_,
                                                         .who = options_.who,
                                                         .holder = options_.holder,
                                                         .silence = options_.timeout},
                                            [this] { give_up(); });
  }

  ~MpiTransport() override {
    if (adding_.defined()) Library::get().leave_to_mpi(std::make_shared<torch::Tensor>(adding_));
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  std::string name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  Abilities abilities() override { return {.own_all_reduce = this, .board = board_.get()}; }

  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override {
    std::vector<int> talking;
    for (int r = 0; r < world_; ++r) {
      const auto i = static_cast<size_t>(r);
      if (r != rank_ && !(sends[i].empty() && recvs[i].empty())) talking.push_back(r);
    }
    if (talking.empty()) return;
    Messages messages(exchanges_.get(), who_);
    attempt(operation, FailureBoard::Party::All, talking, messages, [&] {
      for (const int r : talking) messages.recv(recvs[static_cast<size_t>(r)], r);
      for (const int r : talking) messages.send(sends[static_cast<size_t>(r)], r);
    });
  }

  void send(ConstBytes bytes, int to, const Operation& operation) override {
    if (bytes.empty()) return;
    Messages messages(messages_.get(), who_, type_of(operation));
    attempt(operation, FailureBoard::Party::Two, {to}, messages, [&] { messages.send(bytes, to); });
  }

  void recv(Bytes bytes, int from, const Operation& operation) override {
    if (bytes.empty()) return;
    Messages messages(messages_.get(), who_, type_of(operation));
    attempt(operation, FailureBoard::Party::Two, {from}, messages, [&] { messages.recv(bytes, from); });
  }

  bool adds(torch::ScalarType type) const override { return mpi_type(type) != MPI_DATATYPE_NULL; }
  void add_all(const torch::Tensor& flat, const Operation& operation) override {
    std::vector<int> others;
    for (int r = 0; r < world_; ++r) {
      if (r != rank_) others.push_back(r);
    }
    // After a failure MPI may still write to this tensor, so it is then never freed.
    adding_ = flat;
    for (int64_t done = 0; done < flat.numel(); done += kMostAtATime) {
      const torch::Tensor piece = flat.narrow(0, done, std::min(kMostAtATime, flat.numel() - done));
      Messages messages(exchanges_.get(), who_);
      attempt(operation, FailureBoard::Party::All, others, messages,
              [&] { messages.add_all(piece, mpi_type(flat.scalar_type()), others); });
    }
    adding_ = torch::Tensor();
  }
  void abandon(const std::string& text) override { board_->give_up(text); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

 private:
  void give_up() {
    // Some messages may still be in progress.
    exchanges_.broken();
    messages_.broken();
    mpi_never_finalise();
    given_up_ = true;
  }

  template <class Post>
  void attempt(const Operation& operation, FailureBoard::Party party, const std::vector<int>& peers,
               Messages& messages, const Post& post) {
    auto watch = board_->watch(operation, party, peers);
    try {
      post();
      if (messages.finish(watch, given_up_)) return;
    } catch (const Error& error) {
      messages.cancel();
      board_->report(error.kind(), fmt::format("{} failed: {}", describe(operation), error.what()));
    }
    messages.cancel();
    board_->throw_if_failed();
  }

  const std::shared_ptr<Rendezvous> table_;  // shared with users of other prefixes of it
  const MpiOptions options_;
  const std::function<std::string(int rank)> who_;
  Group exchanges_;
  Group messages_;
  const int rank_;
  const int world_;
  torch::Tensor adding_;
  std::atomic<bool> given_up_{false};
  std::unique_ptr<FailureBoard> board_;  // last, so that it is destroyed first
};

// All ranks must be here before MPI creates a group, since that waits for all of them and has no timeout.
std::unique_ptr<Transport> make_transport(std::shared_ptr<Rendezvous> table, MpiOptions options,
                                          MPI_Comm world, const std::vector<int>& ranks, int rank) {
  roll_call(*table, {.rank = rank, .world = static_cast<int>(ranks.size()), .who = options.who}, "",
            options.timeout);
  Group exchanges = group_of(world, ranks, 0);
  Group messages = group_of(world, ranks, 1);
  return std::make_unique<MpiTransport>(std::move(table), std::move(options), std::move(exchanges),
                                        std::move(messages));
}

std::unique_ptr<Transport> MpiTransport::split(const std::vector<int>& ranks, const std::string& name) {
  MpiOptions options = options_;
  options.who = names_of(options_.who, ranks);
  const auto me = std::find(ranks.begin(), ranks.end(), rank_);
  TUTTI_CHECK(me != ranks.end(), "rank {}", rank_);
  return make_transport(with_prefix(table_, name + "/"), std::move(options), exchanges_.get(), ranks,
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

void mpi_never_finalise() noexcept { may_finalise = false; }

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

std::unique_ptr<Transport> mpi_transport(std::shared_ptr<Rendezvous> table, const MpiOptions& options) {
  mpi_initialise();
  return make_transport(std::move(table), options, MPI_COMM_WORLD, ranks_of(MPI_COMM_WORLD),
                        rank_in(MPI_COMM_WORLD));
}

}  // namespace tutti::comm
