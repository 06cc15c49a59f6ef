// Makes certificates that are wrong in one point, for tests.
//
// Thread safety: plain values. Errors abort the test program.
#pragma once

#include <string>
#include <vector>

#include "weft/security/certificates.h"

namespace weft {

struct CertificateRequest {
  std::vector<std::string> uris = {"spiffe://weft.local/weft/0123456789abcdef/default/a"};
  std::string common_name = "weft";
  long begins = -3600;  // seconds from now
  long ends = 3600;
  std::string purposes = "serverAuth,clientAuth";
};

// An authority of its own, such as a site that issues its workers' certificates would have.
class CertificateMaker {
 public:
  CertificateMaker();
  TlsCredentials make(const CertificateRequest& request = {}) const;
  const std::string& certificate() const { return certificate_; }

 private:
  std::string key_;  // PEM
  std::string certificate_;
};

TlsCredentials copy_of(const TlsCredentials& credentials);

}  // namespace weft
