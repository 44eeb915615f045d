#include "client/picture/chrome_trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/job_keys.h"
#include "client/picture/plan_gantt.h"
#include "client/render/json.h"

namespace headrace {
namespace {

constexpr int kComputeThread = 1;
constexpr int kReceiveThreads = 1'000'000, kSendThreads = 2'000'000;  // + the other stage

int ThreadOf(const Span& span) {
  switch (LaneOf(span)) {
    case Lane::kCompute:
      return kComputeThread;
    case Lane::kReceive:
      return kReceiveThreads + span.peer;
    case Lane::kSend:
      return kSendThreads + span.peer;
  }
  return kComputeThread;
}

std::string ThreadName(int thread) {
  if (thread == kComputeThread) return "compute";
  if (thread >= kSendThreads) return absl::StrCat("send to stage ", thread - kSendThreads);
  return absl::StrCat("receive from stage ", thread - kReceiveThreads);
}

// MESSAGE_KIND_EVAL_ACTIVATION → "eval activation"
std::string Noun(v1::MessageKind kind) {
  const auto* value = v1::MessageKind_descriptor()->FindValueByNumber(kind);
  if (value == nullptr) return absl::StrCat("message ", static_cast<int>(kind));
  return absl::StrReplaceAll(EnumWord(*value), {{"_", " "}});
}

std::string Tensor(const Span& span) {
  if (span.micro_batch < 0) return Noun(span.message);
  return absl::StrCat(Noun(span.message), " ", span.micro_batch);
}

std::string Text(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

class Writer {
 public:
  Writer(const v1::Job& job, const JobSpans& spans) : job_(job), spans_(spans) {}

  std::string Write() {
    absl::StrAppend(&out_, "{\"displayTimeUnit\":\"ms\",\"otherData\":", About(),
                    ",\n\"traceEvents\":[");
    for (size_t k = 0; k < spans_.stages.size(); ++k) {
      NameProcess(static_cast<int>(k));
      for (const Span& span : spans_.stages[k].spans) WriteSpan(static_cast<int>(k), span);
    }
    WriteArrows();
    absl::StrAppend(&out_, "\n]}\n");
    return std::move(out_);
  }

 private:
  // Sender, receiver, message, step, micro-batch.
  using Tensor = std::tuple<int, int, int, int64_t, int>;

  std::string About() const {
    Json about = {{"job", job_.id()},
                  {"name", job_.name()},
                  {"first_step", spans_.first_step},
                  {"last_step", spans_.last_step},
                  {"schedule", ScheduleWords(job_.plan())},
                  {"clock", "the coordinator's"},
                  {"stages", Json::array()}};
    for (size_t k = 0; k < spans_.stages.size(); ++k) {
      const StageSpans& stage = spans_.stages[k];
      Json entry = {{"stage", k}, {"worker", WorkerOf(k)}, {"dropped_spans", stage.dropped}};
      entry["clock_error_us"] =
          stage.clock_known ? Json(static_cast<double>(stage.clock_error_ns) * 1e-3) : Json();
      about["stages"].push_back(std::move(entry));
    }
    return about.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  std::string WorkerOf(size_t stage) const {
    if (stage >= static_cast<size_t>(job_.plan().stage_size())) return "";
    return job_.plan().stage(static_cast<int>(stage)).worker();
  }

  std::string Micros(int64_t ns) const { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }
  std::string Since(int64_t ns) const { return Micros(ns - spans_.begin_ns); }

  template <typename... Parts>
  void Event(const Parts&... parts) {
    absl::StrAppend(&out_, first_ ? "\n" : ",\n", parts...);
    first_ = false;
  }

  void NameProcess(int stage) {
    const std::string pid = absl::StrCat(",\"pid\":", stage);
    Event(R"({"ph":"M","name":"process_name")", pid, R"(,"args":{"name":)",
          Text(absl::StrCat("stage ", stage, " (", WorkerOf(static_cast<size_t>(stage)), ")")),
          "}}");
    Event(R"({"ph":"M","name":"process_sort_index")", pid, R"(,"args":{"sort_index":)", stage,
          "}}");
    std::set<int> threads;
    for (const Span& span : spans_.stages[static_cast<size_t>(stage)].spans) {
      threads.insert(ThreadOf(span));
    }
    for (const int thread : threads) {
      Event(R"({"ph":"M","name":"thread_name")", pid, ",\"tid\":", thread, R"(,"args":{"name":)",
            Text(ThreadName(thread)), "}}");
      Event(R"({"ph":"M","name":"thread_sort_index")", pid, ",\"tid\":", thread,
            R"(,"args":{"sort_index":)", thread, "}}");
    }
  }

  void WriteSpan(int stage, const Span& span) {
    const int thread = ThreadOf(span);
    std::string args = absl::StrCat("\"step\":", span.step);
    if (span.micro_batch >= 0) absl::StrAppend(&args, ",\"micro_batch\":", span.micro_batch);
    if (span.bytes > 0) absl::StrAppend(&args, ",\"bytes\":", span.bytes);
    Event(R"({"ph":"X","name":)", Text(NameOf(span)), ",\"pid\":", stage, ",\"tid\":", thread,
          ",\"ts\":", Since(span.begin_ns), ",\"dur\":", Micros(span.end_ns - span.begin_ns),
          ",\"args\":{", args, "}}");
    if (span.kind == v1::SPAN_KIND_SEND) {
      sends_[{stage, span.peer, span.message, span.step, span.micro_batch}] = &span;
    } else if (span.kind == v1::SPAN_KIND_RECEIVE) {
      receives_[{span.peer, stage, span.message, span.step, span.micro_batch}] = &span;
    }
  }

  void WriteArrows() {
    int64_t id = 0;
    for (const auto& [tensor, receive] : receives_) {
      const auto send = sends_.find(tensor);
      if (send == sends_.end()) continue;
      // Inside the slice it ends at, not at its edge; and not back in time if clocks are off.
      const int64_t middle_ns = receive->begin_ns + (receive->end_ns - receive->begin_ns) / 2;
      const int64_t sent_ns = send->second->begin_ns;
      Arrow("s", ++id, std::get<0>(tensor), *send->second, sent_ns);
      Arrow("f", id, std::get<1>(tensor), *receive,
            std::min(receive->end_ns, std::max(middle_ns, sent_ns)));
    }
  }

  void Arrow(const char* phase, int64_t id, int stage, const Span& span, int64_t at_ns) {
    Event(R"({"ph":")", phase, R"(","bp":"e","cat":"tensor","name":)", Text(Noun(span.message)),
          ",\"id\":", id, ",\"pid\":", stage, ",\"tid\":", ThreadOf(span), ",\"ts\":", Since(at_ns),
          "}");
  }

  const v1::Job& job_;
  const JobSpans& spans_;
  std::map<Tensor, const Span*> sends_, receives_;
  bool first_ = true;
  std::string out_;
};

}  // namespace

std::string NameOf(const Span& span) {
  switch (span.kind) {
    case v1::SPAN_KIND_FORWARD:
      return absl::StrCat("F", span.micro_batch);
    case v1::SPAN_KIND_RECOMPUTE:
      return absl::StrCat("R", span.micro_batch);
    case v1::SPAN_KIND_BACKWARD:
      return absl::StrCat("B", span.micro_batch);
    case v1::SPAN_KIND_EVALUATE:
      return absl::StrCat("evaluate ", span.micro_batch);
    case v1::SPAN_KIND_WAIT_RECEIVE:
      return absl::StrCat("wait for ", Tensor(span), " from stage ", span.peer);
    case v1::SPAN_KIND_WAIT_SEND:
      if (span.peer < 0) return absl::StrCat("wait for memory for ", Tensor(span));
      return absl::StrCat("wait for a credit for ", Tensor(span), " to stage ", span.peer);
    case v1::SPAN_KIND_RECEIVE:
    case v1::SPAN_KIND_SEND:
      return Tensor(span);
    default: {
      const auto* value = v1::SpanKind_descriptor()->FindValueByNumber(span.kind);
      if (value == nullptr) return absl::StrCat("span ", static_cast<int>(span.kind));
      return absl::StrReplaceAll(EnumWord(*value), {{"_", " "}});
    }
  }
}

std::string ChromeTrace(const v1::Job& job, const JobSpans& spans) {
  return Writer(job, spans).Write();
}

}  // namespace headrace
