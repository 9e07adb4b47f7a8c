#include "tutti/data/tables/cells.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tutti/base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tutti::data {

std::optional<std::string_view> Cells::next() {
  if (done_) return std::nullopt;
  if (format_.quotes && rest_.starts_with('"')) return quoted();
  const size_t end = rest_.find(format_.separator);
  done_ = end == std::string_view::npos;
  const std::string_view cell = rest_.substr(0, end);
  rest_.remove_prefix(done_ ? rest_.size() : end + 1);
  return cell;
}

std::string_view Cells::quoted() {
  unquoted_.clear();
  rest_.remove_prefix(1);
  for (;;) {
    const size_t end = rest_.find('"');
    if (end == std::string_view::npos) fail(ErrorKind::InvalidArgument, "a quote is not closed");
    unquoted_ += rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    if (!rest_.starts_with('"')) break;
    unquoted_ += '"';
    rest_.remove_prefix(1);
  }
  done_ = rest_.empty();
  if (!done_ && rest_.front() != format_.separator) {
    fail(ErrorKind::InvalidArgument,
         "the quoted cell \"{}\" is followed by '{}'; expected a separator or the end of the row", unquoted_,
         rest_.substr(0, std::min<size_t>(rest_.find(format_.separator), 20)));
  }
  if (!done_) rest_.remove_prefix(1);
  return unquoted_;
}

std::string_view trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

bool is_missing(std::string_view cell, const TextFormat& format) {
  return cell.empty() ||
         std::find(format.missing.begin(), format.missing.end(), cell) != format.missing.end();
}

// Follows RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(text[at]); };
  for (size_t i = 0; i < text.size();) {
    const uint8_t first = byte(i++);
    if (first < 0x80) continue;
    if (first < 0xC2 || first > 0xF4) return false;
    const size_t more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (text.size() - i < more) return false;
    const int least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;  // of the second byte
    const int most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (byte(i) < least || byte(i) > most) return false;
    for (size_t k = i + 1; k < i + more; ++k) {
      if (byte(k) < 0x80 || byte(k) > 0xBF) return false;
    }
    i += more;
  }
  return true;
}

namespace {

// The powers of ten that a double represents exactly.
constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr int kMostPower = 22;
constexpr int kMostDigits = 15;

constexpr uint64_t kTens[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

unsigned digit(const char* at) { return static_cast<unsigned>(*at) - '0'; }

// Returns the number of eight digits, one per byte, the first in the lowest byte. Combines pairs, then fours.
uint64_t eight_digits(uint64_t bytes) {
  bytes = bytes * 10 + (bytes >> 8);
  const uint64_t low = (bytes & 0x000000FF000000FF) * 0x000F424000000064;
  const uint64_t high = (bytes >> 16 & 0x000000FF000000FF) * 0x0000271000000001;
  return (low + high) >> 32;
}

// Reads all digits from `at` on, eight at a time if there are so many bytes, and appends them to `digits`.
const char* take_digits(const char* at, const char* end, uint64_t& digits) {
  static_assert(std::endian::native == std::endian::little);
  while (end - at >= 8) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, at, sizeof bytes);
    bytes ^= 0x3030303030303030;
    // The lowest byte with this bit is the first that is not a digit; the bits of higher bytes may be wrong.
    const uint64_t others = ((bytes + 0x7676767676767676) | bytes) & 0x8080808080808080;
    const int count = others == 0 ? 8 : std::countr_zero(others) / 8;
    if (count == 0) return at;
    digits = digits * kTens[count] + eight_digits(bytes << (64 - 8 * count));
    at += count;
    if (count < 8) return at;
  }
  for (; at != end && digit(at) < 10; ++at) digits = 10 * digits + digit(at);
  return at;
}

// The float nearest to a double is also the float nearest to the number that the double was rounded from,
// unless the double lies exactly between two floats.
bool is_between_floats(double value) {
  constexpr uint64_t kBelowFloat = (uint64_t{1} << 29) - 1;  // bits that a float lacks
  return (std::bit_cast<uint64_t>(value) & kBelowFloat) == uint64_t{1} << 28;
}

}  // namespace

// Clinger's fast path (How to Read Floating Point Numbers Accurately, 1990): digits and power of ten are
// exact as doubles, so that their quotient or product is the nearest double.
const char* read_common_number(const char* at, const char* end, float& number) {
  const bool negative = at != end && *at == '-';
  if (negative) ++at;
  uint64_t digits = 0;
  const char* const first = at;
  at = take_digits(at, end, digits);
  auto count = at - first;
  int power = 0;
  if (at != end && *at == '.') {
    const char* const point = ++at;
    at = take_digits(at, end, digits);
    power = -static_cast<int>(at - point);
    count += at - point;
  }
  if (count == 0 || count > kMostDigits) return nullptr;
  if (at != end && (*at == 'e' || *at == 'E')) {
    ++at;
    const bool down = at != end && *at == '-';
    if (at != end && (*at == '-' || *at == '+')) ++at;
    int exponent = 0;
    const char* const begin = at;
    for (; at != end && digit(at) < 10 && at - begin < 3; ++at)
      exponent = 10 * exponent + static_cast<int>(digit(at));
    if (at == begin || at - begin > 2) return nullptr;
    power += down ? -exponent : exponent;
  }
  if (power < -kMostPower || power > kMostPower) return nullptr;
  const auto whole = static_cast<double>(digits);
  const double value = power < 0 ? whole / kPowers[-power] : whole * kPowers[power];
  if (is_between_floats(value) || (value != 0 && value < std::numeric_limits<float>::min())) return nullptr;
  number = static_cast<float>(negative ? -value : value);
  return at;
}

const char* read_common_number(const char* at, const char* end, int64_t& number) {
  constexpr int kMostInInteger = 18;  // all numbers of so many digits fit
  const bool negative = at != end && *at == '-';
  if (negative) ++at;
  uint64_t digits = 0;
  const char* const behind = take_digits(at, end, digits);
  if (behind == at || behind - at > kMostInInteger) return nullptr;
  const auto positive = static_cast<int64_t>(digits);
  number = negative ? -positive : positive;
  return behind;
}

namespace {

template <class Number>
size_t read_one_by_one(const char*& at, const char* end, char separator, size_t most, Number* numbers) {
  size_t count = 0;
  for (; count < most; ++count) {
    const char* const behind = read_common_number(at, end, numbers[count]);
    if (behind == nullptr || behind == end || *behind != separator) break;
    at = behind + 1;
  }
  return count;
}

}  // namespace

size_t read_common_numbers_portable(const char*& at, const char* end, char separator, size_t most,
                                    float* numbers) {
  return read_one_by_one(at, end, separator, most, numbers);
}

size_t read_common_numbers_portable(const char*& at, const char* end, char separator, size_t most,
                                    int64_t* numbers) {
  return read_one_by_one(at, end, separator, most, numbers);
}

#if defined(__x86_64__)
namespace {

#define TUTTI_INSTRUCTIONS "avx2,bmi,bmi2"
// For what a loop calls for each number: a call would cost a third of the speed.
#define TUTTI_INLINED __attribute__((target(TUTTI_INSTRUCTIONS), always_inline)) inline

bool has_instructions() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0 &&
         __builtin_cpu_supports("bmi2") != 0;
}

constexpr int kBytes = 16;  // bytes of a register
constexpr int kBlock = 64;  // bytes that are searched for separators at once

// Masks, by the length of a number: they select its bytes at the right end of a register.
constexpr auto kPart = [] {
  std::array<std::array<uint8_t, kBytes>, kBytes + 1> table{};
  for (size_t length = 0; length <= kBytes; ++length)
    for (size_t i = kBytes - length; i < kBytes; ++i) table[length][i] = 0xff;
  return table;
}();

// Shuffles that remove the decimal point, by the number of bytes from the point to the right end (0: no
// point). They give for each byte the index of the byte that moves there.
constexpr auto kWithoutPoint = [] {
  std::array<std::array<uint8_t, kBytes>, kBytes + 1> table{};
  for (size_t with_point = 0; with_point <= kBytes; ++with_point) {
    for (size_t i = 0; i < kBytes; ++i) {
      const bool before = with_point > 0 && kBytes - i >= with_point;
      table[with_point][i] = static_cast<uint8_t>(before ? (i == 0 ? 0x80 : i - 1) : i);  // 0x80: a zero
    }
  }
  return table;
}();

__attribute__((target(TUTTI_INSTRUCTIONS))) __m128i load(const void* bytes) {
  return _mm_loadu_si128(static_cast<const __m128i*>(bytes));
}

// Returns a mask with one bit per byte that is set if the byte is a separator.
__attribute__((target(TUTTI_INSTRUCTIONS))) uint64_t separators_in(const char* block, char separator) {
  const auto* const halves = reinterpret_cast<const __m256i*>(block);
  const __m256i wanted = _mm256_set1_epi8(separator);
  const int low = _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256(halves), wanted));
  const int high = _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256(halves + 1), wanted));
  return static_cast<uint32_t>(low) | uint64_t{static_cast<uint32_t>(high)} << kBlock / 2;
}

// Returns the number of the 16 digits in a register, one per byte, as values from 0 to 9.
TUTTI_INLINED uint64_t sixteen_digits(__m128i digits) {
  const __m128i by_two = _mm_maddubs_epi16(digits, _mm_set1_epi16(1 << 8 | 10));
  const __m128i by_four = _mm_madd_epi16(by_two, _mm_set1_epi32(1 << 16 | 100));
  const __m128i by_eight =
      _mm_madd_epi16(_mm_packus_epi32(by_four, by_four), _mm_set1_epi32(1 << 16 | 10000));
  const auto halves = static_cast<uint64_t>(_mm_cvtsi128_si64(by_eight));
  return (halves & 0xffffffff) * 100000000 + (halves >> 32);
}

// The number between `first` and `behind`, at the right end of a register.
struct NumberText {
  __m128i text;
  __m128i digits;     // values; bytes that are no digits have values above 9
  unsigned part;      // the bytes of the number, without its sign
  unsigned others;    // those of them that are no digits
  unsigned negative;  // 1 if there is a minus
  ptrdiff_t length;   // without the sign
};

// The 16 bytes before `behind` must be readable, and the number must have 1 to 16 bytes. No branch depends on
// its sign, its length or its point: those of measured values are unpredictable, and a mispredicted branch
// costs more than parsing the number.
TUTTI_INLINED NumberText number_text(const char* first, const char* behind) {
  const ptrdiff_t bytes = behind - first;
  const __m128i text = load(behind - kBytes);
  // Avoids a comparison: its flag would be written to the low byte of a register, which then depends on the
  // old value of the others, that is, on the previous number.
  const auto minuses = static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(text, _mm_set1_epi8('-'))));
  const unsigned negative = minuses >> (kBytes - bytes) & 1;
  const ptrdiff_t length = bytes - negative;
  const __m128i digits = _mm_sub_epi8(text, _mm_set1_epi8('0'));
  const __m128i is_digit = _mm_cmpeq_epi8(_mm_min_epu8(digits, _mm_set1_epi8(9)), digits);
  const unsigned part = 0xffffU << (kBytes - length) & 0xffff;
  const unsigned others = ~static_cast<unsigned>(_mm_movemask_epi8(is_digit)) & part;
  return {text, digits, part, others, negative, length};
}

// Returns false if the number does not have the common form.
TUTTI_INLINED bool read_by_register(const char* first, const char* behind, float& number) {
  if (behind - first < 1 || behind - first > kBytes) return false;
  const NumberText in = number_text(first, behind);
  const __m128i is_point = _mm_cmpeq_epi8(in.text, _mm_set1_epi8('.'));
  const unsigned point = static_cast<unsigned>(_mm_movemask_epi8(is_point)) & in.part;
  const int with_point = point == 0 ? 0 : kBytes - std::countr_zero(point);
  if (in.others != point || (point & (point - 1)) != 0 || point == in.part || in.length > kMostDigits)
    return false;
  const __m128i its_own = _mm_and_si128(in.digits, load(kPart[static_cast<size_t>(in.length)].data()));
  const uint64_t all =
      sixteen_digits(_mm_shuffle_epi8(its_own, load(kWithoutPoint[static_cast<size_t>(with_point)].data())));
  const int decimals = with_point - static_cast<int>(with_point != 0);
  const double value = static_cast<double>(static_cast<int64_t>(all)) / kPowers[decimals];
  number = std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(value)) | in.negative << 31);
  return !is_between_floats(value);
}

TUTTI_INLINED bool read_by_register(const char* first, const char* behind, int64_t& number) {
  if (behind - first < 1 || behind - first > kBytes) return false;
  const NumberText in = number_text(first, behind);
  if (in.others != 0 || in.length == 0) return false;
  const __m128i its_own = _mm_and_si128(in.digits, load(kPart[static_cast<size_t>(in.length)].data()));
  const auto value = static_cast<int64_t>(sixteen_digits(its_own));
  const int64_t sign = -static_cast<int64_t>(in.negative);
  number = (value ^ sign) - sign;
  return true;
}

// Finds the separators a block at a time instead of at the end of each number, so that the CPU can start the
// next number before this one is finished.
template <class Number>
__attribute__((target(TUTTI_INSTRUCTIONS))) size_t read_by_blocks(const char*& at, const char* end,
                                                                  char separator, size_t most,
                                                                  Number* numbers) {
  const char* const begin = at;
  size_t count = 0;
  std::array<char, kBlock> rest{};
  for (const char* block = begin; block < end; block += kBlock) {
    const bool is_whole = end - block >= kBlock;
    if (!is_whole) {
      rest.fill(static_cast<char>(~separator));
      std::memcpy(rest.data(), block, static_cast<size_t>(end - block));
    }
    for (uint64_t found = separators_in(is_whole ? block : rest.data(), separator); found != 0;
         found &= found - 1) {
      if (count == most) return count;
      const char* const behind = block + std::countr_zero(found);
      const bool has_read = behind - begin >= kBytes
                                ? read_by_register(at, behind, numbers[count])
                                : read_common_number(at, behind, numbers[count]) == behind;
      if (!has_read) return count;
      ++count;
      at = behind + 1;
    }
  }
  return count;
}

}  // namespace

size_t read_common_numbers(const char*& at, const char* end, char separator, size_t most, float* numbers) {
  return has_instructions() ? read_by_blocks(at, end, separator, most, numbers)
                            : read_one_by_one(at, end, separator, most, numbers);
}

size_t read_common_numbers(const char*& at, const char* end, char separator, size_t most, int64_t* numbers) {
  return has_instructions() ? read_by_blocks(at, end, separator, most, numbers)
                            : read_one_by_one(at, end, separator, most, numbers);
}
#undef TUTTI_INLINED
#undef TUTTI_INSTRUCTIONS
#else
size_t read_common_numbers(const char*& at, const char* end, char separator, size_t most, float* numbers) {
  return read_one_by_one(at, end, separator, most, numbers);
}

size_t read_common_numbers(const char*& at, const char* end, char separator, size_t most, int64_t* numbers) {
  return read_one_by_one(at, end, separator, most, numbers);
}
#endif

}  // namespace tutti::data
