#include "client/render/json.h"

#include <strings.h>

#include <cctype>

#include "absl/strings/str_cat.h"
#include "client/job_keys.h"

namespace headrace {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr auto kReplace = Json::error_handler_t::replace;  // bytes that are no UTF-8 become U+FFFD

// Field `index` of a repeated field, or the field itself for index −1.
Json ValueToJson(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r.GetInt64(message, &field) : r.GetRepeatedInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r.GetUInt64(message, &field) : r.GetRepeatedUInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r.GetInt32(message, &field) : r.GetRepeatedInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r.GetUInt32(message, &field) : r.GetRepeatedUInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r.GetDouble(message, &field) : r.GetRepeatedDouble(message, &field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? r.GetFloat(message, &field) : r.GetRepeatedFloat(message, &field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r.GetBool(message, &field) : r.GetRepeatedBool(message, &field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumWord(one ? *r.GetEnum(message, &field)
                          : *r.GetRepeatedEnum(message, &field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r.GetString(message, &field) : r.GetRepeatedString(message, &field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(one ? r.GetMessage(message, &field)
                        : r.GetRepeatedMessage(message, &field, index));
  }
  return nullptr;
}

bool LeftOut(const Message& message, const FieldDescriptor& field) {
  const Reflection& r = *message.GetReflection();
  if (field.has_presence()) return !r.HasField(message, &field);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    return r.GetString(message, &field).empty();
  }
  return field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM && r.GetEnumValue(message, &field) == 0;
}

// A text YAML reads as itself without quotes.
bool IsPlain(const std::string& text) {
  if (text.empty() || !std::isalpha(static_cast<unsigned char>(text[0]))) return false;
  for (char c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.') {
      return false;
    }
  }
  for (const char* word : {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}) {
    if (strcasecmp(text.c_str(), word) == 0) return false;
  }
  return true;
}

// A JSON string is a double-quoted YAML string.
std::string YamlScalar(const Json& json) {
  if (json.is_string() && IsPlain(json.get_ref<const std::string&>())) {
    return json.get<std::string>();
  }
  return json.dump(-1, ' ', false, kReplace);
}

bool IsBlock(const Json& json) { return json.is_structured() && !json.empty(); }

// Appends `json` at `indent`; `inline_first` when "- " already stands on the line.
void AppendYaml(const Json& json, int indent, bool inline_first, std::string* out) {
  const std::string pad(indent, ' ');
  bool first = inline_first;
  for (const auto& [key, value] : json.items()) {
    if (!first) absl::StrAppend(out, pad);
    first = false;
    absl::StrAppend(out, json.is_array() ? "-" : absl::StrCat(YamlScalar(Json(key)), ":"));
    if (!IsBlock(value)) {
      absl::StrAppend(out, " ", YamlScalar(value), "\n");
    } else if (json.is_array()) {
      absl::StrAppend(out, " ");
      AppendYaml(value, indent + 2, true, out);
    } else {
      absl::StrAppend(out, "\n");
      AppendYaml(value, indent + 2, false, out);
    }
  }
}

}  // namespace

Json ToJson(const Message& message) {
  Json json = Json::object();
  const auto& type = *message.GetDescriptor();
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_repeated()) {
      Json list = Json::array();
      for (int j = 0; j < reflection.FieldSize(message, &field); ++j) {
        list.push_back(ValueToJson(message, field, j));
      }
      json[field.name()] = std::move(list);
    } else if (!LeftOut(message, field)) {
      json[field.name()] = ValueToJson(message, field, -1);
    }
  }
  return json;
}

std::string Print(const Json& json, Format format) {
  if (format == Format::kJson) return json.dump(2, ' ', false, kReplace) + "\n";
  if (!IsBlock(json)) return YamlScalar(json) + "\n";
  std::string yaml;
  AppendYaml(json, 0, false, &yaml);
  return yaml;
}

std::string PrintLine(const Json& json) { return json.dump(-1, ' ', false, kReplace) + "\n"; }

}  // namespace headrace
