#include "plan/action.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace headrace {
namespace {

constexpr char kLetters[] = "FRB";

bool ParseNumber(std::string_view text, int* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && text[0] != '-';
}

bool ParseAction(std::string_view word, Action* action) {
  const size_t at = word.find_first_of(kLetters);
  if (at == std::string_view::npos) return false;
  action->kind = static_cast<ActionKind>(std::string_view(kLetters).find(word[at]));
  return ParseNumber(word.substr(0, at), &action->chunk) &&
         ParseNumber(word.substr(at + 1), &action->micro_batch);
}

}  // namespace

std::string ToText(const Action& action) {
  const char letter[] = {kLetters[static_cast<int>(action.kind)], 0};
  return absl::StrCat(action.chunk, letter, action.micro_batch);
}

std::string ToText(const std::vector<Action>& actions) {
  return absl::StrJoin(actions, " ", [](std::string* out, const Action& action) {
    absl::StrAppend(out, ToText(action));
  });
}

absl::StatusOr<std::vector<Action>> ParseActions(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n";
  std::vector<Action> actions;
  for (size_t at = text.find_first_not_of(kSpaces); at != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kSpaces, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    Action action;
    if (!ParseAction(word, &action)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "action ", actions.size() + 1, " (character ", at + 1, ") is \"",
          std::string(word.substr(0, 32)), "\"; expected <chunk>F<micro-batch>, R or B: \"0F3\""));
    }
    actions.push_back(action);
    at = text.find_first_not_of(kSpaces, end);
  }
  return actions;
}

}  // namespace headrace
