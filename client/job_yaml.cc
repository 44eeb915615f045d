#include "client/job_yaml.h"

#include <google/protobuf/util/json_util.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/job_keys.h"
#include "common/status.h"

namespace headrace {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using Json = nlohmann::ordered_json;

constexpr char kStages[] = "headrace.v1.PipelineSpec.stages";

// The path of the section that has `key`, to point at it when it stands in the wrong one.
std::string FindElsewhere(const Descriptor& section, const std::string& prefix,
                          absl::string_view key) {
  for (int i = 0; i < section.field_count(); ++i) {
    const FieldDescriptor& field = *section.field(i);
    const std::string path = absl::StrCat(prefix, field.name());
    if (field.name() == key) return path;
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field.is_repeated()) continue;
    if (auto found = FindElsewhere(*field.message_type(), path + ".", key); !found.empty()) {
      return found;
    }
  }
  return "";
}

// True for -12, +3, 0.5, .5, 3e-4: what YAML reads as a number, infinities and NaN included.
bool LooksLikeNumber(const std::string& text) {
  if (text.empty()) return false;
  const std::string lower = absl::AsciiStrToLower(text);
  const absl::string_view digits = absl::StartsWith(lower, "-") || absl::StartsWith(lower, "+")
                                       ? absl::string_view(lower).substr(1)
                                       : absl::string_view(lower);
  if (digits == ".inf" || digits == ".nan" || digits == "nan" || digits == "inf") return true;
  if (digits.empty() || !(absl::ascii_isdigit(digits[0]) || digits[0] == '.')) return false;
  double value;
  return !absl::StartsWith(digits, "0x") && absl::SimpleAtod(text, &value);
}

// "!" is a quoted scalar; a tag such as !!str says what it is to be read as.
bool MayBeNumber(const YAML::Node& node) {
  const std::string& tag = node.Tag();
  const bool plain = tag.empty() || tag == "?";
  return (plain || tag == "tag:yaml.org,2002:int" || tag == "tag:yaml.org,2002:float") &&
         LooksLikeNumber(node.Scalar());
}
bool IsPlainScalar(const YAML::Node& node) { return node.Tag().empty() || node.Tag() == "?"; }

// 010, -007: eight to some readers of YAML, ten to others.
bool HasLeadingZero(const std::string& text) {
  const size_t first = text[0] == '-' || text[0] == '+' ? 1 : 0;
  return text.size() > first + 1 && text[first] == '0' && absl::ascii_isdigit(text[first + 1]);
}

// How to name what stands there: "a list", "the number 1.5", "the text 'abc'".
std::string Describe(const YAML::Node& node) {
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a section";
  const std::string& text = node.Scalar();
  const std::string shown = text.size() <= 60 ? text : text.substr(0, 57) + "...";
  if (MayBeNumber(node)) return absl::StrCat("the number ", shown);
  return absl::StrCat("the text '", shown, "'");
}

// Walks one document along the descriptor. Used by one thread, once.
class Walker {
 public:
  Walker(std::string file, std::map<std::string, int>* lines)
      : file_(std::move(file)), lines_(lines) {}

  absl::StatusOr<Json> Section(const YAML::Node& node, const Descriptor& type,
                               const std::string& path);
  absl::Status Error(int line, const std::string& path, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_, ":", line, ": ", path, path.empty() ? "" : ": ", what));
  }

 private:
  absl::StatusOr<Json> Value(const YAML::Node& node, const FieldDescriptor& field,
                             const std::string& path, int line);
  absl::StatusOr<Json> List(const YAML::Node& node, const FieldDescriptor& field,
                            const std::string& path, int line);
  absl::StatusOr<Json> Scalar(const YAML::Node& node, const FieldDescriptor& field,
                              const std::string& path, int line);
  absl::StatusOr<Json> WholeNumber(const YAML::Node& node, const FieldDescriptor& field,
                                   const std::string& path, int line);
  absl::StatusOr<Json> Number(const YAML::Node& node, const FieldDescriptor& field,
                              const std::string& path, int line);
  absl::StatusOr<Json> Text(const YAML::Node& node, const FieldDescriptor& field,
                            const std::string& path, int line);
  absl::StatusOr<Json> Word(const YAML::Node& node, const FieldDescriptor& field,
                            const std::string& path, int line);
  absl::Status UnknownKey(const std::string& key, const Descriptor& type, const std::string& path,
                          int line) const;
  absl::Status WrongType(const YAML::Node& node, const FieldDescriptor& field,
                         const std::string& path, int line) const {
    return Error(line, path,
                 absl::StrCat("is ", Describe(node), "; expected ", Expectation(field)));
  }

  absl::Status LeadingZero(const YAML::Node& node, const std::string& path, int line) const {
    return Error(line, path,
                 absl::StrCat("is ", node.Scalar(),
                              ", octal to some readers of YAML and decimal to others; expected it "
                              "without the leading 0"));
  }

  const std::string file_;
  std::map<std::string, int>* const lines_;
};

int LineOf(const YAML::Node& node, int otherwise) {
  const int line = node.Mark().line;
  return line < 0 ? otherwise : line + 1;
}

absl::Status Walker::UnknownKey(const std::string& key, const Descriptor& type,
                                const std::string& path, int line) const {
  const std::vector<std::string> keys = Keys(type);
  std::string hint = Nearest(key, keys);
  if (hint.empty()) hint = FindElsewhere(*v1::JobSpec::descriptor(), "", key);
  return Error(
      line, path,
      absl::StrCat("unknown key", hint.empty() ? "" : ", did you mean ", hint,
                   hint.empty() ? "" : "?", "; expected one of ", absl::StrJoin(keys, ", ")));
}

absl::StatusOr<Json> Walker::Section(const YAML::Node& node, const Descriptor& type,
                                     const std::string& path) {
  Json json = Json::object();
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const int line = LineOf(entry.first, 1);
    if (!entry.first.IsScalar()) {
      return Error(
          line, path,
          absl::StrCat("a key is not a word; expected one of ", absl::StrJoin(Keys(type), ", ")));
    }
    const std::string key = entry.first.Scalar();
    const std::string key_path = path.empty() ? key : absl::StrCat(path, ".", key);
    const FieldDescriptor* field = type.FindFieldByName(key);
    if (field == nullptr) return UnknownKey(key, type, key_path, line);
    if (!seen.insert(key).second) {
      return Error(
          line, key_path,
          absl::StrCat("given twice, first in line ", lines_->at(key_path), "; expected it once"));
    }
    lines_->emplace(key_path, line);
    HEADRACE_ASSIGN_OR_RETURN(json[key], Value(entry.second, *field, key_path, line));
  }
  return json;
}

absl::StatusOr<Json> Walker::Value(const YAML::Node& node, const FieldDescriptor& field,
                                   const std::string& path, int line) {
  if (!node.IsDefined() || node.IsNull()) {
    return Error(line, path, absl::StrCat("has no value; expected ", Expectation(field)));
  }
  line = LineOf(node, line);
  if (field.is_repeated()) return List(node, field, path, line);
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return Scalar(node, field, path, line);
  if (!node.IsMap()) return WrongType(node, field, path, line);
  return Section(node, *field.message_type(), path);
}

absl::StatusOr<Json> Walker::List(const YAML::Node& node, const FieldDescriptor& field,
                                  const std::string& path, int line) {
  if (!node.IsSequence()) return WrongType(node, field, path, line);
  Json json = Json::array();
  for (size_t i = 0; i < node.size(); ++i) {
    const std::string item_path = absl::StrCat(path, "[", i, "]");
    const int item_line = LineOf(node[i], line);
    if (!node[i].IsMap()) {
      return Error(item_line, item_path,
                   absl::StrCat("is not a section; expected one with the keys ",
                                absl::StrJoin(Keys(*field.message_type()), ", ")));
    }
    lines_->emplace(item_path, item_line);
    HEADRACE_ASSIGN_OR_RETURN(Json item, Section(node[i], *field.message_type(), item_path));
    json.push_back(std::move(item));
  }
  return json;
}

absl::StatusOr<Json> Walker::Scalar(const YAML::Node& node, const FieldDescriptor& field,
                                    const std::string& path, int line) {
  if (!node.IsScalar()) return WrongType(node, field, path, line);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
      return WholeNumber(node, field, path, line);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(node, field, path, line);
    case FieldDescriptor::CPPTYPE_BOOL:
      if (IsPlainScalar(node) && node.Scalar() == "true") return Json(true);
      if (IsPlainScalar(node) && node.Scalar() == "false") return Json(false);
      return WrongType(node, field, path, line);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Word(node, field, path, line);
    default:
      return Text(node, field, path, line);
  }
}

// 64-bit numbers travel as JSON strings, which protobuf's parser reads exactly.
absl::StatusOr<Json> Walker::WholeNumber(const YAML::Node& node, const FieldDescriptor& field,
                                         const std::string& path, int line) {
  const std::string& text = node.Scalar();
  const bool stages = field.full_name() == kStages;
  if (stages && text == "auto") return Json("0");
  if (!MayBeNumber(node)) return WrongType(node, field, path, line);
  if (HasLeadingZero(text)) return LeadingZero(node, path, line);
  const bool is_signed = field.cpp_type() == FieldDescriptor::CPPTYPE_INT64;
  int64_t value = 0;
  uint64_t unsigned_value = 0;
  const bool whole =
      text.find_first_not_of("0123456789", text[0] == '-' ? 1 : 0) == std::string::npos;
  const bool fits =
      is_signed ? absl::SimpleAtoi(text, &value) : absl::SimpleAtoi(text, &unsigned_value);
  if (whole && !fits) {
    return Error(line, path,
                 absl::StrCat(text, " is out of range; expected ", Expectation(field),
                              is_signed ? " below 2^63" : " below 2^64"));
  }
  if (!whole || (stages && value < 1)) return WrongType(node, field, path, line);
  return is_signed ? Json(absl::StrCat(value)) : Json(absl::StrCat(unsigned_value));
}

absl::StatusOr<Json> Walker::Number(const YAML::Node& node, const FieldDescriptor& field,
                                    const std::string& path, int line) {
  const std::string& text = node.Scalar();
  if (!MayBeNumber(node)) return WrongType(node, field, path, line);
  if (HasLeadingZero(text)) return LeadingZero(node, path, line);
  double value = std::nan("");
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
    return Error(line, path, absl::StrCat("is ", text, "; expected a finite number"));
  }
  return Json(value);
}

absl::StatusOr<Json> Walker::Text(const YAML::Node& node, const FieldDescriptor& field,
                                  const std::string& path, int line) {
  const std::string& text = node.Scalar();
  if (IsPlainScalar(node) && (LooksLikeNumber(text) || text == "true" || text == "false")) {
    return Error(line, path, absl::StrCat("is ", text, "; expected text (put it in quotes)"));
  }
  if (text.empty()) return Error(line, path, "is empty; expected text");
  for (char c : text) {
    if (absl::ascii_iscntrl(c)) {
      return Error(line, path, "holds a control character; expected plain text");
    }
  }
  return Json(text);
}

absl::StatusOr<Json> Walker::Word(const YAML::Node& node, const FieldDescriptor& field,
                                  const std::string& path, int line) {
  const std::string& word = node.Scalar();
  if (const auto* value = FindEnumWord(*field.enum_type(), word)) return Json(value->name());
  const std::string hint = Nearest(word, EnumWords(*field.enum_type()));
  return Error(line, path,
               absl::StrCat("is '", word.substr(0, 60), "'", hint.empty() ? "" : ", did you mean ",
                            hint, hint.empty() ? "" : "?", "; expected ", Expectation(field)));
}

bool IsUtf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

// Notes where documents begin, builds nothing.
class DocumentCounter : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { line = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  int line = 1;
};

// The line where a second document begins, or 0. YAML::LoadAll will not do: on a stray "," it makes
// empty documents for ever.
int SecondDocumentLine(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentCounter counter;
  if (!parser.HandleNextDocument(counter)) return 0;
  return parser.HandleNextDocument(counter) ? counter.line : 0;
}

// Loads the one document. yaml-cpp throws; nothing of that leaves this function.
absl::StatusOr<YAML::Node> LoadDocument(const std::string& text, const Walker& walker) {
  if (!IsUtf8(text)) return walker.Error(1, "", "not UTF-8 text; expected a job file in YAML");
  YAML::Node document;
  int second = 0;
  try {
    document = YAML::Load(text);
    second = SecondDocumentLine(text);
  } catch (const YAML::Exception& e) {
    return walker.Error(std::max(0, e.mark.line) + 1, "",
                        absl::StrCat("not YAML: ", e.msg, "; expected lines of 'key: value'"));
  }
  const std::string sections = absl::StrJoin(Keys(*v1::JobSpec::descriptor()), ", ");
  if (second > 0) {
    return walker.Error(second, "", "a second document begins; expected one job a file");
  }
  if (!document.IsDefined() || document.IsNull()) {
    return walker.Error(1, "", absl::StrCat("the file is empty; expected the keys ", sections));
  }
  if (!document.IsMap()) {
    return walker.Error(LineOf(document, 1), "",
                        absl::StrCat("not a list of keys: the file is ", Describe(document),
                                     "; expected the keys ", sections));
  }
  return document;
}

}  // namespace

absl::Status ParseJobYaml(const std::string& text, const std::string& path, v1::JobSpec* spec,
                          std::map<std::string, int>* lines) {
  Walker walker(path, lines);
  HEADRACE_ASSIGN_OR_RETURN(const YAML::Node document, LoadDocument(text, walker));
  Json json;
  try {
    HEADRACE_ASSIGN_OR_RETURN(json, walker.Section(document, *v1::JobSpec::descriptor(), ""));
  } catch (const YAML::Exception& e) {
    return walker.Error(std::max(0, e.mark.line) + 1, "", absl::StrCat("not YAML: ", e.msg));
  }
  const auto status = google::protobuf::util::JsonStringToMessage(json.dump(), spec);
  if (!status.ok()) {
    return walker.Error(1, "", absl::StrCat("cannot be read: ", status.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace headrace
