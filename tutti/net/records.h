#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tutti/net/socket.h"

namespace tutti::net {

// The bytes of a connection in records with checksums, so that no byte is used that was changed on its way. A
// record is little-endian:
//   size 4, sum 4, check 4, then `size` bytes
// `sum` is the CRC-32C of the bytes, and `check` is the CRC-32C of the two numbers. Both continue from the
// sum of the record before, so that a record that is missing, repeated or out of place is found too.
//
// One thread may send while another one receives. Throws a StreamEnd: a DataLoss if bytes were changed.
class Records {
 public:
  // Bytes that may have been received before the first record was expected.
  static constexpr size_t kMostAhead = size_t{16} << 10;

  // `received` has come over this socket already, and is the beginning of the first record.
  Records(int socket, ConstBytes received);

  // Move some bytes; 0 if the socket is not ready. A call that has moved less than was asked for has to be
  // followed by one that begins with the next of these bytes or places, since a part of a record may have
  // been moved already. Bytes are given out when all of their record is there and its checksum is right.
  size_t receive(std::span<const Bytes> places);
  size_t send(std::span<const ConstBytes> parts);
  // Returns true if bytes have been received that receive() has not given out.
  bool has_pending() const { return !ahead_.empty() || !kept_.empty(); }

 private:
  struct Head {
    uint32_t size = 0;
    uint32_t sum = 0;
    uint32_t check = 0;
  };
  // A record that is sent or received. Its size is 0 between two records.
  struct Record {
    uint32_t before = 0;  // the sum of the record before it
    Head head = {};
    size_t head_moved = 0;  // bytes
    size_t moved = 0;
  };

  static uint32_t check_of(const Head& head, uint32_t before);
  void begin_sending(std::span<const ConstBytes> parts, size_t offset);
  bool receive_record(std::span<const Bytes> places, size_t offset, size_t room);
  void begin_receiving(size_t room);
  size_t fetch(std::span<const Bytes> places, size_t offset, size_t most);
  size_t give_out(std::span<const Bytes> places, size_t offset);
  [[noreturn]] void fail_changed() const;

  const int socket_;
  Record out_;
  Record in_;
  uint32_t sum_ = 0;       // of the received bytes of `in_`
  bool in_place_ = false;  // the bytes of `in_` are received where the caller wants them, not in `keeper_`
  ConstBytes ahead_;       // in `reader_`: received, but part of no record yet
  ConstBytes kept_;        // in `keeper_`: checked, but not given out yet
  std::array<std::byte, kMostAhead> reader_;
  std::unique_ptr<std::byte[]> keeper_;
};

}  // namespace tutti::net
