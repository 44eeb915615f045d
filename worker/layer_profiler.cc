#include "worker/layer_profiler.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/flags.h"
#include "common/status.h"
#include "plan/batch.h"
#include "plan/job_check.h"
#include "worker/layer_timer.h"

namespace headrace {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(20);
constexpr int kMaxLayers = 16;
constexpr int64_t kMaxBudgetMs = 600'000;

}  // namespace

absl::Status LayerProfiler::Claim() {
  absl::MutexLock lock(&mu_);
  if (claimed_) return absl::FailedPreconditionError("the worker measures layers already");
  claimed_ = true;
  cancelled_ = false;
  return absl::OkStatus();
}

bool LayerProfiler::Finish(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  if (claimed_) cancelled_ = true;
  const auto gone = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !claimed_; };
  return mu_.AwaitWithDeadline(absl::Condition(&gone), deadline);
}

absl::StatusOr<std::vector<LayerProfiler::Task>> LayerProfiler::Prepare(
    const v1::ProfileLayersRequest& request) const {
  if (request.layers_size() > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.layers_size(), " layers to measure; expected at most ", kMaxLayers));
  }
  const v1::TrainingSpec& training = request.spec().training();
  HEADRACE_RETURN_IF_ERROR(ValidateJob(request.spec(), nullptr));
  StageShape shape;
  HEADRACE_ASSIGN_OR_RETURN(shape.model, ResolveModel(request.spec().model()));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> sequences,
                            SplitBatch(training.batch_size(), training.micro_batches()));
  shape.largest = {sequences.front(), training.sequence_length()};
  shape.precision = PrecisionOf(training);
  shape.tf32 = training.tf32();
  if (shape.precision == Precision::kBf16 && !limits_.bf16) {
    return absl::FailedPreconditionError("the device of this worker does not multiply bf16");
  }
  shape.optimizer_moments = 0;
  shape.credits = 1;
  shape.threads = limits_.threads;
  shape.device = limits_.device;
  const std::vector<LayerSpec> layers = BuildLayers(shape.model);
  std::vector<Task> tasks;
  for (const int64_t number : request.layers()) {
    if (number < 0 || number >= static_cast<int64_t>(layers.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", number, " to measure; expected 0 to ", layers.size() - 1));
    }
    Task& task = tasks.emplace_back();
    task.layer = shape;
    const LayerSpec& layer = layers[number];
    task.layer.layers = {layer};
    const double flops = ForwardFlops(shape.model, layer, shape.largest) +
                         RecomputeFlops(shape.model, layer, shape.largest) +
                         BackwardFlops(shape.model, layer, shape.largest);
    if (flops_per_second_ > 0) task.guess_s = 2 * flops / flops_per_second_;
  }
  return tasks;
}

absl::Status LayerProfiler::Measure(const Task& task, absl::Time deadline,
                                    v1::ProfileLayersResponse* response) const {
  const LayerSpec& layer = task.layer.layers.front();
  const int64_t bytes = TimedLayerBytes(task.layer);
  const double left_s = absl::ToDoubleSeconds(deadline - absl::Now());
  const std::string name = absl::StrCat("layer ", layer.index, " (", layer.name, ") ");
  if (bytes > limits_.memory_bytes) {
    response->add_passed_over(absl::StrCat(name, "needs ", FormatBytes(bytes),
                                           " to be measured, the worker has ",
                                           FormatBytes(limits_.memory_bytes)));
    return absl::OkStatus();
  }
  if (task.guess_s > left_s) {
    response->add_passed_over(
        absl::StrFormat("%swould take about %.1f s to measure, of %.1f s left", name, task.guess_s,
                        std::max(left_s, 0.0)));
    return absl::OkStatus();
  }
  absl::StatusOr<v1::LayerSeconds> seconds = TimeLayer(task.layer, cancelled_, open_);
  if (absl::IsResourceExhausted(seconds.status()) || absl::IsUnavailable(seconds.status()) ||
      absl::IsInternal(seconds.status())) {
    response->add_passed_over(absl::StrCat(name, "was not measured: ", seconds.status().message()));
    return absl::OkStatus();
  }
  if (!seconds.ok()) return seconds.status();
  v1::LayerProfile* profile = response->add_profiles();
  profile->set_layer(layer.index);
  *profile->mutable_seconds() = *std::move(seconds);
  return absl::OkStatus();
}

absl::StatusOr<v1::ProfileLayersResponse> LayerProfiler::Run(
    const v1::ProfileLayersRequest& request, const std::function<bool()>& abandoned) {
  v1::ProfileLayersResponse response;
  absl::StatusOr<std::vector<Task>> tasks = Prepare(request);
  absl::Status status = tasks.status();
  if (status.ok()) {
    const int64_t budget_ms = std::clamp<int64_t>(request.budget_ms(), 0, kMaxBudgetMs);
    const absl::Time deadline = absl::Now() + absl::Milliseconds(budget_ms);
    absl::Mutex mu;
    bool done = false;
    std::thread measuring([&] {
      for (const Task& task : *tasks) {
        if (status.ok()) status = Measure(task, deadline, &response);
      }
      absl::MutexLock lock(&mu);
      done = true;
    });
    {
      absl::MutexLock lock(&mu);
      while (!mu.AwaitWithTimeout(absl::Condition(&done), kLookEvery)) {
        if (abandoned()) cancelled_ = true;
      }
    }
    measuring.join();
  }
  absl::MutexLock lock(&mu_);
  claimed_ = false;
  if (!status.ok()) return status;
  return response;
}

}  // namespace headrace
