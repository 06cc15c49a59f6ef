#include "weft/security/job_secret.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <pwd.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/security/internal/key_file.h"

namespace weft {
namespace {

using security_internal::Access;
using security_internal::read_file;

constexpr size_t kFewestCharacters = 32;
constexpr size_t kMostCharacters = 4096;
constexpr size_t kRandomBytes = 32;

absl::Status failed(const std::string& what, int error_number) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, ": ", std::strerror(error_number)));
}

absl::StatusOr<std::string> home_folder(const EnvironmentReader& read) {
  if (const auto home = read("HOME"); home.has_value() && !home->empty()) return *home;
  std::vector<char> text(16384);
  passwd entry = {};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, text.data(), text.size(), &found) == 0 &&
      found != nullptr && found->pw_dir != nullptr && found->pw_dir[0] != '\0') {
    return std::string(found->pw_dir);
  }
  return absl::NotFoundError(
      "this user has no home folder for the job's secret. Set WEFT_SECRET_FILE.");
}

absl::StatusOr<std::string> default_file(const EnvironmentReader& read) {
  if (const auto folder = read("XDG_CONFIG_HOME"); folder.has_value() && !folder->empty()) {
    return absl::StrCat(*folder, "/weft/secret");
  }
  WEFT_ASSIGN_OR_RETURN(const std::string home, home_folder(read));
  return absl::StrCat(home, "/.config/weft/secret");
}

// Makes the file unless it exists. `link` fails if another process was first. So a file with this
// name always has its whole content.
absl::Status make_file(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return failed(absl::StrCat("make the folder ", folder.string()), errno);
  }
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);  // with mode 0600
  if (descriptor < 0) return failed(absl::StrCat("make a file beside ", path), errno);
  const absl::Cleanup remove = [&] {
    ::close(descriptor);
    ::unlink(temporary.c_str());
  };

  SecretBytes random(kRandomBytes);
  if (RAND_bytes(random.bytes().data(), kRandomBytes) != 1) {
    return absl::UnavailableError("the system gives no random bytes for the job's secret");
  }
  std::string digits = absl::BytesToHexString(absl_view(random.text()));
  digits += '\n';
  const ssize_t written = ::write(descriptor, digits.data(), digits.size());
  const bool whole = written == static_cast<ssize_t>(digits.size());
  OPENSSL_cleanse(digits.data(), digits.size());
  if (!whole || ::fsync(descriptor) != 0) return failed(absl::StrCat("write ", temporary), errno);
  if (::link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    return failed(absl::StrCat("make ", path), errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<SecretBytes> read_secret(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(SecretBytes content,
                        read_file(path, kMostCharacters + 64, Access::kPrivate));
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  std::string_view text = content.text();
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  if (text.size() < kFewestCharacters || text.size() > kMostCharacters) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the secret file ", path, " has ", text.size(), " characters, not ", kFewestCharacters,
        " to ", kMostCharacters, ". `openssl rand -hex 32` makes a good content."));
  }
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("the secret file ", path, " has characters that are not printable ASCII"));
  }
  return SecretBytes(text);
}

}  // namespace

absl::StatusOr<SecretBytes> find_job_secret(const EnvironmentReader& read) {
  if (read("WEFT_SECRET").has_value()) {
    return absl::InvalidArgumentError(
        "WEFT_SECRET is set, but other users may see the environment of a process. Put the secret "
        "into a file with mode 0600 and its path into WEFT_SECRET_FILE.");
  }
  if (const auto path = read("WEFT_SECRET_FILE"); path.has_value()) {
    if (path->empty()) return absl::InvalidArgumentError("WEFT_SECRET_FILE is empty");
    return read_secret(*path);
  }
  WEFT_ASSIGN_OR_RETURN(const std::string path, default_file(read));
  absl::StatusOr<SecretBytes> found = read_secret(path);
  if (!absl::IsNotFound(found.status())) return found;
  WEFT_RETURN_IF_ERROR(make_file(path));
  return read_secret(path);
}

}  // namespace weft
