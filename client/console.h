// Where output goes: data on `out`, everything else on `err`. Programs read the first, people both.
#pragma once

#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace headrace {

enum class Format { kText, kJson, kYaml };

struct Console {
  std::ostream* out = nullptr;  // never null in use; outlives the console
  std::ostream* err = nullptr;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  bool color = false;  // of what goes to `err`, and to `out` if that is a terminal
  int width = 80;      // columns of the terminal `err` is
  // What tables on `out` may take; what is piped or kept is never cut.
  int TableWidth() const { return out_is_terminal ? width : kUnlimited; }

  static constexpr int kUnlimited = 1 << 20;

  // stdout and stderr. Colour only on a terminal, and never with NO_COLOR or TERM=dumb.
  static Console OfProcess();

  // One line on `err`.
  void Say(const std::string& line) const;

  // `text` in bold / dim / red where colour is on.
  std::string Bold(const std::string& text) const { return Paint("1", text); }
  std::string Dim(const std::string& text) const { return Paint("2", text); }
  std::string Red(const std::string& text) const { return Paint("31", text); }

 private:
  std::string Paint(const char* code, const std::string& text) const;
};

// `text` without what could steer a terminal: control bytes but newline and tab become "\xNN".
std::string Printable(absl::string_view text);

}  // namespace headrace
