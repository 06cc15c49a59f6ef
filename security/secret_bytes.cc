#include "weft/security/secret_bytes.h"

#include <cstring>
#include <new>
#include <openssl/crypto.h>
#include <sys/mman.h>
#include <unistd.h>

namespace weft {
namespace {

size_t pages_for(size_t size) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (size + page - 1) / page * page;
}

}  // namespace

SecretBytes::SecretBytes(size_t size) : size_(size) {
  if (size == 0) return;
  void* pages =
      ::mmap(nullptr, pages_for(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<unsigned char*>(pages);
  (void)::mlock(pages, pages_for(size));
  (void)::madvise(pages, pages_for(size), MADV_DONTDUMP);
  (void)::madvise(pages, pages_for(size), MADV_WIPEONFORK);
}

SecretBytes::SecretBytes(std::string_view content) : SecretBytes(content.size()) {
  if (!content.empty()) std::memcpy(data_, content.data(), content.size());
}

SecretBytes::~SecretBytes() {
  if (data_ == nullptr) return;
  const size_t mapped = pages_for(size_);
  OPENSSL_cleanse(data_, size_);
  ::munmap(data_, mapped);
}

void SecretBytes::shrink(size_t size) {
  if (size >= size_) return;
  SecretBytes shorter(text().substr(0, size));
  std::swap(*this, shorter);
}

}  // namespace weft
