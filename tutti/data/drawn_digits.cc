#include "tutti/data/drawn_digits.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/data/digit_batch.h"
#include "tutti/data/digit_shapes.h"
#include "tutti/data/random_stream.h"

namespace tutti::data {
namespace {

// The limits of the random variation of handwriting. Chosen so that a linear model stays well below 95 % and
// a small convolutional network gets well above 97 % (drawn_digits_slow_test.cc).
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
  const auto ink = canvas.ink(random.uniform(0.7F, 1.7F), random.uniform(0.4F, 0.9F));
  const float darkness = 255.0F * random.uniform(0.7F, 1.0F);
  const float grain = 255.0F * kNoise * random.uniform();
  DigitPixels pixels;
  for (size_t i = 0; i < pixels.size(); ++i) {
    const float level = darkness * ink[i] + grain * random.bell();
    pixels[i] = static_cast<uint8_t>(std::clamp(level, 0.0F, 255.0F));
  }
  return pixels;
}

class DrawnDigits final : public Source {
 public:
  explicit DrawnDigits(const DrawnDigitsOptions& options) : options_(options) {}

  int64_t size() const override { return options_.size; }

  Batch read(std::span<const int64_t> examples) const override {
    check_examples(examples, options_.size, "drawn digits");
    DigitBatch batch(static_cast<int64_t>(examples.size()));
    for (const int64_t example : examples) {
      const DrawnDigit digit = draw_digit(static_cast<uint64_t>(options_.seed), options_.first + example);
      batch.add(digit.pixels.data(), digit.label);
    }
    return batch.finish();
  }

 private:
  const DrawnDigitsOptions options_;
};

}  // namespace

DrawnDigit draw_digit(uint64_t seed, int64_t number) {
  RandomStream random(mix(mix(seed + 0x2545f4914f6cdd1dULL) ^ static_cast<uint64_t>(number)));
  const int label = random.below(10);
  const auto shapes = shapes_of(label);
  Canvas canvas;
  draw_shape(canvas, shapes[static_cast<size_t>(random.below(static_cast<int>(shapes.size())))], random);
  return {develop(canvas, random), label};
}

std::shared_ptr<const Source> drawn_digits(const DrawnDigitsOptions& options) {
  if (options.size < 0 || options.first < 0) {
    fail(ErrorKind::InvalidArgument, "drawn digits: size is {} and first is {}; both must be 0 or more",
         options.size, options.first);
  }
  return std::make_shared<DrawnDigits>(options);
}

}  // namespace tutti::data
