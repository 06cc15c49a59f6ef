#include "weft/sockets/listen_host.h"

#include <map>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::string> find(const std::map<std::string, std::string>& variables) {
  return find_listen_host([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(ListenHost, IsTheNamedOneOrThatOfAnInterface) {
  EXPECT_EQ(find({}).value(), "");
  EXPECT_EQ(find({{"WEFT_LISTEN_HOST", "10.0.0.1"}, {"WEFT_SOCKET_IFNAME", "lo"}}).value(),
            "10.0.0.1");
  EXPECT_EQ(find({{"WEFT_LISTEN_HOST", ""}, {"WEFT_SOCKET_IFNAME", "lo"}}).value(), "127.0.0.1");
  EXPECT_EQ(find({{"WEFT_SOCKET_IFNAME", "weft7,lo"}}).value(), "127.0.0.1");
}

TEST(ListenHost, AnInterfaceThatIsNotHereIsNamedWithThoseThatAre) {
  const absl::Status status = find({{"WEFT_SOCKET_IFNAME", "weft7"}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::AllOf(HasSubstr("WEFT_SOCKET_IFNAME='weft7'"), HasSubstr("lo (127.0.0.1)")));
}

}  // namespace
}  // namespace weft
