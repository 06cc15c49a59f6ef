#include "weft/examples/support/fashion_mnist.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/examples/support/idx_file.h"

namespace weft::examples {
namespace {

// Computed over the 60,000 training pictures, with values scaled to 0..1.
constexpr double kMean = 0.2860;
constexpr double kDeviation = 0.3530;

absl::StatusOr<IdxFile> read_part(const std::string& path, int dimensions) {
  absl::StatusOr<IdxFile> file = read_idx_file(path, dimensions);
  if (file.ok()) return file;
  return absl::Status(file.status().code(),
                      absl::StrCat(file.status().message(), " (install Debian's package ",
                                   kFashionMnistPackage, ", or name the data's folder)"));
}

Batch normalised(const at::Tensor& images, at::Tensor labels) {
  at::Tensor values = images.to(at::kFloat);
  values.mul_(1.0 / (255.0 * kDeviation)).sub_(kMean / kDeviation);
  return {values.unsqueeze(1), std::move(labels)};
}

}  // namespace

absl::StatusOr<LabelledImages> load_fashion_mnist_part(const std::string& folder, bool train,
                                                       int64_t limit) {
  const std::string prefix = absl::StrCat(folder, train ? "/train" : "/t10k");
  const std::string images_path = absl::StrCat(prefix, "-images-idx3-ubyte.gz");
  const std::string labels_path = absl::StrCat(prefix, "-labels-idx1-ubyte.gz");
  WEFT_ASSIGN_OR_RETURN(const IdxFile images, read_part(images_path, 3));
  WEFT_ASSIGN_OR_RETURN(const IdxFile labels, read_part(labels_path, 1));
  if (images.shape[1] != kFashionMnistSide || images.shape[2] != kFashionMnistSide) {
    return absl::DataLossError(absl::StrCat(images_path, " holds pictures of ", images.shape[1],
                                            " x ", images.shape[2], ", not 28 x 28"));
  }
  if (images.shape[0] != labels.shape[0]) {
    return absl::DataLossError(absl::StrCat(images_path, " holds ", images.shape[0], " pictures, ",
                                            labels_path, " ", labels.shape[0], " labels"));
  }
  const auto wrong = std::find_if(labels.values.begin(), labels.values.end(),
                                  [](uint8_t label) { return label >= kFashionMnistClasses; });
  if (wrong != labels.values.end()) {
    return absl::DataLossError(absl::StrCat(labels_path, ": label ", wrong - labels.values.begin(),
                                            " is ", int{*wrong}, ", there are 10 classes"));
  }
  LabelledImages data;
  data.images = at::empty(images.shape, at::kByte);
  std::memcpy(data.images.mutable_data_ptr(), images.values.data(), images.values.size());
  at::Tensor small = at::empty(labels.shape, at::kByte);
  std::memcpy(small.mutable_data_ptr(), labels.values.data(), labels.values.size());
  data.labels = small.to(at::kLong);
  if (limit == 0 || limit >= data.size()) return data;
  return LabelledImages{data.images.narrow(0, 0, limit), data.labels.narrow(0, 0, limit)};
}

absl::StatusOr<FashionMnist> load_fashion_mnist(const std::string& folder, int64_t limit) {
  FashionMnist data;
  WEFT_ASSIGN_OR_RETURN(data.train, load_fashion_mnist_part(folder, /*train=*/true, limit));
  WEFT_ASSIGN_OR_RETURN(data.test, load_fashion_mnist_part(folder, /*train=*/false, limit));
  return data;
}

Batch make_batch(const LabelledImages& data, const std::vector<size_t>& indices) {
  const at::Tensor rows = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  std::copy(indices.begin(), indices.end(), rows.mutable_data_ptr<int64_t>());
  return normalised(data.images.index_select(0, rows), data.labels.index_select(0, rows));
}

Batch make_batch(const LabelledImages& data, int64_t begin, int64_t end) {
  return normalised(data.images.slice(0, begin, end), data.labels.slice(0, begin, end));
}

}  // namespace weft::examples
