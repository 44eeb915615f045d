#include "plan/sim_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace headrace {
namespace {

using ::testing::HasSubstr;

SimFlag Parse(const std::string& text) {
  const auto flag = ParseSimFlag(text);
  EXPECT_TRUE(flag.ok()) << flag.status();
  return flag.value_or(SimFlag());
}

TEST(SimDeviceTest, ReadsEveryKeyWithItsUnit) {
  const SimFlag flag = Parse(
      "sim:flops=10T,memory=16GiB,link=1Gbit/s,latency=1ms,forward=20ms,recompute=300us,"
      "backward=1.5s");
  EXPECT_EQ(flag.device.flops_per_second(), 10e12);
  EXPECT_EQ(flag.memory_bytes, int64_t{16} << 30);
  EXPECT_TRUE(flag.device.wire());
  EXPECT_EQ(flag.device.link_bytes_per_second(), 125e6);
  EXPECT_EQ(flag.device.link_latency_s(), 1e-3);
  EXPECT_EQ(flag.device.forward_s(), 20e-3);
  EXPECT_DOUBLE_EQ(flag.device.recompute_s(), 300e-6);
  EXPECT_EQ(flag.device.backward_s(), 1.5);
}

TEST(SimDeviceTest, AnActionsTimeIsThatOfAllThreeUnlessOneHasItsOwn) {
  const SimFlag flag = Parse("sim:backward=40ms,action=20ms");
  EXPECT_EQ(flag.device.forward_s(), 20e-3);
  EXPECT_EQ(flag.device.recompute_s(), 20e-3);
  EXPECT_EQ(flag.device.backward_s(), 40e-3);
  EXPECT_FALSE(flag.device.wire());
  EXPECT_EQ(flag.memory_bytes, 0);
}

TEST(SimDeviceTest, RatesAreInBitsOrBytes) {
  EXPECT_EQ(Parse("sim:flops=1G,link=125MB/s").device.link_bytes_per_second(),
            Parse("sim:flops=1G,link=1Gbit/s").device.link_bytes_per_second());
  EXPECT_EQ(Parse("sim:flops=1G,link=2MiB/s").device.link_bytes_per_second(), 2097152);
}

TEST(SimDeviceTest, EachErrorNamesKeyValueAndWhatIsExpected) {
  struct Case {
    const char* text;
    std::vector<const char*> says;
  };
  const Case cases[] = {
      {"sim:action=20", {"action=20", "20ms"}},
      {"sim:action=fast", {"action=fast", "20ms"}},
      {"sim:action=0ms", {"action=0ms", "above 0"}},
      {"sim:action=2h", {"action=2h", "20ms"}},
      {"sim:action=-1ms", {"action=-1ms", "20ms"}},
      {"sim:action=9999s", {"action=9999s", "3600s"}},
      {"sim:flops=ten", {"flops=ten", "10T"}},
      {"sim:flops=0", {"flops=0", "from 1 up"}},
      {"sim:flops=1e400", {"flops=1e400", "10T"}},
      {"sim:flops=10TFLOP", {"flops=10TFLOP", "10T"}},
      {"sim:action=1ms,memory=lots", {"memory=lots", "16GiB"}},
      {"sim:action=1ms,memory=0", {"memory=0", "above 0"}},
      {"sim:action=1ms,link=1G", {"link=1G", "1Gbit/s"}},
      {"sim:action=1ms,link=0B/s", {"link=0B/s", "125MB/s"}},
      {"sim:action=1ms,latency=1", {"latency=1", "unit"}},
      {"sim:action=1ms,latency=", {"latency=", "unit"}},
      {"sim:action=1ms,speed=3", {"'speed'", "backward"}},
      {"sim:action=1ms,=3", {"''", "backward"}},
      {"sim:action=1ms,action=2ms", {"action", "twice"}},
      {"sim:action", {"'action'", "KEY=VALUE"}},
      {"sim:", {"forward", "flops=10T"}},
      {"sim", {"forward", "flops=10T"}},
      {"sim:forward=1ms,backward=1ms", {"recompute", "recompute=20ms"}},
  };
  for (const Case& c : cases) {
    const auto flag = ParseSimFlag(c.text);
    EXPECT_TRUE(absl::IsInvalidArgument(flag.status())) << c.text << ": " << flag.status();
    for (const char* word : c.says) {
      EXPECT_THAT(flag.status().ToString(), HasSubstr(word)) << c.text;
    }
  }
}

TEST(SimDeviceTest, DescribesWhatItDeclares) {
  EXPECT_EQ(DescribeSim(Parse("sim:action=20ms").device), "simulated: 20 ms an action");
  EXPECT_EQ(DescribeSim(Parse("sim:action=20ms,backward=40ms,link=125MB/s,latency=1ms").device),
            "simulated: forward 20 ms, recompute 20 ms, backward 40 ms, link 125.0 MB/s + 1 ms");
  EXPECT_EQ(DescribeSim(Parse("sim:flops=10T,latency=200us").device),
            "simulated: 10.0 TFLOP/s, link + 200 us");
}

TEST(SimDeviceTest, TimesComeFromFlopsWhereNoneIsDeclared) {
  const v1::SimDevice device = Parse("sim:flops=1G,forward=20ms,link=1MB/s,latency=1ms").device;
  EXPECT_EQ(SimForwardSeconds(device, 5e9), 20e-3);
  EXPECT_EQ(SimBackwardSeconds(device, 5e9), 5);
  EXPECT_DOUBLE_EQ(SimLinkSeconds(device, 2'000'000), 2.001);
  EXPECT_EQ(SimLinkSeconds(Parse("sim:flops=1G").device, 2'000'000), 0);
}

TEST(SimDeviceTest, RefusesNumbersNoFlagCouldHaveMade) {
  v1::SimDevice device;
  EXPECT_FALSE(CheckSim(device).ok());
  device.set_flops_per_second(1e9);
  EXPECT_TRUE(CheckSim(device).ok());
  device.set_link_latency_s(-1);
  EXPECT_FALSE(CheckSim(device).ok());
  device.set_link_latency_s(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(CheckSim(device).ok());
}

}  // namespace
}  // namespace headrace
