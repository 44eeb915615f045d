// docs/job-file.md and the proto say the same.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/job_file.h"
#include "client/job_keys.h"
#include "common/file.h"

namespace headrace {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

struct Row {
  std::string type, text;
};

std::string Page() {
  const auto page = ReadFile("docs/job-file.md");  // tests run in the repository's root
  EXPECT_TRUE(page.ok()) << page.status();
  return page.ok() ? *page : "";
}

// Each table row of the page under the heading's key path: "training.optimizer" → {"kind": …}.
// "gpt2" and "llama" are parts of model; keys of the top level have the path "".
std::map<std::string, std::map<std::string, Row>> DocumentedKeys() {
  std::map<std::string, std::map<std::string, Row>> sections;
  std::string section;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(Page(), '\n'))) {
    if (absl::StartsWith(line, "##")) {
      const std::vector<std::string> quoted = absl::StrSplit(line, '`');
      section = quoted.size() >= 2 ? quoted[1] : "";
      if (absl::EndsWith(line, " gpt2") || absl::EndsWith(line, " llama")) section = "model";
    }
    if (!absl::StartsWith(line, "| `")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    EXPECT_GE(cells.size(), 3u) << line;
    const std::vector<std::string> quoted = absl::StrSplit(cells[0], '`');
    EXPECT_TRUE(sections[section].emplace(quoted[1], Row{cells[1], line}).second)
        << section << "." << quoted[1] << " stands twice";
  }
  return sections;
}

const char* TypeInDoc(const FieldDescriptor& field) {
  if (field.is_repeated()) return "list of sections";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
      return field.name() == "stages" ? "whole number or `auto`" : "whole number";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "number";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "text";
    case FieldDescriptor::CPPTYPE_ENUM:
      return "word";
    default:
      return "section";
  }
}

void Check(const Descriptor& type, const std::string& path,
           const std::map<std::string, std::map<std::string, Row>>& documented,
           std::set<std::string>* sections) {
  sections->insert(path);
  const auto section = documented.find(path);
  ASSERT_NE(section, documented.end()) << "no table for section '" << path << "'";
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string key = absl::StrCat(path, path.empty() ? "" : ".", field.name());
    const auto row = section->second.find(field.name());
    if (row == section->second.end()) {
      ADD_FAILURE() << key << " is not in docs/job-file.md";
      continue;
    }
    EXPECT_EQ(row->second.type, TypeInDoc(field)) << key;
    if (field.enum_type() != nullptr) {
      for (const std::string& word : EnumWords(*field.enum_type())) {
        EXPECT_THAT(row->second.text, ::testing::HasSubstr(absl::StrCat("`", word, "`"))) << key;
      }
    }
    if (field.message_type() != nullptr) {
      Check(*field.message_type(), field.is_repeated() ? key + "[]" : key, documented, sections);
    }
  }
  for (const auto& [key, row] : section->second) {
    EXPECT_NE(type.FindFieldByName(key), nullptr) << path << "." << key << " is no key";
  }
}

TEST(JobFileDoc, NamesEveryKeyTypeAndWordOfTheProtoAndNoOther) {
  const auto documented = DocumentedKeys();
  std::set<std::string> sections;
  Check(*v1::JobSpec::descriptor(), "", documented, &sections);
  for (const auto& [section, rows] : documented) {
    EXPECT_EQ(sections.count(section), 1u) << "'" << section << "' is no section";
  }
}

TEST(JobFileDoc, ShowsAnExampleThatParses) {
  const std::vector<std::string> parts = absl::StrSplit(Page(), "```");
  ASSERT_GE(parts.size(), 2u);
  ASSERT_TRUE(absl::StartsWith(parts[1], "yaml\n"));
  const std::string yaml = parts[1].substr(5);
  const auto shown = ParseJobFile(yaml, "docs/job-file.md");
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_EQ(shown->spec.name(), "tiny-gpt2");
}

}  // namespace
}  // namespace headrace
