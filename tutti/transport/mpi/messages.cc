#include "tutti/transport/mpi/messages.h"

#include <algorithm>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/transport/mpi/library.h"

namespace tutti::comm::mpi {
namespace {

// Largest message in bytes: MPI uses int for counts.
constexpr size_t kChunk = size_t{1} << 30;

}  // namespace

bool has_come(MPI_Comm group, int from) {
  Library::get().require_usable();
  const auto lock = Library::get().lock();
  int come = 0;
  check(MPI_Iprobe(from, MPI_ANY_TAG, group, &come, MPI_STATUS_IGNORE));
  return come != 0;
}

template <class Post>
void Messages::post(size_t size, int peer, Way way, const Post& one) {
  Library::get().require_usable();
  for (size_t done = 0; done < size; done += kChunk) {
    const auto lock = Library::get().lock();
    MPI_Request request = MPI_REQUEST_NULL;
    const int chunk = static_cast<int>(std::min(kChunk, size - done));
    check(one(done, chunk, &request));
    requests_.push_back(request);
    posts_.push_back({peer, way == Way::In ? chunk : kAnySize});
    ++open_[peer];
  }
}

void Messages::send(ConstBytes bytes, int to) {
  post(bytes.size(), to, Way::Out, [&](size_t done, int size, MPI_Request* request) {
    return MPI_Isend(bytes.data() + done, size, MPI_BYTE, to, tag_, group_, request);
  });
}
void Messages::recv(Bytes bytes, int from) {
  post(bytes.size(), from, Way::In, [&](size_t done, int size, MPI_Request* request) {
    return MPI_Irecv(bytes.data() + done, size, MPI_BYTE, from, MPI_ANY_TAG, group_, request);
  });
}

void Messages::add_all(const Array& values, MPI_Datatype type, const std::vector<int>& peers) {
  Library::get().require_usable();
  const auto lock = Library::get().lock();
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallreduce(MPI_IN_PLACE, values.data, static_cast<int>(values.count), type, MPI_SUM, group_,
                       &request));
  requests_.push_back(request);
  posts_.push_back({kEverybody, kAnySize});
  everybody_ = peers;
}

bool Messages::finish(Failures::Watch& watch, const std::atomic<bool>& give_up) {
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

void Messages::cancel() noexcept {
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

int Messages::test(std::vector<int>& done) {
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
void Messages::look_at(const Posted& posted, const MPI_Status& status, int code) const {
  const int error = code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
  if (is_receive(posted) && (error == MPI_SUCCESS || error == MPI_ERR_TRUNCATE) && status.MPI_TAG != tag_)
    fail(ErrorKind::InvalidArgument, "{}", other_tag_(posted.peer, status.MPI_TAG));
  if (error == MPI_ERR_TRUNCATE) fail_other_size(posted, "more");
  check(error);
  if (posted.expected == kAnySize) return;
  int received = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &received));
  if (received != posted.expected) fail_other_size(posted, std::to_string(received));
}

void Messages::fail_other_size(const Posted& posted, const std::string& sent) const {
  fail(ErrorKind::InvalidArgument, "{} expects {} bytes from {}, which sends {}", who_(rank_in(group_)),
       posted.expected, who_(posted.peer), sent);
}

bool Messages::is_receive(const Posted& posted) {
  return posted.peer != kEverybody && posted.expected != kAnySize;
}

bool Messages::receiving() {
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

}  // namespace tutti::comm::mpi
