// A new folder for one test, which is removed with its content.
//
// Thread safety: a plain value; it cannot be copied.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace weft::testing {

class TemporaryFolder {
 public:
  // Throws std::runtime_error if it cannot be made.
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "weft_XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder");
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace weft::testing
