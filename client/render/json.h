// Messages as programs read them. Names are the proto's, snake_case; 64-bit numbers are numbers;
// doubles print so that they read back bit for bit (an infinity or NaN is null); enums are their
// short words. What is not set (a sub-message, an optional field, an enum left open, an empty text) is
// left out; everything else is there, zero or not.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

#include "client/console.h"

namespace headrace {

using Json = nlohmann::ordered_json;

Json ToJson(const google::protobuf::Message& message);

// kJson: indented by two, with a final newline; kYaml: block style. Not for kText.
std::string Print(const Json& json, Format format);

// On one line, with a final newline: for streams of updates.
std::string PrintLine(const Json& json);

}  // namespace headrace
