#include "weft/shm/sealed_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// A signal interrupts the allocation of pages, and the kernel then frees those of this call again.
// So each call allocates no more than what takes a few milliseconds.
constexpr size_t kAllocatedAtOnce = size_t{16} << 20;

size_t page_size() {
  static const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

absl::Status failed(std::string_view call, size_t size, int error_number) {
  const bool scarce = error_number == ENOMEM || error_number == ENOSPC || error_number == EMFILE ||
                      error_number == ENFILE;
  const absl::Status named = absl::ErrnoToStatus(
      error_number, absl::StrCat("shared memory of ", size, " bytes: ", absl_view(call)));
  return absl::Status(scarce ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                      named.message());
}

absl::StatusOr<size_t> whole_pages(size_t size) {
  const size_t page = page_size();
  const size_t machine = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * page;
  if (size == 0) return absl::InvalidArgumentError("shared memory cannot have 0 bytes");
  // The kernel does not refuse such a size: it would first kill other processes for lack of memory.
  if (size > machine - page) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "shared memory of ", size, " bytes: this machine has ", machine, " bytes of memory"));
  }
  return (size + page - 1) / page * page;
}

// Allocates the pages now. Otherwise a lack of memory would raise SIGBUS at the first access.
int allocate_pages(int file, size_t size) {
  for (size_t from = 0; from < size; from += kAllocatedAtOnce) {
    const size_t now = std::min(kAllocatedAtOnce, size - from);
    int error;
    do {
      error = ::posix_fallocate(file, static_cast<off_t>(from), static_cast<off_t>(now));
    } while (error == EINTR);
    if (error != 0) return error;
  }
  return 0;
}

// Writes each page and leaves its content as it is, whatever other threads write at the same time.
void touch(std::byte* data, size_t size) {
  for (size_t from = 0; from < size; from += page_size()) {
    std::atomic_ref<std::byte> one(data[from]);
    std::byte seen = one.load(std::memory_order_relaxed);
    while (!one.compare_exchange_weak(seen, seen, std::memory_order_relaxed)) {
    }
  }
}

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateNew = MADV_POPULATE_WRITE;
// Pages that have content are mapped 16 at a time for reading, and writable.
constexpr int kPopulateUsed = MADV_POPULATE_READ;
#else
constexpr int kPopulateNew = 23, kPopulateUsed = 22;  // the kernel may know them
#endif

// Takes the page faults of all pages at once. Returns an error number. `advice`: the faster one for
// new pages or for those that another mapping has used (docs/data_plane.md).
int populate(std::byte* data, size_t size, int advice) {
  do {
    if (::madvise(data, size, advice) == 0) return 0;
  } while (errno == EINTR);
  if (errno != EINVAL) return errno;
  touch(data, size);  // kernels before 5.14
  return 0;
}

// A forked child would keep the memory alive, and would share memory that it takes for its own. The
// results are ignored: the calls fail only on systems that do not know this advice.
void keep_from_children_and_core_files(void* data, size_t size) {
  ::madvise(data, size, MADV_DONTFORK);
  ::madvise(data, size, MADV_DONTDUMP);
}

}  // namespace

absl::StatusOr<SealedMemory> SealedMemory::create(const std::string& label, size_t size) {
  WEFT_ASSIGN_OR_RETURN(const size_t whole, whole_pages(size));
  FileDescriptor file(::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return failed("memfd_create", size, errno);
  if (::ftruncate(file.get(), static_cast<off_t>(whole)) != 0) {
    return failed("ftruncate", size, errno);
  }
  if (const int error = allocate_pages(file.get(), whole); error != 0) {
    return failed("posix_fallocate", size, error);
  }
  if (::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) return failed("F_ADD_SEALS", size, errno);
  return map(std::make_shared<FileDescriptor>(std::move(file)), 0, whole, kPopulateNew);
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
  return map(std::make_shared<FileDescriptor>(std::move(descriptor)), 0, size, kPopulateUsed);
}

absl::StatusOr<SealedMemory> SealedMemory::map(std::shared_ptr<const FileDescriptor> descriptor,
                                               size_t start, size_t size, int advice) {
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor->get(),
                      static_cast<off_t>(start));
  if (data == MAP_FAILED) return failed("mmap", size, errno);
  keep_from_children_and_core_files(data, size);
  SealedMemory memory;
  memory.descriptor_ = std::move(descriptor);
  memory.start_ = start;
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = size;
  if (const int error = populate(memory.data_, size, advice); error != 0) {
    return failed("MADV_POPULATE", size, error);
  }
  return memory;
}

absl::Status SealedMemory::check_part(size_t offset, size_t size) const {
  const bool inside = offset <= size_ && size <= size_ - offset && size > 0;
  if (descriptor_ && inside && offset % page_size() == 0 && size % page_size() == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("shared memory of ", size_, " bytes", descriptor_ ? "" : " without a descriptor",
                   " has no part of ", size, " bytes from ", offset, " on"));
}

absl::StatusOr<SealedMemory> SealedMemory::map_again(size_t offset, size_t size) const {
  WEFT_RETURN_IF_ERROR(check_part(offset, size));
  return map(descriptor_, start_ + offset, size, kPopulateUsed);
}

absl::Status SealedMemory::remap(size_t offset, size_t size, int flags) const {
  // mmap with MAP_FIXED may leave a hole if it fails. So map elsewhere first, and move that mapping
  // here: mremap checks its limits before it unmaps anything. Other threads that access the part
  // wait in a page fault until the new mapping is there.
  void* fresh = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, descriptor_->get(),
                       static_cast<off_t>(start_ + offset));
  if (fresh == MAP_FAILED) return failed("mmap", size, errno);
  keep_from_children_and_core_files(fresh, size);
  if (::mremap(fresh, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, data_ + offset) == MAP_FAILED) {
    const int error = errno;
    ::munmap(fresh, size);
    return failed("mremap", size, error);
  }
  return absl::OkStatus();
}

absl::Status SealedMemory::make_private(size_t offset, size_t size) const {
  WEFT_RETURN_IF_ERROR(check_part(offset, size));
  // From here on, a write makes a private copy of its page. The writes until now are in the shared
  // pages, from which each copy is made.
  WEFT_RETURN_IF_ERROR(remap(offset, size, MAP_PRIVATE));
  if (const int error = populate(data_ + offset, size, kPopulateNew); error != 0) {
    return failed("MADV_POPULATE", size, error);
  }
  return absl::OkStatus();
}

absl::Status SealedMemory::share_again(size_t offset, size_t size) const {
  WEFT_RETURN_IF_ERROR(check_part(offset, size));
  return remap(offset, size, MAP_SHARED);
}

SealedMemory::SealedMemory(SealedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      start_(std::exchange(other.start_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SealedMemory& SealedMemory::operator=(SealedMemory&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    descriptor_ = std::move(other.descriptor_);
    start_ = std::exchange(other.start_, 0);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

SealedMemory::~SealedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace weft
