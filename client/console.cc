#include "client/console.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace headrace {
namespace {

int TerminalWidth() {
  winsize size{};
  for (int fd : {STDERR_FILENO, STDOUT_FILENO}) {
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  }
  return 80;
}

bool WantsColor() {
  const char* no_color = getenv("NO_COLOR");
  const char* term = getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') &&
         (term == nullptr || absl::string_view(term) != "dumb");
}

}  // namespace

Console Console::OfProcess() {
  Console console;
  console.out = &std::cout;
  console.err = &std::cerr;
  console.out_is_terminal = isatty(STDOUT_FILENO) != 0;
  console.err_is_terminal = isatty(STDERR_FILENO) != 0;
  console.color = console.err_is_terminal && WantsColor();
  console.width = TerminalWidth();
  return console;
}

void Console::Say(const std::string& line) const { *err << line << "\n" << std::flush; }

std::string Console::Paint(const char* code, const std::string& text) const {
  return color ? absl::StrCat("\x1b[", code, "m", text, "\x1b[0m") : text;
}

std::string Printable(absl::string_view text) {
  std::string safe;
  for (char c : text) {
    if (absl::ascii_iscntrl(c) && c != '\n' && c != '\t') {
      absl::StrAppendFormat(&safe, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace headrace
