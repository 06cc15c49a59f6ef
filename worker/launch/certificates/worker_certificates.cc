#include "weft/worker/launch/certificates/worker_certificates.h"

#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::launch {
namespace {

using Json = nlohmann::json;

std::string certificates_key(uint32_t node) {
  return absl::StrCat("weft/launch/certificates/", node);
}

// What node 0 tells another node.
struct NodeCertificates {
  std::string store;                      // address of the workers' store
  std::string authority;                  // PEM
  std::vector<std::string> certificates;  // PEM, by local rank
};

std::string to_text(const NodeCertificates& of_node) {
  const Json json = {{"store", of_node.store},
                     {"authority", of_node.authority},
                     {"certificates", of_node.certificates}};
  // A host's name may have any bytes, and JSON has only UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<NodeCertificates> parse_node_certificates(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    return NodeCertificates{json.at("store"), json.at("authority"), json.at("certificates")};
  } catch (const Json::exception& problem) {
    return absl::InternalError(absl::StrCat("what node 0 has signed: ", problem.what()));
  }
}

// Signs for the ranks of one node.
absl::StatusOr<std::vector<std::string>> certificates_for(const JobAuthority& authority,
                                                          const std::vector<NodeRecord>& records,
                                                          uint32_t node) {
  const std::vector<std::string>& keys = records[node].public_keys;
  const std::string run_id = run_id_of(records);
  uint32_t rank = place_of_node(records, node).first_rank;
  std::vector<std::string> certificates;
  for (const Role& role : records[node].roles) {
    for (uint32_t i = 0; i < role.count; ++i, ++rank) {
      if (certificates.size() == keys.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("node ", node, " has sent only ", keys.size(), " keys"));
      }
      WEFT_ASSIGN_OR_RETURN(const CertificateName name,
                            certificate_name(run_id, role.name, name_of_rank(rank)));
      absl::StatusOr<std::string> signed_one = authority.certify(name, keys[certificates.size()]);
      if (!signed_one.ok()) {
        return prepend(absl::StrCat("the key of rank ", rank, ": "), signed_one.status());
      }
      certificates.push_back(*std::move(signed_one));
    }
  }
  return certificates;
}

}  // namespace

absl::StatusOr<WorkerCertificates> WorkerCertificates::create(uint32_t processes) {
  WorkerCertificates result;
  for (uint32_t i = 0; i < processes; ++i) {
    WEFT_ASSIGN_OR_RETURN(KeyPair key, make_key_pair());
    result.keys_.push_back(std::move(key));
  }
  return result;
}

std::vector<std::string> WorkerCertificates::public_keys() const {
  std::vector<std::string> result;
  for (const KeyPair& pair : keys_) result.push_back(pair.public_key);
  return result;
}

absl::Status WorkerCertificates::sign(const std::vector<NodeRecord>& records,
                                      RendezvousOptions place) {
  const std::string run_id = run_id_of(records);
  WEFT_ASSIGN_OR_RETURN(const JobAuthority authority, JobAuthority::create(run_id));
  WEFT_ASSIGN_OR_RETURN(const CertificateName name,
                        certificate_name(run_id, kLauncherName, kLauncherName));
  WEFT_ASSIGN_OR_RETURN(TlsCredentials own, authority.issue(name));
  const NodeCertificates shared = {
      .store = "", .authority = authority.certificate(), .certificates = {}};
  std::vector<NodeCertificates> all(records.size(), shared);
  for (uint32_t node = 0; node < records.size(); ++node) {
    WEFT_ASSIGN_OR_RETURN(all[node].certificates, certificates_for(authority, records, node));
  }
  if (needs_certificates(place)) {
    place.port = 0;
    place.identity = {.tls = std::make_shared<TlsIdentity>(std::move(own)), .proves_name = true};
    WEFT_ASSIGN_OR_RETURN(hosted_, host_rendezvous_store(place));
    place.port = hosted_->port;
  }
  for (NodeCertificates& each : all) {
    each.store = rendezvous_address(place);
    signed_.push_back(to_text(each));
  }
  return absl::OkStatus();
}

absl::Status WorkerCertificates::exchange(RendezvousStore& launchers,
                                          const RendezvousOptions& place, uint32_t node,
                                          const std::vector<NodeRecord>& records) {
  if (node == 0 && signed_.empty()) {
    WEFT_RETURN_IF_ERROR(prepend("--certificates: ", sign(records, place)));
  }
  for (uint32_t i = 0; i < signed_.size(); ++i) {
    WEFT_RETURN_IF_ERROR(launchers.set(certificates_key(i), signed_[i]));
  }
  if (!files_.empty()) return absl::OkStatus();
  return prepend("--certificates: ", take(launchers, node));
}

absl::Status WorkerCertificates::take(RendezvousStore& launchers, uint32_t node) {
  WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                        launchers.try_get(certificates_key(node)));
  if (!text.has_value()) {
    return absl::InternalError("node 0 has signed no certificates for this node");
  }
  WEFT_ASSIGN_OR_RETURN(NodeCertificates taken, parse_node_certificates(*text));
  if (taken.certificates.size() != keys_.size()) {
    return absl::InternalError(absl::StrCat("node 0 has signed ", taken.certificates.size(),
                                            " certificates for ", keys_.size(), " processes"));
  }
  store_ = std::move(taken.store);
  WEFT_ASSIGN_OR_RETURN(authority_, keep_in_memory("weft-authority", taken.authority));
  for (size_t i = 0; i < keys_.size(); ++i) {
    Files files;
    WEFT_ASSIGN_OR_RETURN(files.certificate,
                          keep_in_memory("weft-certificate", taken.certificates[i]));
    WEFT_ASSIGN_OR_RETURN(files.key, keep_in_memory("weft-key", keys_[i].key.text()));
    const auto checked =
        check_credentials(taken.authority, taken.certificates[i], std::move(keys_[i].key));
    if (!checked.ok()) {
      return absl::InternalError(
          absl::StrCat("the certificate of process ", i, ": ", checked.status().message()));
    }
    files_.push_back(std::move(files));
  }
  return absl::OkStatus();
}

std::vector<std::vector<std::string>> WorkerCertificates::variables() const {
  std::vector<std::vector<std::string>> result;
  for (const Files& files : files_) {
    result.push_back({absl::StrCat("WEFT_TLS_CERT=", files.certificate.path),
                      absl::StrCat("WEFT_TLS_KEY=", files.key.path),
                      absl::StrCat("WEFT_TLS_CA=", authority_.path)});
  }
  return result;
}

}  // namespace weft::launch
