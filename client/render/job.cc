#include "client/render/job.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/console.h"
#include "client/job_keys.h"
#include "client/render/human.h"
#include "client/render/plan.h"
#include "client/render/recovery.h"
#include "client/render/table.h"
#include "common/flags.h"

namespace headrace {
namespace {

std::string StepOf(const v1::Job& job) {
  return absl::StrCat(job.step(), "/", job.spec().training().steps());
}

std::string Line(const char* label, const std::string& text) {
  return absl::StrFormat("%-11s%s\n", label, Printable(text));
}

// The sum over all steps but the first, which pays for warming up; over that too if there is no
// other.
struct Means {
  std::vector<v1::StageSeconds> stages;
  double bubble = 0;
  double seconds = 0;
};

void Accumulate(const v1::StageSeconds& from, double weight, v1::StageSeconds* to) {
  to->set_wall(to->wall() + weight * from.wall());
  to->set_compute(to->compute() + weight * from.compute());
  to->set_recompute(to->recompute() + weight * from.recompute());
  to->set_wait_receive(to->wait_receive() + weight * from.wait_receive());
  to->set_wait_send(to->wait_send() + weight * from.wait_send());
  to->set_optimizer(to->optimizer() + weight * from.optimizer());
}

Means MeansOf(const v1::Job& job) {
  Means means;
  const int first = job.steps_size() > 1 ? 1 : 0;
  const double weight = 1.0 / std::max(1, job.steps_size() - first);
  for (int s = first; s < job.steps_size(); ++s) {
    const v1::StepResult& step = job.steps(s);
    means.bubble += weight * step.bubble();
    means.seconds += weight * step.seconds();
    means.stages.resize(std::max<size_t>(means.stages.size(), step.stage_seconds_size()));
    for (int k = 0; k < step.stage_seconds_size(); ++k) {
      means.stages[k].set_stage(step.stage_seconds(k).stage());
      Accumulate(step.stage_seconds(k), weight, &means.stages[k]);
    }
  }
  return means;
}

std::string RenderTimes(const v1::Job& job, int width) {
  if (job.steps_size() == 0) return "";
  const Means means = MeansOf(job);
  Table table({{"STAGE", Align::kRight},
               {"COMPUTE", Align::kRight},
               {"RECOMPUTE", Align::kRight},
               {"WAIT RECEIVE", Align::kRight},
               {"WAIT SEND", Align::kRight},
               {"OPTIMIZER", Align::kRight},
               {"STEP", Align::kRight},
               {"IDLE", Align::kRight}});
  for (const v1::StageSeconds& s : means.stages) {
    const double busy = s.compute() + s.recompute() + s.optimizer();
    table.Add({absl::StrCat(s.stage()), FormatSeconds(s.compute()), FormatSeconds(s.recompute()),
               FormatSeconds(s.wait_receive()), FormatSeconds(s.wait_send()),
               FormatSeconds(s.optimizer()), FormatSeconds(s.wall()),
               s.wall() > 0 ? FormatShare((s.wall() - busy) / s.wall()) : "?"});
  }
  return absl::StrCat(
      "\ntime of a step, mean\n", table.Render(width, 2), "  bubble ", FormatShare(means.bubble),
      " measured beside (K−1)/(M+K−1) = ", FormatShare(job.plan().ideal_bubble()), "\n");
}

std::string RenderLosses(const v1::Job& job) {
  if (job.steps_size() == 0) return "";
  const v1::StepResult& last = job.steps(job.steps_size() - 1);
  std::string out = Line("loss", absl::StrCat(FormatLoss(last.loss()), " at step ", last.step(),
                                              ", from ", FormatLoss(job.steps(0).loss())));
  for (int s = job.steps_size() - 1; s >= 0; --s) {
    if (!job.steps(s).has_validation_loss()) continue;
    absl::StrAppend(&out,
                    Line("validation", absl::StrCat(FormatLoss(job.steps(s).validation_loss()),
                                                    " at step ", job.steps(s).step())));
    break;
  }
  const Means means = MeansOf(job);
  if (means.seconds > 0) {
    absl::StrAppend(
        &out,
        Line("speed", absl::StrCat(FormatCount(static_cast<double>(last.tokens()) / means.seconds),
                                   " tokens/s, ", FormatSeconds(means.seconds), " a step")));
  }
  return out;
}

std::string RenderTimesOfDay(const v1::Job& job) {
  std::string out;
  if (job.submitted_unix_s() > 0) out = Line("submitted", FormatUnixTime(job.submitted_unix_s()));
  if (job.started_unix_s() > 0) {
    absl::StrAppend(&out, Line("started", FormatUnixTime(job.started_unix_s())));
  }
  if (job.ended_unix_s() > 0) {
    const double from = job.started_unix_s() > 0 ? job.started_unix_s() : job.submitted_unix_s();
    absl::StrAppend(&out, Line("ended", absl::StrCat(FormatUnixTime(job.ended_unix_s()), ", after ",
                                                     FormatSeconds(job.ended_unix_s() - from))));
  }
  return out;
}

std::string RenderLinks(const v1::Job& job, int width) {
  if (job.links_size() == 0) return "";
  Table table(
      {{"FROM", Align::kRight}, {"TO", Align::kRight}, {"TRANSPORT"}, {"ADDRESS"}, {"WHY"}});
  for (const v1::LinkInfo& link : job.links()) {
    table.Add({absl::StrCat(link.from_stage()), absl::StrCat(link.to_stage()), link.transport(),
               link.address(), link.reason()});
  }
  return absl::StrCat("\nlinks\n", table.Render(width, 2));
}

std::string RenderFlightRecords(const v1::Job& job) {
  std::string out;
  for (const v1::FlightRecord& record : job.flight_records()) {
    absl::StrAppend(&out, "\nflight recorder of worker ", Printable(record.worker()), " (stage ",
                    record.stage(), "), oldest first\n");
    for (const std::string& entry : record.entries()) {
      absl::StrAppend(&out, "  ", Printable(entry), "\n");
    }
  }
  return out;
}

std::string RenderWeights(const v1::Job& job) {
  std::string out;
  if (!job.weights_sha256().empty()) {
    absl::StrAppend(&out, Line("weights", absl::StrCat("sha256 ", job.weights_sha256(),
                                                       " after step ", job.weights_step())));
  }
  return out;
}

}  // namespace

std::string StateWord(v1::JobState state) {
  const auto* value = v1::JobState_descriptor()->FindValueByNumber(state);
  return value == nullptr ? absl::StrCat("state ", static_cast<int>(state)) : EnumWord(*value);
}

std::string RenderJob(const v1::Job& job, int width) {
  std::string out = Line("job", absl::StrCat(job.id(), " ", job.name()));
  absl::StrAppend(&out,
                  Line("state", absl::StrCat(StateWord(job.state()), ", step ", StepOf(job))));
  if (!job.message().empty()) absl::StrAppend(&out, Line("because", job.message()));
  absl::StrAppend(&out, RenderCourse(job), RenderTimesOfDay(job));
  if (job.has_dataset()) {
    absl::StrAppend(
        &out,
        Line("data", absl::StrCat(FormatCount(static_cast<double>(job.dataset().num_tokens())),
                                  " tokens, sha256 ", job.dataset().sha256())));
  }
  absl::StrAppend(&out, RenderLosses(job), RenderWeights(job));
  if (job.has_plan()) {
    const std::vector<v1::MemoryBytes> measured(job.peak_memory().begin(), job.peak_memory().end());
    absl::StrAppend(&out, "\n", RenderPlan(job.plan(), measured, width));
  }
  absl::StrAppend(&out, RenderTimes(job, width), RenderLinks(job, width),
                  RenderCheckpoints(job, width), RenderRecoveries(job, width),
                  RenderFlightRecords(job));
  return out;
}

std::string RenderOutcome(const v1::Job& job) {
  std::string out = absl::StrCat("job ", job.id(), " (", job.name(), ") ", StateWord(job.state()));
  if (!job.message().empty()) absl::StrAppend(&out, ": ", job.message());
  absl::StrAppend(&out, job.message().empty() ? ": " : "; ", "step ", StepOf(job));
  if (job.steps_size() > 0) {
    absl::StrAppend(&out, ", loss ", FormatLoss(job.steps(job.steps_size() - 1).loss()));
  }
  for (int s = job.steps_size() - 1; s >= 0; --s) {
    if (!job.steps(s).has_validation_loss()) continue;
    absl::StrAppend(&out, ", validation loss ", FormatLoss(job.steps(s).validation_loss()));
    break;
  }
  if (!job.weights_sha256().empty()) absl::StrAppend(&out, ", weights ", job.weights_sha256());
  return Printable(out);
}

std::string RenderJobTable(const v1::ListJobsResponse& response, double now_unix_s, int width) {
  Table table(
      {{"ID"}, {"NAME"}, {"STATE"}, {"STEP", Align::kRight}, {"AGE", Align::kRight}, {"MESSAGE"}});
  for (const v1::Job& job : response.jobs()) {
    table.Add({job.id(), Printable(job.name()), StateWord(job.state()), StepOf(job),
               FormatSeconds(std::max(0.0, now_unix_s - job.submitted_unix_s())),
               Printable(job.message())});
  }
  return table.Render(width);
}

std::string RenderWorkerTable(const v1::ListWorkersResponse& response, int width) {
  Table table({{"NAME"},
               {"STATE"},
               {"JOB"},
               {"DEVICE"},
               {"THREADS", Align::kRight},
               {"MEMORY", Align::kRight},
               {"SPEED", Align::kRight},
               {"VERSION"},
               {"ADDRESS"}});
  for (const v1::WorkerInfo& worker : response.workers()) {
    std::string state = !worker.alive() ? "lost" : worker.job_id().empty() ? "free" : "busy";
    if (worker.cordoned()) absl::StrAppend(&state, ", cordoned");
    std::string device =
        Printable(worker.device_name().empty() ? worker.device() : worker.device_name());
    if (!worker.capability().empty()) {
      absl::StrAppend(&device, " (", Printable(worker.device()), " ",
                      Printable(worker.capability()), ", ", FormatBytes(worker.device_free_bytes()),
                      " free)");
    }
    table.Add({Printable(worker.name()), state, worker.job_id(), device,
               absl::StrCat(worker.threads()), FormatBytes(worker.memory_limit_bytes()),
               worker.has_sim() ? "declared"
                                : absl::StrFormat("%.0f GFLOP/s", worker.flops_per_second() / 1e9),
               worker.version(), worker.address()});
  }
  return table.Render(width);
}

std::string RenderEvent(const v1::JobEvent& event) {
  return absl::StrFormat("%s  %-12s %s", FormatUnixTime(event.unix_seconds()),
                         Printable(event.source()), Printable(event.text()));
}

}  // namespace headrace
