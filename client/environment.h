// The process a command runs in; tests make their own.
#pragma once

#include <string>

#include "client/console.h"
#include "client/interrupt.h"

namespace headrace {

struct Environment {
  Console console;
  Interrupt* interrupt = nullptr;  // never null in use
  std::string binary_dir;          // where headrace-coordinator and headrace-worker are
};

}  // namespace headrace
