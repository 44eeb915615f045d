#include "client/completion.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace headrace {
namespace {

struct Option {
  std::vector<std::string> names;  // "-o", "--output"
  std::string description;
  std::string type;  // "FORMAT"; empty for a flag
};

struct Command {
  std::string name, description;
  std::vector<Option> options;
  std::vector<std::string> positional_types;  // "FILE", "JOB", "SHELL", "COMMAND"
};

// CLI11 calls a value "FORMAT:{text,json,yaml}": its type, and what its checks allow.
std::vector<std::string> Words(const std::string& type) {
  const size_t open = type.find(":{"), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return absl::StrSplit(type.substr(open + 2, close - open - 2), ',');
}
bool IsA(const std::string& type, const std::string& name) {
  return type == name || type.rfind(name + ":", 0) == 0;
}
std::string ShortType(const std::string& type) { return type.substr(0, type.find(':')); }
bool IsPath(const std::string& type) { return IsA(type, "FILE") || IsA(type, "DIR"); }

Command Describe(const CLI::App& app) {
  Command command{app.get_name(), app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_items_expected_max() == 0 ? "" : option->get_type_name();
    if (option->get_positional()) {
      command.positional_types.push_back(type);
      continue;
    }
    Option described{{}, option->get_description(), type};
    for (const std::string& name : option->get_snames()) described.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) described.names.push_back("--" + name);
    command.options.push_back(std::move(described));
  }
  return command;
}

std::vector<Command> Commands(const CLI::App& app) {
  std::vector<Command> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(Describe(*command));
  }
  return commands;
}

std::vector<std::string> Names(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  return names;
}

std::vector<std::string> OptionNames(const Command& command) {
  std::vector<std::string> names;
  for (const Option& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

// Within single quotes of any of the three shells.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// bash: what completes the value of `type`.
std::string BashValue(const std::string& type, const std::vector<std::string>& commands) {
  if (IsA(type, "FILE")) return "COMPREPLY=($(compgen -f -- \"$cur\"))";
  if (IsA(type, "DIR")) return "COMPREPLY=($(compgen -d -- \"$cur\"))";
  const auto words = IsA(type, "COMMAND") ? commands : Words(type);
  return absl::StrCat("COMPREPLY=($(compgen -W ", Quoted(absl::StrJoin(words, " ")),
                      " -- \"$cur\"))");
}

// zsh: the action after the last colon of an _arguments spec.
std::string ZshAction(const std::string& type, const std::vector<std::string>& commands) {
  if (IsA(type, "DIR")) return "_files -/";
  if (IsPath(type)) return "_files";
  const auto words = IsA(type, "COMMAND") ? commands : Words(type);
  return words.empty() ? " " : absl::StrCat("(", absl::StrJoin(words, " "), ")");
}

// zsh: a description within [ ] of an _arguments spec.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"[", "("}, {"]", ")"}, {":", "\\:"}});
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  const std::vector<Command> commands = Commands(app);
  const std::vector<std::string> names = Names(commands);
  std::string cases, values;
  for (const Command& command : commands) {
    const std::string type =
        command.positional_types.empty() ? "" : command.positional_types.front();
    absl::StrAppend(&cases, "    ", command.name, ")\n      if [[ $cur == -* ]]; then\n",
                    "        COMPREPLY=($(compgen -W ",
                    Quoted(absl::StrJoin(OptionNames(command), " ")), " -- \"$cur\"))\n",
                    "      else\n        ", BashValue(type, names), "\n      fi ;;\n");
    for (const Option& option : command.options) {
      if (option.type.empty()) continue;
      absl::StrAppend(&values, "    ", command.name, ":",
                      absl::StrJoin(option.names, absl::StrCat("|", command.name, ":")), ") ",
                      BashValue(option.type, names), "; return ;;\n");
    }
  }
  const Command root = Describe(app);
  return absl::StrCat(
      "# bash completion of headrace\n_headrace() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word\n"
      "  COMPREPLY=()\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case $word in ",
      absl::StrJoin(names, "|"), ") command=$word; break ;; esac\n  done\n",
      "  case $command:$prev in\n", values, "  esac\n  case $command in\n", cases,
      "    *) COMPREPLY=($(compgen -W ",
      Quoted(absl::StrCat(absl::StrJoin(names, " "), " ", absl::StrJoin(OptionNames(root), " "))),
      " -- \"$cur\")) ;;\n  esac\n}\ncomplete -o filenames -F _headrace headrace\n");
}

std::string ZshCompletion(const CLI::App& app) {
  const std::vector<Command> commands = Commands(app);
  const std::vector<std::string> names = Names(commands);
  std::string list, cases;
  for (const Command& command : commands) {
    absl::StrAppend(&list, "    ", Quoted(absl::StrCat(command.name, ":", command.description)),
                    "\n");
    absl::StrAppend(&cases, "    ", command.name, ") _arguments");
    for (const Option& option : command.options) {
      for (const std::string& name : option.names) {
        std::string spec = absl::StrCat(name, "[", ZshText(option.description), "]");
        if (!option.type.empty()) {
          absl::StrAppend(&spec, ":", ShortType(option.type), ":", ZshAction(option.type, names));
        }
        absl::StrAppend(&cases, " \\\n        ", Quoted(spec));
      }
    }
    for (const std::string& type : command.positional_types) {
      absl::StrAppend(&cases, " \\\n        ",
                      Quoted(absl::StrCat(":", ShortType(type), ":", ZshAction(type, names))));
    }
    absl::StrAppend(&cases, " ;;\n");
  }
  return absl::StrCat("#compdef headrace\n# zsh completion of headrace\n_headrace() {\n",
                      "  local -a commands=(\n", list, "  )\n",
                      "  if (( CURRENT == 2 )); then\n    _describe command commands\n"
                      "    return\n  fi\n  local command=$words[2]\n"
                      "  shift words\n  (( CURRENT-- ))\n  case $command in\n",
                      cases, "  esac\n}\ncompdef _headrace headrace\n");
}

std::string FishCompletion(const CLI::App& app) {
  const std::vector<Command> commands = Commands(app);
  const std::vector<std::string> names = Names(commands);
  std::string out = "# fish completion of headrace\ncomplete -c headrace -f\n";
  for (const Command& command : commands) {
    absl::StrAppend(&out, "complete -c headrace -n __fish_use_subcommand -a ", command.name, " -d ",
                    Quoted(command.description), "\n");
    const std::string when =
        absl::StrCat("complete -c headrace -n '__fish_seen_subcommand_from ", command.name, "'");
    for (const Option& option : command.options) {
      std::string line = when;
      for (const std::string& name : option.names) {
        absl::StrAppend(&line, name[1] == '-' ? absl::StrCat(" -l ", name.substr(2))
                                              : absl::StrCat(" -s ", name.substr(1)));
      }
      if (!option.type.empty()) absl::StrAppend(&line, IsPath(option.type) ? " -r -F" : " -x");
      if (const auto words = Words(option.type); !words.empty()) {
        absl::StrAppend(&line, " -a ", Quoted(absl::StrJoin(words, " ")));
      }
      absl::StrAppend(&out, line, " -d ", Quoted(option.description), "\n");
    }
    for (const std::string& type : command.positional_types) {
      const auto words = IsA(type, "COMMAND") ? names : Words(type);
      if (IsA(type, "FILE")) absl::StrAppend(&out, when, " -F\n");
      if (!words.empty()) {
        absl::StrAppend(&out, when, " -a ", Quoted(absl::StrJoin(words, " ")), "\n");
      }
    }
  }
  return out;
}

}  // namespace headrace
