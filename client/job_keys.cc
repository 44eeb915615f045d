#include "client/job_keys.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace headrace {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;

// "ScheduleKind" → "schedule_kind_": the prefix protobuf's style puts before every value.
std::string ValuePrefix(const EnumDescriptor& type) {
  std::string prefix;
  for (char c : type.name()) {
    if (absl::ascii_isupper(c) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_tolower(c);
  }
  return prefix + "_";
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string EnumWord(const EnumValueDescriptor& value) {
  std::string word = absl::AsciiStrToLower(value.name());
  const std::string prefix = ValuePrefix(*value.type());
  return absl::StartsWith(word, prefix) ? word.substr(prefix.size()) : word;
}

std::vector<std::string> EnumWords(const EnumDescriptor& type) {
  std::vector<std::string> words;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) words.push_back(EnumWord(*type.value(i)));
  }
  return words;
}

const EnumValueDescriptor* FindEnumWord(const EnumDescriptor& type, absl::string_view word) {
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0 && EnumWord(*type.value(i)) == word) return type.value(i);
  }
  return nullptr;
}

std::vector<std::string> Keys(const Descriptor& section) {
  std::vector<std::string> keys;
  for (int i = 0; i < section.field_count(); ++i) keys.push_back(section.field(i)->name());
  return keys;
}

std::string Expectation(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_INT32:
      return field.full_name() == "headrace.v1.PipelineSpec.stages"
                 ? "auto or a whole number from 1"
                 : "a whole number";
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_UINT32:
      return "a whole number from 0";
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return "a number";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "text";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto words = EnumWords(*field.enum_type());
      return words.size() == 1 ? words[0] : absl::StrCat("one of ", absl::StrJoin(words, ", "));
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return absl::StrCat(
          field.is_repeated() ? "a list of sections with the keys " : "a section with the keys ",
          absl::StrJoin(Keys(*field.message_type()), ", "));
  }
  return "a value";
}

std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates) {
  const std::string lower = absl::AsciiStrToLower(word);
  std::string best;
  if (lower.empty()) return "";
  // Two slips, or a third of a long word; never a whole word.
  size_t best_distance = std::min(std::max<size_t>(2, lower.size() / 3), lower.size() - 1) + 1;
  for (const std::string& candidate : candidates) {
    size_t distance = EditDistance(lower, candidate);
    // "batch" for batch_size, "lr" for nothing: half a word that begins alike counts as near.
    if (lower.size() >= 3 && absl::StartsWith(candidate, lower)) distance = 1;
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace headrace
