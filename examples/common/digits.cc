#include "examples/common/digits.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <ATen/Functions.h>

#include "examples/common/digit_shapes.h"
#include "tutti/base/hashes.h"

namespace example {
namespace {

// A stream of pseudo-random numbers, determined by a key: SplitMix64. The same key gives the same numbers on
// every machine, since libm is not used.
class RandomStream {
 public:
  explicit RandomStream(uint64_t key) : state_(key) {}

  uint64_t word() { return tutti::mix_bits(state_ += tutti::kGoldenBits); }

  // Returns a number in [0, 1), a multiple of 2^-24.
  float uniform() { return static_cast<float>(word() >> 40) * 0x1p-24F; }
  float uniform(float low, float high) { return low + (high - low) * uniform(); }

  // Returns a number in [0, count) for a small count.
  size_t below(size_t count) { return (word() >> 32) * count >> 32; }

  // Returns a nearly normal number, mean 0, deviation 1, within 3.5: the sum of four uniform ones from a
  // word.
  float bell() {
    const uint64_t bits = word();
    const auto sum =
        static_cast<float>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return (sum - 131070.0F) * (1.7320508F / 65536.0F);
  }

 private:
  uint64_t state_;
};

struct Point {
  float x;
  float y;
};

int first_pixel(float from) { return std::clamp(static_cast<int>(from), 0, kDigitSide - 1); }

float squared(float x) { return x * x; }

// A canvas for strokes of a pen. It stores for every pixel the distance of the nearest line, and ink() turns
// this into darkness, so that strokes that cross or overlap are not darker there.
class Canvas {
 public:
  Canvas() { squared_distance_.fill(squared(kReach)); }

  // Draws a straight line from a to b; pixel (column, row) has its centre at (column, row). Only pixels
  // within kReach of it are updated.
  void line(Point a, Point b) {
    const Point along{b.x - a.x, b.y - a.y};
    const float length = squared(along.x) + squared(along.y);
    const float per_length = length > 0.0F ? 1.0F / length : 0.0F;
    const int left = first_pixel(std::min(a.x, b.x) - kReach);
    const int right = first_pixel(std::max(a.x, b.x) + kReach);
    const int bottom = first_pixel(std::max(a.y, b.y) + kReach);
    for (int row = first_pixel(std::min(a.y, b.y) - kReach); row <= bottom; ++row) {
      float* distances = &squared_distance_[static_cast<size_t>(row) * kDigitSide];
      const float dy = static_cast<float>(row) - a.y;
      for (int column = left; column <= right; ++column) {
        const float dx = static_cast<float>(column) - a.x;
        // `share` is the position of the nearest point of the line, as a share of the way from a to b.
        const float share = std::clamp((dx * along.x + dy * along.y) * per_length, 0.0F, 1.0F);
        const float distance = squared(dx - share * along.x) + squared(dy - share * along.y);
        distances[column] = std::min(distances[column], distance);
      }
    }
  }

  // Returns the darkness of each pixel, 0 to 1, for a pen with this radius and this softness of its edge
  // (both in pixels, radius + softness <= kReach).
  std::array<float, kDigitSize> ink(float radius, float softness) const {
    std::array<float, kDigitSize> ink;
    const float outside = radius + softness;
    const float scale = 0.5F / softness;
    for (size_t i = 0; i < ink.size(); ++i) {
      ink[i] = std::clamp((outside - std::sqrt(squared_distance_[i])) * scale, 0.0F, 1.0F);
    }
    return ink;
  }

 private:
  static constexpr float kReach = 2.75F;

  std::array<float, kDigitSize> squared_distance_;
};

// The limits of the random variation of handwriting. Chosen so that a linear model stays well below 95 % and
// a small convolutional network gets well above 97 % (digits_slow_test.cc).
constexpr float kHeight = 19.0F;      // height of an upright digit, in pixels
constexpr float kKnotShake = 0.035F;  // standard deviation, in the unit square
constexpr float kTurn = 0.30F;        // maximum, in radians
constexpr float kSlant = 0.35F;
constexpr float kShift = 2.5F;  // pixels
constexpr float kNoise = 0.06F;
constexpr int kLinesPerCurve = 4;

// Accurate to 1e-6 for the small angles used here. Unlike libm's, the results are equal on every machine.
float small_sine(float x) { return x * (1.0F - x * x / 6.0F * (1.0F - x * x / 20.0F)); }
float small_cosine(float x) { return 1.0F - x * x / 2.0F * (1.0F - x * x / 12.0F * (1.0F - x * x / 30.0F)); }

// Maps the unit square of a shape to pixels.
class Placement {
 public:
  explicit Placement(RandomStream& random) {
    const float width = kHeight * random.uniform(0.65F, 1.05F);
    const float height = kHeight * random.uniform(0.75F, 1.1F);
    const float turn = random.uniform(-kTurn, kTurn);
    const float slant = random.uniform(-kSlant, kSlant);
    const float sine = small_sine(turn);
    const float cosine = small_cosine(turn);
    xx_ = cosine * width;
    xy_ = (cosine * -slant - sine) * height;
    yx_ = sine * width;
    yy_ = (sine * -slant + cosine) * height;
    const float middle = (kDigitSide - 1) / 2.0F;
    centre_ = {middle + random.uniform(-kShift, kShift), middle + random.uniform(-kShift, kShift)};
  }

  Point operator()(const Knot& knot) const {
    const float x = knot.x - 0.5F;
    const float y = knot.y - 0.5F;
    return {centre_.x + xx_ * x + xy_ * y, centre_.y + yx_ * x + yy_ * y};
  }

 private:
  float xx_, xy_, yx_, yy_;
  Point centre_;
};

// Returns the direction of the pen at knot i: the tangent of Catmull and Rom, half the vector from the
// previous knot to the next knot.
Point heading(std::span<const Knot> stroke, std::span<const Point> points, size_t i) {
  if (i == 0 || i + 1 == points.size() || stroke[i].kind == Knot::Corner) return {0.0F, 0.0F};
  return {(points[i + 1].x - points[i - 1].x) / 2.0F, (points[i + 1].y - points[i - 1].y) / 2.0F};
}

// Draws one stroke: cubic Hermite curves between knots, each approximated by a few straight lines.
void draw_stroke(Canvas& canvas, std::span<const Knot> stroke, std::span<const Point> points) {
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    const Point from = points[i];
    const Point to = points[i + 1];
    const Point leaving = heading(stroke, points, i);
    const Point arriving = heading(stroke, points, i + 1);
    Point last = from;
    for (int line = 1; line <= kLinesPerCurve; ++line) {
      const float t = static_cast<float>(line) / kLinesPerCurve;
      const float to_share = t * t * (3.0F - 2.0F * t);
      const float leaving_share = t * (1.0F - t) * (1.0F - t);
      const float arriving_share = -t * t * (1.0F - t);
      const Point next{
          from.x + to_share * (to.x - from.x) + leaving_share * leaving.x + arriving_share * arriving.x,
          from.y + to_share * (to.y - from.y) + leaving_share * leaving.y + arriving_share * arriving.y};
      canvas.line(last, next);
      last = next;
    }
  }
}

void draw_shape(Canvas& canvas, DigitShape shape, RandomStream& random) {
  constexpr size_t kMostKnots = 16;
  std::array<Point, kMostKnots> points;
  const Placement place(random);
  for (size_t i = 0; i < shape.size(); ++i) {
    points[i] = place({shape[i].x + kKnotShake * random.bell(), shape[i].y + kKnotShake * random.bell()});
  }
  for (size_t begin = 0, end = 0; begin < shape.size(); begin = end) {
    while (end < shape.size() && shape[end].kind != Knot::Lift) ++end;
    end = std::min(end + 1, shape.size());
    draw_stroke(canvas, shape.subspan(begin, end - begin), std::span(points).subspan(begin, end - begin));
  }
}

// Draws the ink with random darkness on grainy paper.
DigitPixels develop(const Canvas& canvas, RandomStream& random) {
  // One after the other: compilers evaluate the arguments of a call in different orders.
  const float softness = random.uniform(0.4F, 0.9F);
  const auto ink = canvas.ink(random.uniform(0.7F, 1.7F), softness);
  const float darkness = 255.0F * random.uniform(0.7F, 1.0F);
  const float grain = 255.0F * kNoise * random.uniform();
  DigitPixels pixels;
  for (size_t i = 0; i < pixels.size(); ++i) {
    const float level = darkness * ink[i] + grain * random.bell();
    pixels[i] = static_cast<uint8_t>(std::clamp(level, 0.0F, 255.0F));
  }
  return pixels;
}

class DrawnDigits final : public tutti::data::Source {
 public:
  DrawnDigits(int64_t first, int64_t size) : first_(first), size_(size) {}

  int64_t size() const override { return size_; }

  tutti::Batch read(std::span<const int64_t> examples) const override {
    tutti::data::check_examples(examples, size_, "drawn digits");
    const auto count = static_cast<int64_t>(examples.size());
    const torch::Tensor images = at::empty({count, 1, kDigitSide, kDigitSide}, at::kFloat);
    const torch::Tensor labels = at::empty({count}, at::kLong);
    auto* pixel = images.data_ptr<float>();
    auto* label = labels.data_ptr<int64_t>();
    for (const int64_t example : examples) {
      const DrawnDigit digit = draw_digit(kSeed, first_ + example);
      pixel = std::transform(digit.pixels.begin(), digit.pixels.end(), pixel,
                             [](uint8_t ink) { return static_cast<float>(ink) / 255.0F; });
      *label++ = digit.label;
    }
    return tutti::Batch({{"image", images}, {"label", labels}});
  }

 private:
  static constexpr uint64_t kSeed = 1;

  const int64_t first_;
  const int64_t size_;
};

}  // namespace

DrawnDigit draw_digit(uint64_t seed, int64_t number) {
  using tutti::mix_bits;
  RandomStream random(mix_bits(mix_bits(seed + 0x2545f4914f6cdd1dULL) ^ static_cast<uint64_t>(number)));
  const size_t label = random.below(10);
  const auto shapes = shapes_of(label);
  Canvas canvas;
  draw_shape(canvas, shapes[random.below(shapes.size())], random);
  return {develop(canvas, random), static_cast<int>(label)};
}

std::shared_ptr<const tutti::data::Source> drawn_digits(int64_t first, int64_t size) {
  return std::make_shared<DrawnDigits>(first, size);
}

tutti::data::Digits digits(const std::string& dir) {
  if (!dir.empty()) return tutti::data::mnist(dir);
  // Both come from one sequence: the test digits follow the training digits.
  constexpr int64_t kTrain = 60000;
  constexpr int64_t kTest = 10000;
  return {tutti::data::Feed(drawn_digits(0, kTrain)), tutti::data::Feed(drawn_digits(kTrain, kTest))};
}

}  // namespace example
