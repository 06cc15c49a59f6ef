#include "weft/links/memory_file.h"

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/stat.h>
#include <thread>

#include <gtest/gtest.h>

namespace weft {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

time_t time_of(const std::string& path) {
  struct stat file = {};
  EXPECT_EQ(::stat(path.c_str(), &file), 0);
  return file.st_mtime;
}

void put(MemoryFile& file, const std::string& text) {
  ASSERT_EQ(file.prepare(text), absl::OkStatus());
  ASSERT_EQ(file.replace(), absl::OkStatus());
}

TEST(MemoryFileTest, ThePathStaysAndTheContentIsReplaced) {
  MemoryFile file;
  put(file, "first");
  const std::string path = file.path();
  EXPECT_EQ(content_of(path), "first");
  const time_t before = time_of(path);
  put(file, "the second one");
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(content_of(path), "the second one");
  EXPECT_GT(time_of(path), before);
}

TEST(MemoryFileTest, WhatIsOnlyPreparedIsNotSeen) {
  MemoryFile file;
  put(file, "first");
  ASSERT_EQ(file.prepare("second"), absl::OkStatus());
  EXPECT_EQ(content_of(file.path()), "first");
}

// As gRPC reads a key and its certificate: two reads between two looks at the time.
TEST(MemoryFileTest, EqualTimesMeanOneWholeText) {
  MemoryFile file;
  put(file, std::string(3000, 'a'));
  const std::string path = file.path();
  std::atomic<bool> done{false};
  std::jthread writer([&] {  // joined also if an assertion fails
    for (int i = 0; i < 3000; ++i) put(file, std::string(3000, static_cast<char>('a' + i % 26)));
    done.store(true);
  });
  while (!done.load()) {
    const time_t before = time_of(path);
    const std::string one = content_of(path), two = content_of(path);
    if (time_of(path) != before) continue;
    ASSERT_EQ(one, two);
    ASSERT_EQ(one, std::string(3000, one.at(0)));
  }
}

}  // namespace
}  // namespace weft
