#include "weft/tests/chaos/oracle/ledger.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <system_error>
#include <time.h>
#include <unistd.h>
#include <utility>

namespace weft::chaos {

uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

LedgerWriter::LedgerWriter(const std::string& path)
    : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (file_ < 0) throw std::system_error(errno, std::generic_category(), path);
}

LedgerWriter::~LedgerWriter() { ::close(file_); }

void LedgerWriter::append(Record record) const {
  record.time = monotonic_ns();
  ssize_t written = -1;
  do {
    written = ::write(file_, &record, sizeof(record));
  } while (written < 0 && errno == EINTR);
  if (written == sizeof(record)) return;
  std::perror("chaos: the ledger cannot be written");
  std::_Exit(kExitNoLedger);
}

LedgerTail::LedgerTail(LedgerTail&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      position_(other.position_) {}

LedgerTail::~LedgerTail() {
  if (file_ >= 0) ::close(file_);
}

size_t LedgerTail::read(std::vector<Record>& records) {
  if (file_ < 0) file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) return 0;
  std::array<Record, 2048> block;
  size_t count = 0;
  while (true) {
    const ssize_t got = ::pread(file_, block.data(), sizeof(block), static_cast<off_t>(position_));
    if (got < static_cast<ssize_t>(sizeof(Record))) return count;
    const size_t whole = static_cast<size_t>(got) / sizeof(Record);
    records.insert(records.end(), block.begin(), block.begin() + whole);
    position_ += whole * sizeof(Record);
    count += whole;
  }
}

}  // namespace weft::chaos
