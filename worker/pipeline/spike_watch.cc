#include "worker/pipeline/spike_watch.h"

#include "absl/strings/str_format.h"

namespace headrace {

SpikeWatch::SpikeWatch(double factor, const std::vector<double>& losses) : factor_(factor) {
  for (const double loss : losses) Add(loss);
}

double SpikeWatch::Mean() const {
  double sum = 0;
  for (const double loss : losses_) sum += loss;
  return sum / static_cast<double>(losses_.size());
}

bool SpikeWatch::IsSpike(double loss) const {
  return factor_ > 0 && losses_.size() >= kLeast && loss > factor_ * Mean();
}

std::string SpikeWatch::Describe(int64_t step, double loss) const {
  return absl::StrFormat("the loss of step %d is %.6g, %.3g times the mean of the %d steps before",
                         step, loss, loss / Mean(), losses_.size());
}

void SpikeWatch::Add(double loss) {
  losses_.push_back(loss);
  if (losses_.size() > kWindow) losses_.pop_front();
}

}  // namespace headrace
