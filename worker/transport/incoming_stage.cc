#include "worker/transport/incoming_stage.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headrace {

absl::Status IncomingStage::Join(int64_t from_stage, IncomingStream* stream) {
  if (from_stage < 0 || from_stage == context_.stage ||
      from_stage > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("hello from stage ", from_stage, " to stage ",
                                                   context_.stage, ", expected another stage"));
  }
  absl::MutexLock lock(&mu_);
  if (left_) {
    return absl::FailedPreconditionError(absl::StrCat("stage ", context_.stage, " has ended"));
  }
  if (!seen_.insert(from_stage).second) {
    return absl::AlreadyExistsError(absl::StrCat("stage ", context_.stage, " of job ",
                                                 context_.job_id, " has its stream from stage ",
                                                 from_stage, " already"));
  }
  seated_[from_stage] = stream;
  return absl::OkStatus();
}

void IncomingStage::Part(int64_t from_stage) {
  absl::MutexLock lock(&mu_);
  seated_.erase(from_stage);
}

void IncomingStage::Leave() {
  absl::MutexLock lock(&mu_);
  left_ = true;
  for (const auto& [from_stage, stream] : seated_) stream->Cancel();
  const auto empty = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return seated_.empty(); };
  mu_.Await(absl::Condition(&empty));
}

void IncomingStage::Taken(const Tag& tag) {
  const CreditClass credit_class = CreditClassOf(tag.kind);
  if (credit_class == CreditClass::kNone) return;
  absl::MutexLock lock(&mu_);
  const auto seat = seated_.find(tag.from_stage);
  if (seat != seated_.end()) seat->second->ReturnCredit(credit_class);
}

void StageDirectory::Enter(const LinkContext& context, Inbox* inbox, SharedInputs shared) {
  auto stage = std::make_shared<IncomingStage>(context, inbox, std::move(shared));
  inbox->OnTaken([stage](const Tag& tag) { stage->Taken(tag); });
  absl::MutexLock lock(&mu_);
  stages_.push_back(std::move(stage));
}

void StageDirectory::Leave(const std::string& job_id, int64_t generation) {
  absl::StatusOr<std::shared_ptr<IncomingStage>> stage = Find(job_id, generation);
  if (!stage.ok()) return;
  {
    absl::MutexLock lock(&mu_);
    std::erase(stages_, *stage);
  }
  (*stage)->Leave();
  (*stage)->inbox()->OnTaken(nullptr);
}

absl::StatusOr<std::shared_ptr<IncomingStage>> StageDirectory::Find(const std::string& job_id,
                                                                    int64_t generation) const {
  absl::MutexLock lock(&mu_);
  std::string here;
  for (const std::shared_ptr<IncomingStage>& stage : stages_) {
    const LinkContext& context = stage->context();
    if (context.job_id == job_id && context.generation == generation) return stage;
    absl::StrAppend(&here, here.empty() ? "" : ", ", "job ", context.job_id, " generation ",
                    context.generation);
  }
  return absl::FailedPreconditionError(absl::StrCat("hello for job ", job_id, " generation ",
                                                    generation, ", but here is ",
                                                    here.empty() ? "no job" : here));
}

}  // namespace headrace
