// NVIDIA's NCCL, found when it is first needed: nothing here is built or linked against it, and a
// worker starts where it is not. Its names and numbers, as nccl.h has had them since 2.14.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace headrace {

struct NcclCommunicator;  // ncclComm
struct NcclUniqueId {
  char internal[128];
};
// ncclConfig_t of 2.14, which later versions take too: `size` and `version` tell them.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;
inline constexpr int kNcclUint8 = 1;
inline constexpr int kOldestNccl = 21400;

struct NcclApi {
  int version = 0;  // 22809 is 2.28.9
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(NcclCommunicator* communicator) = nullptr;
  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclUniqueId* id) = nullptr;
  int (*init_rank_config)(NcclCommunicator** communicator, int ranks, NcclUniqueId id, int rank,
                          NcclConfig* config) = nullptr;
  int (*get_async_error)(NcclCommunicator* communicator, int* error) = nullptr;
  int (*abort)(NcclCommunicator* communicator) = nullptr;
  int (*send)(const void* data, size_t count, int type, int peer, NcclCommunicator* communicator,
              void* stream) = nullptr;
  int (*receive)(void* data, size_t count, int type, int peer, NcclCommunicator* communicator,
                 void* stream) = nullptr;
};

// The library $HEADRACE_NCCL names, else libnccl.so.2. It is opened once and stays open. Any
// thread.
//   NOT_FOUND            it is not there, or cannot be opened: what the loader says
//   FAILED_PRECONDITION  it is older than 2.14, or lacks a function
absl::StatusOr<const NcclApi*> LoadNccl();
// The same of a given file, opened anew.
absl::StatusOr<NcclApi> LoadNccl(const std::string& library);

// "2.28.9".
std::string NcclVersionText(int version);

}  // namespace headrace
