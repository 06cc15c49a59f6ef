#include "weft/examples/support/idx_file.h"

#include <algorithm>
#include <cerrno>
#include <zlib.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/checkpoint/atomic_file.h"

namespace weft::examples {
namespace {

constexpr uint32_t kUnsignedByte = 0x08;
constexpr uint64_t kMaxValues = uint64_t{1} << 30;
constexpr uint64_t kStep = uint64_t{1} << 24;

class GzReader {
 public:
  GzReader(const std::string& path, gzFile file) : path_(path), file_(file) {}
  ~GzReader() { ::gzclose(file_); }
  GzReader(const GzReader&) = delete;
  GzReader& operator=(const GzReader&) = delete;

  absl::Status read(uint8_t* to, size_t size) {
    while (size > 0) {
      const int got = ::gzread(file_, to, static_cast<unsigned>(std::min<size_t>(size, 1 << 24)));
      if (got <= 0)
        return damaged(got < 0 ? reason() : absl::StrCat("ends ", size, " bytes early"));
      to += got;
      size -= static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<uint32_t> read_number() {
    uint8_t b[4];
    WEFT_RETURN_IF_ERROR(read(b, 4));
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
  }
  // Reading past the last value also makes zlib compare the checksum.
  absl::Status expect_end() {
    uint8_t extra;
    const int got = ::gzread(file_, &extra, 1);
    if (got > 0) return damaged("holds more than its header says");
    if (int error; got < 0 || (::gzerror(file_, &error), error != Z_OK)) return damaged(reason());
    return absl::OkStatus();
  }
  absl::Status damaged(const std::string& fault) const {
    return absl::DataLossError(absl::StrCat(path_, " is damaged: ", fault));
  }

 private:
  std::string reason() const {
    int error;
    return ::gzerror(file_, &error);
  }

  const std::string& path_;
  gzFile file_;
};

}  // namespace

absl::StatusOr<IdxFile> read_idx_file(const std::string& path, int dimensions) {
  const gzFile opened = ::gzopen(path.c_str(), "rb");
  if (opened == nullptr) return file_error("cannot open", path, errno == 0 ? ENOMEM : errno);
  GzReader reader(path, opened);
  WEFT_ASSIGN_OR_RETURN(const uint32_t magic, reader.read_number());
  if (magic != (kUnsignedByte << 8 | static_cast<uint32_t>(dimensions))) {
    return reader.damaged(absl::StrCat("its magic number is ", absl::Hex(magic), ", not ",
                                       absl::Hex(kUnsignedByte << 8 | dimensions)));
  }
  IdxFile file;
  uint64_t count = 1;
  for (int i = 0; i < dimensions; ++i) {
    WEFT_ASSIGN_OR_RETURN(const uint32_t size, reader.read_number());
    file.shape.push_back(size);
    if (size == 0 || size > kMaxValues / count) {
      return reader.damaged(absl::StrCat("dimension ", i, " of size ", size));
    }
    count *= size;
  }
  // Memory grows with the values that arrive, because a header of 16 bytes can promise a gigabyte.
  while (file.values.size() < count) {
    const size_t have = file.values.size();
    file.values.resize(std::min(count, have + kStep));
    WEFT_RETURN_IF_ERROR(reader.read(file.values.data() + have, file.values.size() - have));
  }
  WEFT_RETURN_IF_ERROR(reader.expect_end());
  return file;
}

}  // namespace weft::examples
