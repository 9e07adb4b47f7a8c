#include "tutti/net/records.h"

#include <algorithm>
#include <bit>
#include <sys/socket.h>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/check.h"
#include "tutti/base/hashes.h"
#include "tutti/base/net.h"

namespace tutti::net {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they lie in memory");

// Few enough that the bytes are still in the cache when the system copies them, or has copied them.
constexpr size_t kMostInRecord = size_t{64} << 10;
// How much is received behind the bytes that are wanted: the next head, or some small messages.
constexpr size_t kBehind = size_t{4} << 10;
// Parts that are given to one call of the system, besides a head and what is received behind.
constexpr size_t kRanges = 62;

// Calls use(bytes) for each range of at most `most` bytes of the parts from `offset` on.
template <class Part, class Use>
void each_range(std::span<const Part> parts, size_t offset, size_t most, const Use& use) {
  for (const Part part : parts) {
    const size_t skipped = std::min(offset, part.size());
    offset -= skipped;
    const size_t size = std::min(part.size() - skipped, most);
    if (size > 0) use(part.subspan(skipped, size));
    most -= size;
    if (most == 0) return;
  }
}

template <class Part>
struct Ranges {
  std::array<Part, kRanges + 2> all;
  size_t count = 0;

  void add(std::span<const Part> parts, size_t offset, size_t most) {
    each_range(parts, offset, most, [this](Part range) {
      if (count <= kRanges) all[count++] = range;
    });
  }
  size_t size() const {
    size_t sum = 0;
    for (size_t i = 0; i < count; ++i) sum += all[i].size();
    return sum;
  }
};

template <class Name>
std::string address_of(int socket, Name name) {
  SocketAddress address;
  if (name(socket, address.get(), &address.size) != 0) return "an unknown address";
  return to_string(Address{numeric(address), port_of(address)});
}

}  // namespace

Records::Records(int socket, ConstBytes received) : socket_(socket) {
  TUTTI_CHECK(received.size() <= reader_.size(), "{} bytes", received.size());
  std::copy(received.begin(), received.end(), reader_.begin());
  ahead_ = ConstBytes(reader_).first(received.size());
}

uint32_t Records::check_of(const Head& head, uint32_t before) {
  return crc32c(std::as_bytes(std::span(&head, 1)).first(offsetof(Head, check)), before);
}

// --- Sending.

void Records::begin_sending(std::span<const ConstBytes> parts, size_t offset) {
  Head head{.size = 0, .sum = out_.before};
  each_range(parts, offset, kMostInRecord, [&head](ConstBytes bytes) {
    head.size += static_cast<uint32_t>(bytes.size());
    head.sum = crc32c(bytes, head.sum);
  });
  head.check = check_of(head, out_.before);
  out_.head = head;
}

size_t Records::send(std::span<const ConstBytes> parts) {
  size_t sent = 0;
  while (true) {
    if (out_.head.size == 0) begin_sending(parts, sent);
    if (out_.head.size == 0) return sent;
    const ConstBytes head = std::as_bytes(std::span(&out_.head, 1));
    Ranges<ConstBytes> ranges;
    ranges.add({&head, 1}, out_.head_moved, head.size());
    ranges.add(parts, sent, out_.head.size - out_.moved);
    const size_t moved = send_plain(socket_, std::span(ranges.all).first(ranges.count));
    if (moved == 0) return sent;
    const size_t of_head = std::min(moved, head.size() - out_.head_moved);
    out_.head_moved += of_head;
    out_.moved += moved - of_head;
    sent += moved - of_head;
    if (out_.moved == out_.head.size) out_ = {.before = out_.head.sum};
  }
}

// --- Receiving.

size_t Records::receive(std::span<const Bytes> places) {
  size_t room = 0;
  for (const Bytes place : places) room += place.size();
  size_t received = 0;
  try {
    while (received < room) {
      if (!kept_.empty()) {
        received += give_out(places, received);
        continue;
      }
      if (!receive_record(places, received, room - received)) break;
      if (in_place_)
        received += in_.head.size;
      else
        kept_ = {keeper_.get(), in_.head.size};
      in_ = {.before = in_.head.sum};
    }
  } catch (const StreamEnd&) {
    if (received == 0) throw;  // otherwise, the next call does
  }
  return received;
}

// Returns false if a part of the record is still on its way.
bool Records::receive_record(std::span<const Bytes> places, size_t offset, size_t room) {
  const Bytes head = std::as_writable_bytes(std::span(&in_.head, 1));
  while (in_.head_moved < head.size()) {
    const size_t moved = fetch({&head, 1}, in_.head_moved, head.size() - in_.head_moved);
    if (moved == 0) return false;
    in_.head_moved += moved;
  }
  if (in_.moved == 0) begin_receiving(room);
  const Bytes keeper(keeper_.get(), in_place_ ? 0 : in_.head.size);
  TUTTI_CHECK(!in_place_ || in_.head.size <= room, "{} of {} bytes", room, in_.head.size);
  const std::span<const Bytes> to = in_place_ ? places : std::span(&keeper, 1);
  while (in_.moved < in_.head.size) {
    const size_t begin = (in_place_ ? offset : 0) + in_.moved;
    const size_t moved = fetch(to, begin, in_.head.size - in_.moved);
    if (moved == 0) return false;
    each_range(to, begin, moved, [this](ConstBytes bytes) { sum_ = crc32c(bytes, sum_); });
    in_.moved += moved;
  }
  if (sum_ != in_.head.sum) fail_changed();
  return true;
}

// A Stream may offer another place for the same bytes if these are few, since it reads ahead as well.
void Records::begin_receiving(size_t room) {
  const Head& head = in_.head;
  if (head.check != check_of(head, in_.before) || head.size == 0 || head.size > kMostInRecord) fail_changed();
  sum_ = in_.before;
  in_place_ = head.size > kMostAhead && head.size <= room;
  if (!in_place_ && keeper_ == nullptr) keeper_.reset(new std::byte[kMostInRecord]);
}

size_t Records::fetch(std::span<const Bytes> places, size_t offset, size_t most) {
  size_t fetched = 0;
  if (!ahead_.empty()) {
    each_range(places, offset, std::min(most, ahead_.size()), [&](Bytes place) {
      std::copy_n(ahead_.begin() + static_cast<ptrdiff_t>(fetched), place.size(), place.begin());
      fetched += place.size();
    });
    ahead_ = ahead_.subspan(fetched);
    return fetched;
  }
  Ranges<Bytes> ranges;
  ranges.add(places, offset, most);
  const size_t wanted = ranges.size();
  ranges.all[ranges.count++] = Bytes(reader_).first(kBehind);
  const size_t received = receive_plain(socket_, std::span(ranges.all).first(ranges.count));
  fetched = std::min(received, wanted);
  ahead_ = ConstBytes(reader_).first(received - fetched);
  return fetched;
}

size_t Records::give_out(std::span<const Bytes> places, size_t offset) {
  size_t given = 0;
  each_range(places, offset, kept_.size(), [&](Bytes place) {
    std::copy_n(kept_.begin() + static_cast<ptrdiff_t>(given), place.size(), place.begin());
    given += place.size();
  });
  kept_ = kept_.subspan(given);
  return given;
}

void Records::fail_changed() const {
  throw StreamEnd(ErrorKind::DataLoss,
                  fmt::format("a message from {} to {} was changed on its way, as its checksum shows: look "
                              "for a faulty network card, cable, switch or memory between the two",
                              address_of(socket_, ::getpeername), address_of(socket_, ::getsockname)));
}

}  // namespace tutti::net
