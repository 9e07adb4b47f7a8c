#include "tutti/data/mnist.h"

#include <filesystem>
#include <memory>

#include "tutti/base/error.h"
#include "tutti/base/type_name.h"
#include "tutti/data/canvas.h"
#include "tutti/data/digit_batch.h"
#include "tutti/data/drawn_digits.h"
#include "tutti/data/idx.h"

namespace tutti::data {
namespace {

constexpr int64_t kDrawnTrain = 60000;
constexpr int64_t kDrawnTest = 10000;
constexpr uint8_t kMostLabel = 9;

// Digits stored as bytes, which take a quarter of the memory of floats.
class ByteDigits final : public Source {
 public:
  ByteDigits(torch::Tensor images, torch::Tensor labels)
      : images_(std::move(images)), labels_(std::move(labels)) {}

  int64_t size() const override { return labels_.size(0); }

  Batch read(std::span<const int64_t> examples) const override {
    check_examples(examples, size(), "digits");
    const auto* pixels = static_cast<const uint8_t*>(images_.data_ptr());
    const auto* labels = static_cast<const uint8_t*>(labels_.data_ptr());
    DigitBatch batch(static_cast<int64_t>(examples.size()));
    for (const int64_t example : examples) {
      batch.add(pixels + static_cast<size_t>(example) * kDigitSize, labels[example]);
    }
    return batch.finish();
  }

 private:
  const torch::Tensor images_;
  const torch::Tensor labels_;
};

// Returns the file that exists for "train-images" and "idx3": train-images-idx3-ubyte,
// train-images.idx3-ubyte, or either of them with .gz.
std::string find_file(const std::string& dir, const std::string& name, const std::string& format) {
  for (const char* separator : {"-", "."}) {
    for (const char* ending : {"", ".gz"}) {
      const auto path = std::filesystem::path(dir) / (name + separator + format + "-ubyte" + ending);
      std::error_code ignored;
      if (std::filesystem::exists(path, ignored)) return path.string();
    }
  }
  fail(ErrorKind::InvalidArgument,
       "{}: there is no {}-{}-ubyte or {}-{}-ubyte.gz. Put the four MNIST files there, or leave --data empty "
       "to train on drawn digits",
       dir, name, format, name, format);
}

torch::Tensor read_images(const std::string& path) {
  torch::Tensor images = read_idx(path);
  if (images.scalar_type() != torch::kUInt8 || images.dim() != 3) {
    fail(ErrorKind::DataLoss,
         "{}: bytes 2 and 3 declare {} dimensions of {}; images need 3 dimensions of unsigned bytes", path,
         images.dim(), type_name(images.scalar_type()));
  }
  if (images.size(1) != kDigitSide || images.size(2) != kDigitSide) {
    fail(ErrorKind::DataLoss, "{}: bytes 8 to 15 declare images of {}x{} pixels; expected {}x{}", path,
         images.size(1), images.size(2), kDigitSide, kDigitSide);
  }
  return images;
}

torch::Tensor read_labels(const std::string& path) {
  torch::Tensor labels = read_idx(path);
  if (labels.scalar_type() != torch::kUInt8 || labels.dim() != 1) {
    fail(ErrorKind::DataLoss,
         "{}: bytes 2 and 3 declare {} dimensions of {}; labels need 1 dimension of unsigned bytes", path,
         labels.dim(), type_name(labels.scalar_type()));
  }
  constexpr int64_t kHeaderBytes = 8;
  const auto* values = static_cast<const uint8_t*>(labels.data_ptr());
  for (int64_t record = 0; record < labels.size(0); ++record) {
    if (values[record] > kMostLabel) {
      fail(ErrorKind::DataLoss, "{}: the label of record {} (byte {}) is {}; expected a digit from 0 to 9",
           path, record, kHeaderBytes + record, values[record]);
    }
  }
  return labels;
}

Feed read_digits(const std::string& dir, const std::string& name) {
  const std::string image_path = find_file(dir, name + "-images", "idx3");
  const std::string label_path = find_file(dir, name + "-labels", "idx1");
  torch::Tensor images = read_images(image_path);
  torch::Tensor labels = read_labels(label_path);
  if (images.size(0) != labels.size(0)) {
    fail(ErrorKind::DataLoss, "{} has {} images, but {} has {} labels: they do not belong together",
         image_path, images.size(0), label_path, labels.size(0));
  }
  return Feed(std::make_shared<ByteDigits>(std::move(images), std::move(labels)));
}

}  // namespace

Digits mnist(const std::string& dir) {
  if (dir.empty()) {
    // Both come from one sequence: the test digits follow the training digits.
    return {Feed(drawn_digits({.first = 0, .size = kDrawnTrain})),
            Feed(drawn_digits({.first = kDrawnTrain, .size = kDrawnTest}))};
  }
  return {read_digits(dir, "train"), read_digits(dir, "t10k")};
}

}  // namespace tutti::data
