#include "weft/shm/sealed_memory.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status failed(std::string_view call, size_t size, int error_number) {
  const bool scarce = error_number == ENOMEM || error_number == ENOSPC || error_number == EMFILE ||
                      error_number == ENFILE;
  return absl::Status(scarce ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                      absl::StrCat("shared memory of ", size, " bytes: ", std::string(call), ": ",
                                   std::system_category().message(error_number)));
}

absl::StatusOr<size_t> whole_pages(size_t size) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t machine = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * page;
  if (size == 0) return absl::InvalidArgumentError("shared memory cannot have 0 bytes");
  // The kernel does not refuse such a size: it would first kill other processes for lack of memory.
  if (size > machine - page) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "shared memory of ", size, " bytes: this machine has ", machine, " bytes of memory"));
  }
  return (size + page - 1) / page * page;
}

}  // namespace

absl::StatusOr<SealedMemory> SealedMemory::create(const std::string& label, size_t size) {
  WEFT_ASSIGN_OR_RETURN(const size_t whole, whole_pages(size));
  FileDescriptor file(::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return failed("memfd_create", size, errno);
  if (::ftruncate(file.get(), static_cast<off_t>(whole)) != 0) {
    return failed("ftruncate", size, errno);
  }
  // Allocate the pages now. Otherwise a lack of memory would raise SIGBUS at the first access.
  if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(whole)); error != 0) {
    return failed("posix_fallocate", size, error);
  }
  if (::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) return failed("F_ADD_SEALS", size, errno);
  return map(std::move(file), whole);
}

absl::StatusOr<SealedMemory> SealedMemory::adopt(FileDescriptor descriptor, size_t size) {
  struct stat state = {};
  if (::fstat(descriptor.get(), &state) != 0) return failed("fstat", size, errno);
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory of ", size, " bytes was sent whose size is not sealed"));
  }
  if (size == 0 || state.st_size < 0 || static_cast<size_t>(state.st_size) != size) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory was said to have ", size, " bytes and has ", state.st_size));
  }
  return map(std::move(descriptor), size);
}

absl::StatusOr<SealedMemory> SealedMemory::map(FileDescriptor descriptor, size_t size) {
  // MAP_POPULATE fills the page tables here, so that a transfer takes no page faults.
  void* data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor.get(), 0);
  if (data == MAP_FAILED) return failed("mmap", size, errno);
  // A forked child would keep the memory alive, and would share memory that it takes for its own.
  // The result is ignored: the call fails only on systems that do not know this advice.
  ::madvise(data, size, MADV_DONTFORK);
  SealedMemory memory;
  memory.descriptor_ = std::move(descriptor);
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = size;
  return memory;
}

SealedMemory::SealedMemory(SealedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SealedMemory& SealedMemory::operator=(SealedMemory&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    descriptor_ = std::move(other.descriptor_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

SealedMemory::~SealedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace weft
