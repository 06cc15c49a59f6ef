#include "weft/security/command/command.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/security/command/output_file.h"
#include "weft/security/key_file.h"
#include "weft/security/site_authority.h"

namespace weft::security_internal {
namespace {

constexpr size_t kMostFile = size_t{1} << 20;
constexpr int kMostDays = 36500;
constexpr mode_t kForAll = 0644;
constexpr mode_t kForOwner = 0600;

struct IssueOptions {
  std::string authority, run_id, role = "default", name, trust_domain = "weft.local", out = ".";
  int days = 30;
};

std::string certificate_file(const std::string& folder) { return folder + "/ca.pem"; }
std::string key_file(const std::string& folder) { return folder + "/ca.key"; }

std::chrono::hours hours_of(int days) { return std::chrono::hours(24) * days; }

absl::Status make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot make the folder ", folder, ": ", error.message()));
}

absl::Status make_authority(const std::string& folder, int days, std::ostream& out) {
  WEFT_RETURN_IF_ERROR(make_folder(folder));
  WEFT_ASSIGN_OR_RETURN(const SiteAuthority authority, SiteAuthority::create(hours_of(days)));
  WEFT_ASSIGN_OR_RETURN(const SecretBytes key, authority.key());
  // First the key: it is the one that must not be replaced.
  WEFT_RETURN_IF_ERROR(write_whole(key_file(folder), key.text(), kForOwner, Existing::kRefuse));
  WEFT_RETURN_IF_ERROR(
      write_whole(certificate_file(folder), authority.certificate(), kForAll, Existing::kReplace));
  out << "WEFT_TLS_CA=" << certificate_file(folder) << "\n";
  return absl::OkStatus();
}

absl::Status issue(const IssueOptions& options, std::ostream& out) {
  if (is_name_of_rank(options.name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--name: '", options.name, "' is for the certificates of weft_launch --certificates"));
  }
  WEFT_ASSIGN_OR_RETURN(CertificateName name,
                        certificate_name(options.run_id, options.role, options.name));
  name.trust_domain = options.trust_domain;
  WEFT_RETURN_IF_ERROR(prepend("--trust-domain: ", parse_certificate_name(name.uri()).status()));
  WEFT_ASSIGN_OR_RETURN(
      const SecretBytes certificate,
      read_file(certificate_file(options.authority), kMostFile, Readers::kEverybody));
  WEFT_ASSIGN_OR_RETURN(const SecretBytes key,
                        read_file(key_file(options.authority), kMostFile, Readers::kOwner));
  WEFT_ASSIGN_OR_RETURN(const SiteAuthority authority,
                        SiteAuthority::from_pem(certificate.text(), key));
  WEFT_ASSIGN_OR_RETURN(const TlsCredentials made, authority.issue(name, hours_of(options.days)));
  WEFT_RETURN_IF_ERROR(make_folder(options.out));
  const std::string stem = absl::StrCat(options.out, "/", options.name);
  WEFT_RETURN_IF_ERROR(write_whole(stem + ".key", made.key.text(), kForOwner, Existing::kReplace));
  WEFT_RETURN_IF_ERROR(write_whole(stem + ".pem", made.chain, kForAll, Existing::kReplace));
  out << "WEFT_TLS_CERT=" << stem << ".pem\nWEFT_TLS_KEY=" << stem
      << ".key\nWEFT_TLS_CA=" << certificate_file(options.authority) << "\n";
  return absl::OkStatus();
}

absl::Status show(const std::string& file, std::ostream& out) {
  WEFT_ASSIGN_OR_RETURN(const SecretBytes text, read_file(file, kMostFile, Readers::kEverybody));
  WEFT_ASSIGN_OR_RETURN(const std::vector<CertificateFacts> facts,
                        facts_of_certificates(text.text(), file));
  for (const CertificateFacts& each : facts) {
    out << (each.names.empty() ? "an authority" : printable(each.names)) << ", valid from "
        << each.begins << " to " << each.ends << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

int run_command(int argc, const char* const* argv, std::ostream& out, std::ostream& errors) {
  CLI::App app("Makes certificates for the workers of a site (docs/security.md)", "weft_cert");
  app.require_subcommand(1);
  std::function<absl::Status()> run;

  std::string folder;
  int days = 3650;
  CLI::App* const authority = app.add_subcommand(
      "authority", "Makes a certificate authority: FOLDER/ca.pem, and its key FOLDER/ca.key");
  authority->add_option("FOLDER", folder)->required();
  authority->add_option("--days", days, "how long it is valid")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostDays));
  authority->callback([&] { run = [&] { return make_authority(folder, days, out); }; });

  IssueOptions options;
  CLI::App* const one = app.add_subcommand(
      "issue", "Makes a worker's certificate, OUT/NAME.pem, and its key, OUT/NAME.key");
  one->add_option("--authority", options.authority, "the folder of the authority")->required();
  one->add_option("--run-id", options.run_id, "the job's run id (TORCHELASTIC_RUN_ID)")->required();
  one->add_option("--role", options.role, "the worker's role (ROLE_NAME)")->capture_default_str();
  one->add_option("--name", options.name, "the worker's name")->required();
  one->add_option("--days", options.days, "how long it is valid")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostDays));
  one->add_option("--trust-domain", options.trust_domain, "the same for all workers")
      ->capture_default_str();
  one->add_option("--out", options.out, "the folder for both files")->capture_default_str();
  one->callback([&] { run = [&] { return issue(options, out); }; });

  std::string file;
  CLI::App* const shown = app.add_subcommand("show", "Prints names and dates of certificates");
  shown->add_option("FILE", file, "in PEM")->required();
  shown->callback([&] { run = [&] { return show(file, out); }; });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& wrong) {
    return app.exit(wrong, out, errors) == 0 ? 0 : 2;
  }
  const absl::Status done = run();
  if (done.ok()) return 0;
  errors << "weft_cert: " << done.message() << "\n";
  return 1;
}

}  // namespace weft::security_internal
