// Owners of OpenSSL's objects, and its errors as statuses.
//
// Thread safety: the errors are those of the calling thread.
#pragma once

#include <memory>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::security_internal {

template <auto free_function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free_function(object);
  }
};

using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;
using Store = std::unique_ptr<X509_STORE, Free<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>;
using Derivation = std::unique_ptr<EVP_KDF, Free<EVP_KDF_free>>;
using DerivationContext = std::unique_ptr<EVP_KDF_CTX, Free<EVP_KDF_CTX_free>>;

// Takes the errors of this thread away from OpenSSL.
inline absl::Status openssl_failed(std::string_view what) {
  char text[256] = "no reason given";
  if (const unsigned long error = ERR_peek_last_error(); error != 0) {
    ERR_error_string_n(error, text, sizeof text);
  }
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL cannot ", absl_view(what), ": ", text));
}

// Reads from `text`, which must outlive it.
inline Bio reader_of(std::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

}  // namespace weft::security_internal
