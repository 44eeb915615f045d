#include "worker/sim/sim_wire.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

v1::SimDevice Device(double bytes_per_second, double latency_s) {
  v1::SimDevice device;
  device.set_wire(true);
  device.set_link_bytes_per_second(bytes_per_second);
  device.set_link_latency_s(latency_s);
  return device;
}

TEST(SimWireTest, AnEdgeCarriesOneTensorAtATime) {
  SimWire wire({Device(1e6, 0.5), Device(1e6, 0.5)});
  const absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(wire.Deliver(0, 1'000'000, now), now + absl::Seconds(1.5));
  EXPECT_EQ(wire.Deliver(0, 2'000'000, now + absl::Seconds(1)), now + absl::Seconds(4));
  // Another sender's edge is another wire; one that is idle again begins at once.
  EXPECT_EQ(wire.Deliver(1, 1'000'000, now), now + absl::Seconds(1.5));
  EXPECT_EQ(wire.Deliver(0, 0, now + absl::Seconds(9)), now + absl::Seconds(9.5));
}

TEST(SimWireTest, WithoutAWireWhatHasArrivedIsAvailable) {
  SimWire wire({v1::SimDevice()});
  EXPECT_EQ(wire.Deliver(0, 1 << 30, absl::UnixEpoch()), absl::UnixEpoch());
}

}  // namespace
}  // namespace headrace
