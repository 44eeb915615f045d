// Where the client keeps what outlives a command: the data of local clusters, their logs, prepared
// datasets.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace headrace {

class StateDir {
 public:
  // `given` (--state-dir) or $XDG_STATE_HOME/headrace or ~/.local/state/headrace; absolute. Creates
  // it.
  static absl::StatusOr<StateDir> Open(const std::string& given);
  explicit StateDir(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  std::string coordinator_data() const { return root_ + "/coordinator"; }
  std::string worker_data(const std::string& name) const { return root_ + "/workers/" + name; }
  std::string log(const std::string& name) const { return root_ + "/logs/" + name + ".log"; }
  std::string datasets() const { return root_ + "/datasets"; }
  std::string lock() const { return root_ + "/lock"; }             // held while `run` or `up` work
  std::string cluster() const { return root_ + "/cluster.json"; }  // the processes of an `up`
  std::string address() const { return root_ + "/coordinator.address"; }

 private:
  std::string root_;
};

}  // namespace headrace
