#include "worker/advertise.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

TEST(AdvertisedAddress, IsWhatTheFlagSays) {
  EXPECT_EQ(*AdvertisedAddress("gpu7:9000", "0.0.0.0:0", 1234, "127.0.0.1:7070"), "gpu7:9000");
}

TEST(AdvertisedAddress, IsAConcreteListenAddressWithTheBoundPort) {
  EXPECT_EQ(*AdvertisedAddress("", "10.1.2.3:0", 1234, "127.0.0.1:7070"), "10.1.2.3:1234");
  EXPECT_EQ(*AdvertisedAddress("", "[fe80::1]:0", 1234, "127.0.0.1:7070"), "[fe80::1]:1234");
  EXPECT_EQ(*AdvertisedAddress("", "unix:/run/w0", 0, "127.0.0.1:7070"), "unix:/run/w0");
}

TEST(AdvertisedAddress, IsTheLocalAddressTowardsTheCoordinatorWhenListeningOnAll) {
  EXPECT_EQ(*AdvertisedAddress("", "0.0.0.0:0", 1234, "127.0.0.1:7070"), "127.0.0.1:1234");
  EXPECT_EQ(*AdvertisedAddress("", "[::]:0", 1234, "unix:/run/coordinator"), "127.0.0.1:1234");
}

TEST(AdvertisedAddress, SaysWhatToDoWhenTheCoordinatorsHostIsUnknown) {
  const absl::StatusOr<std::string> address =
      AdvertisedAddress("", "0.0.0.0:0", 1234, "no-such-host.invalid:7070");
  EXPECT_TRUE(absl::IsInvalidArgument(address.status()));
  EXPECT_THAT(std::string(address.status().message()),
              testing::AllOf(testing::HasSubstr("no-such-host.invalid"),
                             testing::HasSubstr("--advertise")));
}

TEST(HostId, IsOneForProcessesThatShareNamespaces) {
  const std::string own = HostId();
  ASSERT_THAT(own, testing::HasSubstr(" pid:["));
  ASSERT_THAT(own, testing::HasSubstr(" net:["));
  EXPECT_EQ(HostId(), own);
}

}  // namespace
}  // namespace headrace
