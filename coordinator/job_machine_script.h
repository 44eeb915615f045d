// Job machine scripts: text in, text out. A line that begins with "> " is an event; the lines below
// it are the commands it led to. Lines that begin with "#" are comments.
//
//   > worker w0                      joins (again: with a new instance)
//   > worker w0 serves j9            joins, and says that it still serves j9
//   > worker w0 measures zen 1       joins: it measures layers, on the device "zen", with 1 thread
//   > worker sim0                    joins: a name that begins with "sim" is a simulated worker's
//   > lost w0 no heartbeat for 2.1 s
//   > beat w0 [j1]                   a heartbeat, naming what it serves
//   > latebeat w0 [j1]               the last one again, or one that it has overtaken
//   > submit NAME K [hash|sim]       a job of K stages (0: auto) and 2 steps; a NAME that begins
//   with
//                                    "huge" fits no workers; of one that begins with "heavy"
//                                    layers 0, 1 and 5 are worth measuring
//   > generate N                     N tokens from a trained job
//   > abandon                        the caller of the last generate request has gone
//   > cancel j1
//   > ready w0 j1                    what a stage reports: ready,
//   > connected w0 j1                links open (told as shm to the next stage), a step (the last
//   > step w0 j1 1 [traced]          with its loss), the end of training, a failure, a token, a log
//   > finished w0 j1 [stop REASON]
//   > failed w0 j1 [blames w1] TEXT
//   > token w0 generate-1 65
//   > log w0 j1 TEXT
//   > again                          the last report once more: at least once is the rule
//   > answer assign|start|stop w0 j1 ok|busy|traced|unavailable|deadline|refused
//   > answer profile w0 j1 ok|partly|absurd|unavailable|cancelled
//   > hashed j1 ok|bad
//   > store fails
//   > wait 1.5                       seconds pass
//   > restore j1 QUEUED 0            (first) a job in the store: its state and last step
#pragma once

#include <map>
#include <string>
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
  // What was assigned, for reports to refer to.
  struct Assigned {
    std::string instance;
    int64_t generation = 0;
    int64_t stage = 0;
    int64_t stages = 0;
  };

  void Do(const std::vector<std::string>& words);
  Event Parse(const std::vector<std::string>& words);
  Event ParseReport(const std::vector<std::string>& words);
  void ParseProfile(const std::vector<std::string>& words, CallEnded* call);
  Event ParseCall(const std::vector<std::string>& words);
  Event ParseSubmit(const std::vector<std::string>& words);
  Event ParseGenerate(const std::vector<std::string>& words);
  void Restore(const std::vector<std::string>& words);
  std::string Text(const Command& command);
  std::string JobId(const std::string& short_id) const;
  std::string ShortId(const std::string& job_id);

  JobMachine machine_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  int64_t request_ = 0;
  int64_t generate_request_ = 0;  // the last
  uint64_t sequence_ = 0;
  Event last_report_ = TimePassed{};
  std::map<std::string, int> instances_;   // worker → how often it joined
  std::map<std::string, uint64_t> beats_;  // instance → its last heartbeat
  std::map<std::pair<std::string, std::string>, Assigned> assigned_;  // (worker, job)
  std::map<std::string, std::string> generates_;                      // "generate-1" → id
  Commands out_;
};

}  // namespace headrace
