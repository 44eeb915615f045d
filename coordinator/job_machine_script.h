// Job machine scripts: text in, text out. A line that begins with "> " is an event; the lines below
// it are the commands it led to. Lines that begin with "#" are comments.
//
//   > worker w0                      joins (again: with a new instance)
//   > worker w0 serves j9            joins, and says that it still serves j9
//   > worker w0 stands j1 [old]      joins, and says that it still runs its stage of j1 (old: of
//   the
//                                    generation before)
//   > worker w0 holds j1 4           joins, and says that it holds its slice of j1 after step 4
//   > worker w0 measures zen 1       joins: it measures layers, on the device "zen", with 1 thread
//   > worker sim0                    joins: a name that begins with "sim" is a simulated worker's
//   > back w0 …                      as "worker", but the instance that was there before
//   > lost w0 no heartbeat for 2.1 s
//   > beat w0 [j1] [leaves]          a heartbeat, naming what it serves
//   > latebeat w0 [j1]               the last one again, or one that it has overtaken
//   > submit NAME K OPTIONS          a job of K stages (0: auto) and 2 steps; a NAME that begins
//   with
//                                    "huge" fits no workers, one with "wide" not a single one; of
//                                    one that begins with "heavy" layers 0, 1 and 5 are worth
//                                    measuring. hash, sim: its options. steps N. recovers:
//                                    recovery.restart is on. rigid: elastic is off. every N: a
//                                    checkpoint each N steps. keep N: checkpoints. from j1[@4]:
//                                    from its checkpoint
//   > generate N                     N tokens from a trained job
//   > abandon                        the caller of the last generate request has gone
//   > cancel j1, checkpoint j1, pause j1, resume j1, cordon w0, uncordon w0, drain w0
//   > ready w0 j1                    what a stage reports: ready,
//   > connected w0 j1                links open (told as shm to the next stage), a step (the last
//   > step w0 j1 1 [traced]          with its loss), the end of training, a failure, a token, a log
//   > step w0 j1 1 loss 9 | takes 20 | skipped REASON
//   > finished w0 j1 [stop REASON]
//   > failed w0 j1 [blames w1] TEXT
//   > failed w0 j1 lacks j1/4/1 TEXT   the slice of j1, step 4, that begins with layer 1 is bad
//   > snapshot w0 j1 4 [at w1 | stored | failed WHY]     held by itself, by w1, in the store
//   > left w0 j1 4
//   > rollback w0 j1 4 REASON
//   > token w0 generate-1 65
//   > log w0 j1 TEXT
//   > old step w0 j1 3               any report, of the generation before
//   > again                          the last report once more: at least once is the rule
//   > answer assign|start|stop|control w0 j1 ok|busy|traced|unavailable|deadline|refused
//   > answer profile w0 j1 ok|partly|absurd|unavailable|cancelled
//   > hashed j1 ok|bad
//   > verified j1 4 ok|bad           the checkpoint of step 4
//   > store fails
//   > wait 1.5                       seconds pass
//   > restore j1 QUEUED 0            (first) a job in the store: its state and last step
//   > restore j1 RUNNING 7 OPTIONS   recovers; on w0,w1: its stages; checkpoint 4: it has one;
//   pausing
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/job_machine.h"

namespace headrace {

class MachineScript {
 public:
  MachineScript();

  // The script again, with the commands that each of its events led to.
  std::string Run(const std::string& script);

 private:
  using Words = std::vector<std::string>;
  // What was assigned, for reports to refer to.
  struct Assigned {
    std::string instance;
    int64_t generation = 0;
    int64_t stage = 0;
    int64_t stages = 0;
  };
  using Assignments = std::map<std::pair<std::string, std::string>, Assigned>;  // (worker, job)

  // job_machine_script.cc
  void Do(const Words& words);
  void Restore(const Words& words);
  // What the store would have, and what was assigned.
  void Remember(const Command& command);
  std::string JobId(const std::string& short_id) const;
  std::string ShortId(const std::string& job_id);

  // job_machine_script_events.cc
  Event Parse(const Words& words);
  Event ParseWorker(const Words& words);
  Event ParseRequest(const Words& words);
  Event ParseSubmit(const Words& words);
  Event ParseGenerate(const Words& words);
  Event ParseReport(const Words& words, const Assigned& assigned);
  void ParseStep(const Words& words, const Assigned& assigned, v1::StageStep* step);
  void ParseSnapshot(const Words& words, const Assigned& assigned, v1::StageSnapshot* snapshot);
  Event ParseCall(const Words& words);
  void ParseProfile(const Words& words, CallEnded* call);

  // job_machine_script_text.cc
  std::string Text(const Command& command);
  std::string OtherText(const Command& command);
  std::string JobText(const v1::Job& job);

  JobMachine machine_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  int64_t request_ = 0;
  int64_t generate_request_ = 0;  // the last
  uint64_t sequence_ = 0;
  Event last_report_ = TimePassed{};
  std::map<std::string, int> instances_;   // worker → how often it joined
  std::map<std::string, uint64_t> beats_;  // instance → its last heartbeat
  Assignments assigned_, assigned_before_;
  std::map<std::string, StoredJob> stored_;                                // by job
  std::map<std::pair<std::string, int64_t>, VerifyCheckpoint> to_verify_;  // by job and step
  std::map<std::string, std::string> recoveries_;  // job → what was last said of its recovery
  std::map<std::string, std::string> generates_;   // "generate-1" → id
  Commands out_;
};

// The hash of the slice of `job_id` after `step` that begins with `first_layer`.
std::string ScriptSliceHash(const std::string& job_id, int64_t step, int64_t first_layer);
v1::WeightsSlice ScriptSlice(const std::string& job_id, int64_t step, int64_t first_layer);
bool IsSimulatedName(const std::string& worker);
// A step's spans.
v1::StageTrace ScriptTrace(int64_t step);

}  // namespace headrace
