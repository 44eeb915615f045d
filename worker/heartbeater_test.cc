// Heartbeater and Reporter against a registry played by the test.
#include "worker/heartbeater.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"
#include "worker/reporter.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(60);

class FakeRegistry final : public v1::WorkerRegistryService::Service {
 public:
  grpc::Status RegisterWorker(grpc::ServerContext*, const v1::RegisterWorkerRequest* request,
                              v1::RegisterWorkerResponse* response) override {
    absl::MutexLock lock(&mu_);
    ++registrations_;
    known_ = register_status_.ok();
    last_registration_ = *request;
    response->set_coordinator(coordinator_);
    response->set_heartbeat_ms(20);
    response->set_lease_ms(200);
    return register_status_;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override {
    absl::MutexLock lock(&mu_);
    if (!known_) return {grpc::StatusCode::NOT_FOUND, "who?"};
    response->mutable_clock()->set_clock("the coordinator's");
    response->mutable_clock()->set_now_ns(42);
    ++beats_;
    last_beat_ = *request;
    response->set_stop_stage(stop_stage_);
    response->set_next_ms(next_ms_);
    if (drop_before_ > 0) {
      v1::SliceLimit* limit = response->add_drop();
      limit->set_job_id("j7");
      limit->set_before_step(drop_before_);
    }
    return grpc::Status::OK;
  }
  grpc::Status ReportEvents(grpc::ServerContext*, const v1::ReportEventsRequest* request,
                            v1::ReportEventsResponse*) override {
    absl::MutexLock lock(&mu_);
    if (needs_registration_ && !known_) return {grpc::StatusCode::NOT_FOUND, "who?"};
    if (refusals_ > 0) {
      --refusals_;
      return {grpc::StatusCode::UNAVAILABLE, "not now"};
    }
    for (const v1::StageEvent& event : request->events()) sequences_.push_back(event.sequence());
    return grpc::Status::OK;
  }

  absl::Mutex mu_;
  grpc::Status register_status_ ABSL_GUARDED_BY(mu_);
  bool known_ ABSL_GUARDED_BY(mu_) = false;
  bool needs_registration_ ABSL_GUARDED_BY(mu_) = false;  // to report
  std::string coordinator_ ABSL_GUARDED_BY(mu_) = "c1";
  int64_t drop_before_ ABSL_GUARDED_BY(mu_) = 0;
  v1::RegisterWorkerRequest last_registration_ ABSL_GUARDED_BY(mu_);
  bool stop_stage_ ABSL_GUARDED_BY(mu_) = false;
  int64_t next_ms_ ABSL_GUARDED_BY(mu_) = 0;
  int registrations_ ABSL_GUARDED_BY(mu_) = 0;
  int beats_ ABSL_GUARDED_BY(mu_) = 0;
  int refusals_ ABSL_GUARDED_BY(mu_) = 0;
  v1::HeartbeatRequest last_beat_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> sequences_ ABSL_GUARDED_BY(mu_);
};

class HeartbeaterTest : public ::testing::Test {
 protected:
  HeartbeaterTest() {
    Serve();
    stub_ = v1::WorkerRegistryService::NewStub(MakeChannel(address_, ChannelUse::kControl));
  }
  ~HeartbeaterTest() override { StopServing(); }

  void Serve() {
    grpc::ServerBuilder builder;
    int port = 0;
    ASSERT_TRUE(AddListener(&builder, address_, &port).ok());
    builder.RegisterService(&registry_);
    server_ = builder.BuildAndStart();
  }
  void StopServing() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_ = nullptr;
  }

  std::unique_ptr<Heartbeater> Begin() {
    v1::WorkerInfo self;
    self.set_name("w0");
    self.set_instance("i0");
    HeartbeaterCallbacks callbacks;
    callbacks.registering = [this](v1::RegisterWorkerRequest* request) {
      if (reporter_ != nullptr && !reporter_->Hold()) return false;
      request->mutable_standing()->set_job_id("j7");
      return true;
    };
    callbacks.registered = [this](const std::string& coordinator) {
      if (reporter_ != nullptr) reporter_->Resume(coordinator);
    };
    callbacks.drop = [this](const v1::SliceLimit& limit) {
      absl::MutexLock lock(&mu_);
      dropped_ = absl::StrCat(limit.job_id(), " before ", limit.before_step());
    };
    callbacks.current = [](v1::HeartbeatRequest* request) {
      request->set_job_id("j7");
      request->set_generation(3);
    };
    callbacks.clock = [this](const v1::ClockReading& reading, int64_t asked_ns, int64_t heard_ns) {
      absl::MutexLock lock(&mu_);
      if (reading.now_ns() == 42 && asked_ns <= heard_ns) ++clock_readings_;
    };
    callbacks.stop_stage = [this](const std::string& job_id, int64_t generation) {
      absl::MutexLock lock(&mu_);
      stopped_ = absl::StrCat(job_id, " ", generation);
    };
    callbacks.away = [this](absl::Duration silence) {
      absl::MutexLock lock(&mu_);
      silences_.push_back(silence);
    };
    callbacks.refused = [this](const absl::Status& why) {
      absl::MutexLock lock(&mu_);
      refused_ = why;
    };
    return std::make_unique<Heartbeater>(stub_.get(), self, std::move(callbacks));
  }

  template <typename Condition>
  static bool Await(absl::Mutex* mu, const Condition& condition) {
    absl::MutexLock lock(mu);
    return mu->AwaitWithTimeout(absl::Condition(&condition), kPatience);
  }

  const TempDir dir_;
  const std::string address_ = absl::StrCat("unix:", dir_ / "registry");
  FakeRegistry registry_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::WorkerRegistryService::Stub> stub_;
  std::unique_ptr<Reporter> reporter_;  // maybe none

  absl::Mutex mu_;
  int clock_readings_ ABSL_GUARDED_BY(mu_) = 0;
  std::string stopped_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Duration> silences_ ABSL_GUARDED_BY(mu_);
  std::string dropped_ ABSL_GUARDED_BY(mu_);
  absl::Status refused_ ABSL_GUARDED_BY(mu_);
};

TEST_F(HeartbeaterTest, RegistersThenBeatsWithTheJobItServes) {
  const auto heartbeater = Begin();
  const auto beaten = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return registry_.beats_ >= 3; };
  ASSERT_TRUE(Await(&registry_.mu_, beaten));
  absl::MutexLock lock(&registry_.mu_);
  EXPECT_EQ(registry_.registrations_, 1);
  EXPECT_EQ(registry_.last_beat_.worker(), "w0");
  EXPECT_EQ(registry_.last_beat_.instance(), "i0");
  EXPECT_EQ(registry_.last_beat_.job_id(), "j7");
  EXPECT_EQ(registry_.last_beat_.generation(), 3);
}

TEST_F(HeartbeaterTest, TellsWhatEachAnswerSaysOfTheCoordinatorsClock) {
  const auto heartbeater = Begin();
  const auto told = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return clock_readings_ >= 2; };
  EXPECT_TRUE(Await(&mu_, told));
}

TEST_F(HeartbeaterTest, SaysGoodbye) {
  auto heartbeater = Begin();
  const auto beaten = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return registry_.beats_ >= 1; };
  ASSERT_TRUE(Await(&registry_.mu_, beaten));
  heartbeater.reset();
  v1::WorkerInfo self;
  self.set_name("w0");
  self.set_instance("i0");
  EXPECT_EQ(SayGoodbye(stub_.get(), self, absl::Now() + kPatience), absl::OkStatus());
  absl::MutexLock lock(&registry_.mu_);
  EXPECT_TRUE(registry_.last_beat_.leaving());
  EXPECT_EQ(registry_.last_beat_.instance(), "i0");
}

TEST_F(HeartbeaterTest, RegistersAgainWhenForgotten) {
  const auto heartbeater = Begin();
  const auto beaten = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return registry_.beats_ >= 1; };
  ASSERT_TRUE(Await(&registry_.mu_, beaten));
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.known_ = false;
  }
  const auto again = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return registry_.registrations_ >= 2 && registry_.known_;
  };
  EXPECT_TRUE(Await(&registry_.mu_, again));
  absl::MutexLock lock(&mu_);
  EXPECT_THAT(silences_, IsEmpty());
}

TEST_F(HeartbeaterTest, TellsAnyCoordinatorWhatItServes) {
  const auto heartbeater = Begin();
  const auto beaten = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return registry_.beats_ >= 1; };
  ASSERT_TRUE(Await(&registry_.mu_, beaten));
  absl::MutexLock lock(&registry_.mu_);
  EXPECT_EQ(registry_.last_registration_.standing().job_id(), "j7");
}

TEST_F(HeartbeaterTest, PassesOnWhichSlicesAreOfNoUse) {
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.drop_before_ = 120;
  }
  const auto heartbeater = Begin();
  const auto told = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return dropped_ == "j7 before 120"; };
  EXPECT_TRUE(Await(&mu_, told));
}

TEST_F(HeartbeaterTest, EndsAStageTheCoordinatorDisowns) {
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.stop_stage_ = true;
  }
  const auto heartbeater = Begin();
  const auto told = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stopped_ == "j7 3"; };
  EXPECT_TRUE(Await(&mu_, told));
}

// It said so once, and the stage ended; now a stage trains on for minutes, and somebody has to
// count them.
TEST_F(HeartbeaterTest, SaysAgainAndAgainThatTheCoordinatorIsAwayUntilItIsBack) {
  const auto heartbeater = Begin();
  const auto beaten = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return registry_.beats_ >= 1; };
  ASSERT_TRUE(Await(&registry_.mu_, beaten));
  StopServing();
  const auto away = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return silences_.size() >= 3; };
  ASSERT_TRUE(Await(&mu_, away));
  int before = 0;
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.known_ = false;  // a restarted coordinator knows nobody
    before = registry_.registrations_;
  }
  Serve();
  const auto back = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return registry_.registrations_ > before && registry_.known_;
  };
  EXPECT_TRUE(Await(&registry_.mu_, back));
  absl::MutexLock lock(&mu_);
  EXPECT_GT(silences_.front(), absl::Milliseconds(200));
  EXPECT_TRUE(std::is_sorted(silences_.begin(), silences_.end()));
}

// Heartbeats of 20 ms and a lease of 200: told to wait for 170, it has a lease of 350.
TEST_F(HeartbeaterTest, ALongerPauseMakesALongerLease) {
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.next_ms_ = 170;
  }
  const auto heartbeater = Begin();
  const auto beaten = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return registry_.beats_ >= 2; };
  ASSERT_TRUE(Await(&registry_.mu_, beaten));
  StopServing();
  const auto away = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !silences_.empty(); };
  ASSERT_TRUE(Await(&mu_, away));
  absl::MutexLock lock(&mu_);
  EXPECT_GT(silences_.front(), absl::Milliseconds(350));
}

TEST_F(HeartbeaterTest, ABadRegistrationIsRefusedForGood) {
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.register_status_ = {grpc::StatusCode::INVALID_ARGUMENT, "no name"};
  }
  const auto heartbeater = Begin();
  const auto refused = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !refused_.ok(); };
  ASSERT_TRUE(Await(&mu_, refused));
  absl::MutexLock lock(&mu_);
  EXPECT_EQ(refused_.message(), "no name");
}

TEST_F(HeartbeaterTest, GoesAwayAtOnceWhileTheCoordinatorIsGone) {
  StopServing();
  auto heartbeater = Begin();
  const absl::Time start = absl::Now();
  heartbeater.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

using ReporterTest = HeartbeaterTest;

TEST_F(ReporterTest, DeliversEventsInOrderAcrossRefusals) {
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.refusals_ = 2;
  }
  Reporter reporter(stub_.get(), "w0", "i0");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reporter.Report(v1::StageEvent()).ok());
  ASSERT_TRUE(reporter.Flush(absl::Now() + kPatience).ok());
  absl::MutexLock lock(&registry_.mu_);
  EXPECT_THAT(registry_.sequences_, ElementsAre(1, 2, 3));
}

TEST_F(ReporterTest, NeitherBlocksNorGrowsWithoutBoundWhileTheCoordinatorIsGone) {
  StopServing();
  Reporter reporter(stub_.get(), "w0", "i0");
  v1::StageEvent event;
  event.set_log(std::string(16 << 20, 'x'));
  absl::Status status;
  int attempts = 0;
  for (; status.ok() && attempts < 100; ++attempts) status = reporter.Report(event);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(attempts, 4);  // three fit into 64 MiB with their few bytes of overhead
}

// What a coordinator was told just before it was killed it may not have kept.
TEST_F(ReporterTest, AnotherProcessOfTheCoordinatorIsToldTheLatestAgainBeforeAnythingNew) {
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.needs_registration_ = true;
  }
  reporter_ = std::make_unique<Reporter>(stub_.get(), "w0", "i0");
  const auto heartbeater = Begin();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reporter_->Report(v1::StageEvent()).ok());
  ASSERT_TRUE(reporter_->Flush(absl::Now() + kPatience).ok());
  StopServing();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(reporter_->Report(v1::StageEvent()).ok());
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.sequences_.clear();
    registry_.known_ = false;
    registry_.coordinator_ = "c2";
  }
  Serve();
  ASSERT_TRUE(reporter_->Flush(absl::Now() + kPatience).ok());
  absl::MutexLock lock(&registry_.mu_);
  EXPECT_THAT(registry_.sequences_, ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(ReporterTest, TheSameProcessIsToldNothingTwice) {
  reporter_ = std::make_unique<Reporter>(stub_.get(), "w0", "i0");
  const auto heartbeater = Begin();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reporter_->Report(v1::StageEvent()).ok());
  ASSERT_TRUE(reporter_->Flush(absl::Now() + kPatience).ok());
  int before = 0;
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.known_ = false;  // its lease ran out
    before = registry_.registrations_;
  }
  const auto again = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return registry_.registrations_ > before && registry_.beats_ > 0;
  };
  ASSERT_TRUE(Await(&registry_.mu_, again));
  ASSERT_TRUE(reporter_->Report(v1::StageEvent()).ok());
  ASSERT_TRUE(reporter_->Flush(absl::Now() + kPatience).ok());
  absl::MutexLock lock(&registry_.mu_);
  EXPECT_THAT(registry_.sequences_, ElementsAre(1, 2, 3, 4));
}

TEST_F(ReporterTest, WhatIsToldAgainIsTheLastFourMebibytes) {
  Reporter reporter(stub_.get(), "w0", "i0");
  reporter.Resume("c1");
  v1::StageEvent event;
  event.mutable_failed()->set_reason(std::string(900 << 10, 'x'));
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(reporter.Report(event).ok());
  ASSERT_TRUE(reporter.Flush(absl::Now() + kPatience).ok());
  {
    absl::MutexLock lock(&registry_.mu_);
    registry_.sequences_.clear();
  }
  ASSERT_TRUE(reporter.Hold());
  reporter.Resume("c2");
  ASSERT_TRUE(reporter.Flush(absl::Now() + kPatience).ok());
  absl::MutexLock lock(&registry_.mu_);
  EXPECT_THAT(registry_.sequences_, ElementsAre(5, 6, 7, 8));
}

// The log of a job showed them twice after its coordinator had been restarted.
TEST_F(ReporterTest, LinesOfTheLogAreNotToldAgain) {
  Reporter reporter(stub_.get(), "w0", "i0");
  reporter.Resume("c1");
  v1::StageEvent line;
  line.set_log("after step 2");
  ASSERT_TRUE(reporter.Report(v1::StageEvent()).ok());
  ASSERT_TRUE(reporter.Report(line).ok());
  ASSERT_TRUE(reporter.Report(v1::StageEvent()).ok());
  ASSERT_TRUE(reporter.Flush(absl::Now() + kPatience).ok());
  ASSERT_TRUE(reporter.Hold());
  reporter.Resume("c2");
  ASSERT_TRUE(reporter.Flush(absl::Now() + kPatience).ok());
  absl::MutexLock lock(&registry_.mu_);
  EXPECT_THAT(registry_.sequences_, ElementsAre(1, 2, 3, 1, 3));
}

TEST_F(ReporterTest, NothingIsDeliveredWhileItIsHeld) {
  Reporter reporter(stub_.get(), "w0", "i0");
  ASSERT_TRUE(reporter.Hold());
  ASSERT_TRUE(reporter.Report(v1::StageEvent()).ok());
  EXPECT_FALSE(reporter.Flush(absl::Now() + absl::Milliseconds(100)).ok());
  reporter.Resume("c1");
  EXPECT_TRUE(reporter.Flush(absl::Now() + kPatience).ok());
}

// A job of short steps makes hundreds of megabytes of spans in ten minutes, of which the
// coordinator would keep the last.
TEST_F(ReporterTest, SpansAreLeftOutWhenHalfOfTheRoomIsTaken) {
  StopServing();
  Reporter reporter(stub_.get(), "w0", "i0");
  v1::StageEvent step;
  step.mutable_step()->set_step(1);
  for (int i = 0; i < 1 << 17; ++i) step.mutable_trace()->add_duration_ns(int64_t{1} << 50);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(reporter.Report(step).ok()) << i;
}

}  // namespace
}  // namespace headrace
