#include <array>
#include <limits>

#include <zlib.h>

#include "tutti/base/check.h"
#include "tutti/data/idx.h"

namespace tutti::data {
namespace {

// The best case of deflate is 258 bytes from 2 bits.
constexpr uint64_t kMostRatio = 1032;
constexpr int kGzipOnly = 16;  // added to the window bits

class GzipReader final : public ByteReader {
 public:
  GzipReader(std::unique_ptr<ByteReader> compressed, const std::string& path)
      : path_(path), compressed_(std::move(compressed)) {
    const int code = inflateInit2(&stream_, MAX_WBITS + kGzipOnly);
    if (code != Z_OK) fail(ErrorKind::Overloaded, "{}: zlib cannot be initialised (code {})", path_, code);
  }
  ~GzipReader() override { inflateEnd(&stream_); }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  size_t read(char* to, size_t size) override {
    size_t done = 0;
    while (done < size && !at_end_) {
      const size_t wanted = std::min<size_t>(size - done, std::numeric_limits<uInt>::max());
      stream_.next_out = reinterpret_cast<Bytef*>(to + done);
      stream_.avail_out = static_cast<uInt>(wanted);
      inflate_some();
      done += wanted - stream_.avail_out;
    }
    return done;
  }

  uint64_t most_bytes() const override {
    const uint64_t packed = compressed_->most_bytes();
    const uint64_t most = std::numeric_limits<uint64_t>::max();
    return packed > most / kMostRatio ? most : packed * kMostRatio;
  }

 private:
  void inflate_some() {
    if (stream_.avail_in == 0 && !refill()) {
      fail(ErrorKind::DataLoss, "{}: the compressed data is truncated at byte {}", path_, compressed_bytes_);
    }
    const int code = inflate(&stream_, Z_NO_FLUSH);
    if (code == Z_STREAM_END) return finish_member();
    if (code == Z_MEM_ERROR) fail(ErrorKind::Overloaded, "{}: out of memory while decompressing it", path_);
    if (code != Z_OK && code != Z_BUF_ERROR) {
      fail(ErrorKind::DataLoss, "{}: the compressed data is damaged before byte {}: {}", path_,
           compressed_bytes_ - stream_.avail_in, stream_.msg != nullptr ? stream_.msg : "not valid gzip");
    }
  }

  // Gzip files may be concatenated; anything after the first member must be another one, and inflate()
  // reports if it is not.
  void finish_member() {
    at_end_ = stream_.avail_in == 0 && !refill();
    if (!at_end_) {
      const int code = inflateReset(&stream_);
      TUTTI_CHECK(code == Z_OK, "{}: inflateReset gave {}", path_, code);
    }
  }

  bool refill() {
    const size_t count = compressed_->read(input_.data(), input_.size());
    compressed_bytes_ += count;
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(count);
    return count > 0;
  }

  const std::string path_;
  const std::unique_ptr<ByteReader> compressed_;
  std::array<char, 65536> input_ = {};
  uint64_t compressed_bytes_ = 0;  // given to zlib so far
  z_stream stream_ = {};
  bool at_end_ = false;
};

}  // namespace

std::unique_ptr<ByteReader> gunzip(std::unique_ptr<ByteReader> compressed, const std::string& path) {
  return std::make_unique<GzipReader>(std::move(compressed), path);
}

}  // namespace tutti::data
