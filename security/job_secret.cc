#include "weft/security/job_secret.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <openssl/rand.h>
#include <pwd.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/security/key_file.h"

namespace weft {
namespace {

using security_internal::read_file;
using security_internal::read_pipe;
using security_internal::Readers;

constexpr size_t kFewestCharacters = 32;
constexpr size_t kMostCharacters = 4096;
constexpr size_t kMostBytes = kMostCharacters + 64;  // with white space at the ends
constexpr size_t kRandomBytes = 32;

absl::Status cannot(const std::string& what, int error_number) {
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

absl::Status check_folder(const std::string& folder) {
  struct stat found = {};
  if (::stat(folder.c_str(), &found) != 0) return cannot("inspect " + folder, errno);
  const bool of_others = found.st_uid != ::geteuid() && found.st_uid != 0;
  if (!of_others && (found.st_mode & 0022) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("other users can write the folder ", folder,
                                                  ", where the job's secret is. Run: chmod 700 ",
                                                  folder));
}

// Makes the file unless it exists. `link` fails if another process was first. So a file with this
// name always has its whole content.
absl::Status make_file(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder.parent_path(), error);
  if (error) {
    return cannot(absl::StrCat("make the folder ", folder.parent_path().string()), error.value());
  }
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return cannot(absl::StrCat("make the folder ", folder.string()), errno);
  }
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);  // with mode 0600
  if (descriptor < 0) return cannot(absl::StrCat("make a file beside ", path), errno);
  const absl::Cleanup remove = [&] {
    ::close(descriptor);
    ::unlink(temporary.c_str());
  };

  SecretBytes random(kRandomBytes);
  if (RAND_bytes(random.bytes().data(), kRandomBytes) != 1) {
    return absl::UnavailableError("the system gives no random bytes for the job's secret");
  }
  SecretBytes digits(2 * kRandomBytes + 1);
  for (size_t i = 0; i < 2 * kRandomBytes; ++i) {
    const unsigned half = random.bytes()[i / 2] >> (i % 2 == 0 ? 4 : 0) & 0xf;
    digits.bytes()[i] = static_cast<unsigned char>("0123456789abcdef"[half]);
  }
  digits.bytes().back() = '\n';
  const ssize_t written = ::write(descriptor, digits.bytes().data(), digits.size());
  if (written != static_cast<ssize_t>(digits.size()) || ::fsync(descriptor) != 0)
    return cannot(absl::StrCat("write ", temporary), errno);
  if (::link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    return cannot(absl::StrCat("make ", path), errno);
  }
  return absl::OkStatus();
}

// The content of a file or pipe without white space at its ends.
absl::StatusOr<SecretBytes> trimmed(const SecretBytes& content, const std::string& path) {
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

absl::StatusOr<SecretBytes> read_secret(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const SecretBytes content, read_file(path, kMostBytes, Readers::kOwner));
  return trimmed(content, path);
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
  if (absl::IsNotFound(found.status())) {
    WEFT_RETURN_IF_ERROR(make_file(path));
    found = read_secret(path);
  }
  // Users who can write the folder can put a file there that this user has made for another use.
  WEFT_RETURN_IF_ERROR(check_folder(std::filesystem::path(path).parent_path().string()));
  return found;
}

absl::StatusOr<std::optional<KeptFile>> keep_secret_of_pipe(const EnvironmentReader& read,
                                                            Nanoseconds timeout) {
  const std::string path = read("WEFT_SECRET_FILE").value_or("");
  struct stat file = {};
  if (path.empty() || ::stat(path.c_str(), &file) != 0 || !S_ISFIFO(file.st_mode)) {
    return std::nullopt;
  }
  WEFT_ASSIGN_OR_RETURN(const SecretBytes content,
                        read_pipe(path, kMostBytes, std::chrono::steady_clock::now() + timeout));
  WEFT_ASSIGN_OR_RETURN(const SecretBytes secret, trimmed(content, path));
  return keep_in_memory("weft-secret", secret.text());
}

}  // namespace weft
