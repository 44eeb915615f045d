#include "common/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

using ::testing::HasSubstr;

TEST(FlagsTest, ParsesByteSizes) {
  const std::pair<const char*, int64_t> cases[] = {
      {"8GiB", int64_t{8} << 30}, {"512MiB", 512 << 20}, {"1.5GiB", 3 << 29}, {"64KiB", 64 << 10},
      {"8GB", 8'000'000'000},     {"1048576", 1 << 20},  {"17B", 17},         {"0", 0},
      {"2 TiB", int64_t{2} << 40}};
  for (const auto& [text, bytes] : cases) {
    const auto parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(FlagsTest, RefusesWhatIsNoByteSizeAndShowsTheForms) {
  for (const char* text : {"", "GiB", "-1GiB", "8Gi", "8gib", "1e9", "inf", "nan", "1.2.3GiB", ".",
                           "99999999999999999999", "9999999999TiB", "8GiB "}) {
    const auto parsed = ParseBytes(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("8GiB, 512MiB")) << text;
  }
}

TEST(FlagsTest, ParsesLinks) {
  const std::pair<const char*, LinkSpeed> cases[] = {{"1Gbit/s", {125e6, 0}},
                                                     {"100Mbit/s,10ms", {12.5e6, 0.01}},
                                                     {"1.25GB/s,200us", {1.25e9, 2e-4}},
                                                     {"1000B/s,0s", {1000, 0}},
                                                     {"1TB/s,10s", {1e12, 10}}};
  for (const auto& [text, link] : cases) {
    const auto parsed = ParseLinkSpeed(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_DOUBLE_EQ(parsed->bytes_per_second, link.bytes_per_second) << text;
    EXPECT_DOUBLE_EQ(parsed->latency_s, link.latency_s) << text;
  }
  for (const char* text :
       {"", "1", "Gbit/s", "-1Gbit/s", "1gbit/s", "1Gbit", "1Gbit/s,", "1Gbit/s,1", "1Gbit/s,-1ms",
        "1Gbit/s,11s", "999B/s", "2TB/s", "1Gbit/s,1ms,1ms"}) {
    const auto parsed = ParseLinkSpeed(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("1Gbit/s,1ms")) << text;
  }
}

TEST(FlagsTest, FormatsBytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(int64_t{8} << 30), "8.0 GiB");
  EXPECT_EQ(FormatBytes(512 << 20), "512 MiB");
  EXPECT_EQ(FormatBytes((int64_t{1} << 30) - 1), "1.0 GiB");
  EXPECT_EQ(FormatBytes(int64_t{24} << 30), "24.0 GiB");
  EXPECT_EQ(FormatBytes(-2048), "-2.0 KiB");
}

TEST(FlagsTest, FormatsCounts) {
  EXPECT_EQ(FormatCount(7), "7");
  EXPECT_EQ(FormatCount(12'300), "12.3 K");
  EXPECT_EQ(FormatCount(124'400'000), "124.4 M");
  EXPECT_EQ(FormatCount(1.5e9), "1.5 B");
  EXPECT_EQ(FormatCount(999'999), "1.0 M");
}

TEST(FlagsTest, TakesTheThreeFormsOfAddress) {
  for (const char* address :
       {"127.0.0.1:7070", "gpu-box:0", "[::1]:7070", "unix:/run/headrace.sock", "0.0.0.0:65535"}) {
    EXPECT_TRUE(CheckAddress(address).ok()) << CheckAddress(address);
  }
}

TEST(FlagsTest, ATcpAddressIsNoSocket) {
  EXPECT_TRUE(CheckTcpAddress("0.0.0.0:9100").ok());
  EXPECT_THAT(std::string(CheckTcpAddress("host:99999").message()), HasSubstr("port \"99999\""));
  EXPECT_EQ(CheckTcpAddress("unix:/run/s").message(),
            "'unix:/run/s': a socket will not do here; expected host:port");
}

TEST(FlagsTest, RefusesABadAddressAndSaysWhichPart) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "port is missing"},
      {"host", "port is missing"},
      {":7070", "host is missing"},
      {"host:", "port \"\""},
      {"host:70707", "port \"70707\""},
      {"host:-1", "port \"-1\""},
      {"host:http", "port \"http\""},
      {"::1:7070", "in brackets"},
      {"[]:7070", "in brackets"},
      {"http://host:7070", "in brackets"},
      {"a b:1", "no host has"},
      {"unix:", "path is missing"},
      {"unix:/" + std::string(107, 'x'), "108 bytes"}};
  for (const auto& [address, why] : cases) {
    const absl::Status status = CheckAddress(address);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why)) << address;
  }
}

}  // namespace
}  // namespace headrace
