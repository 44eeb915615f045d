// What the links of a stage ask of the device it computes on: copies on queues of their own, and
// memory that other processes may write to. cuda/link_device.cc implements it, in a library opened
// at run time: only plain virtual functions and bytes cross.
//
//   compute's queue ──Mark──┐
//   a link's queue          └─After─▶ copy, copy ──ticket──▶ Look
//
// Nothing here waits: a link looks whether a ticket's work is done, with a deadline of its own
// (transport/device_copies.h), because the calls of CUDA that wait have none.
#pragma once

#include <cstdint>

namespace headrace {

// Says what failed: the call and the device's text.
struct DeviceFailure {
  char text[320] = "";
};

// One link's queue of copies, in order. Used by one thread at a time.
class CopyStream {
 public:
  // A piece of the device's memory, and one of pinned memory, for a link to try itself with.
  static constexpr int64_t kTrialBytes = 4096;

  // What is under way goes on; its memory must outlive it. LinkDevice::Idle tells when it is done.
  virtual ~CopyStream() = default;

  // What is queued from here on starts once the device has done what it was told before `mark`
  // (LinkDevice::Mark) was made. False: see `failure`.
  virtual bool After(int64_t mark, DeviceFailure* failure) = 0;
  // Queues a copy between any two of: memory of this device, pinned memory, imported memory. Other
  // host memory works too, but makes the call wait, without a deadline. Returns its ticket,
  // ascending from 0; −1: see `failure`.
  virtual int64_t Copy(void* to, const void* from, int64_t bytes, DeviceFailure* failure) = 0;
  // A ticket for what was put into the queue by other means (Handle). −1: see `failure`.
  virtual int64_t Ticket(DeviceFailure* failure) = 0;
  // Whether everything up to `ticket` is done: 1 yes, 0 not yet, −1 see `failure`.
  virtual int Look(int64_t ticket, DeviceFailure* failure) = 0;

  // The queue as libraries of the device know it (cudaStream_t), for which the device becomes the
  // calling thread's. Null: see `failure`.
  virtual void* Handle(DeviceFailure* failure) = 0;
  virtual char* trial() = 0;       // kTrialBytes
  virtual char* trial_host() = 0;  // as many
};

// Thread-safe, and must outlive its streams and what it has imported.
class LinkDevice {
 public:
  // What another process needs to find this device's memory.
  static constexpr int64_t kHandleBytes = 64;

  virtual ~LinkDevice() = default;

  // Names the device alike in every process of every host: "GPU-8f3c…".
  virtual const char* uuid() const = 0;
  // The arena's.
  virtual char* memory() = 0;
  virtual int64_t memory_bytes() const = 0;

  // Stands for what compute has told the device until now. −1: see `failure`.
  virtual int64_t Mark(DeviceFailure* failure) = 0;
  // As CopyStream::Look, of a mark.
  virtual int LookAtMark(int64_t mark, DeviceFailure* failure) = 0;

  // The caller owns the stream. Null: see `failure`.
  virtual CopyStream* OpenStream(DeviceFailure* failure) = 0;

  // Lets other processes of this host reach memory(). False: see `failure`.
  virtual bool Export(char (&handle)[kHandleBytes], DeviceFailure* failure) = 0;
  // Another process's memory(), for this device's copies to reach; `handle` is what that process
  // says, and *bytes is how much was opened, as the driver knows it. To be given back before its
  // owner frees it. Null: see `failure`.
  virtual char* Import(const char (&handle)[kHandleBytes], int64_t* bytes,
                       DeviceFailure* failure) = 0;
  virtual void Unimport(char* memory) = 0;

  // Whether streams that are gone have left nothing under way.
  virtual bool Idle() = 0;
};

}  // namespace headrace
