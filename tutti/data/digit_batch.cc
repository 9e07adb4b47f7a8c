#include "tutti/data/digit_batch.h"

#include <ATen/Functions.h>

#include "tutti/data/canvas.h"

namespace tutti::data {

DigitBatch::DigitBatch(int64_t size)
    : images_(at::empty({size, 1, kDigitSide, kDigitSide}, at::kFloat)),
      labels_(at::empty({size}, at::kLong)),
      next_pixel_(static_cast<float*>(images_.data_ptr())),
      next_label_(static_cast<int64_t*>(labels_.data_ptr())) {}

void DigitBatch::add(const uint8_t* pixels, int64_t label) {
  for (size_t i = 0; i < kDigitSize; ++i) next_pixel_[i] = static_cast<float>(pixels[i]) / 255.0F;
  next_pixel_ += kDigitSize;
  *next_label_++ = label;
}

Batch DigitBatch::finish() { return Batch({{"image", images_}, {"label", labels_}}); }

}  // namespace tutti::data
