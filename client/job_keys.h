// The words of the job file, read off the proto by reflection, so that keys, enum words and what
// the errors and docs say about them cannot drift apart.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace headrace {

// SCHEDULE_KIND_1F1B → "1f1b", MODEL_FAMILY_GPT2 → "gpt2", JOB_STATE_RUNNING → "running".
std::string EnumWord(const google::protobuf::EnumValueDescriptor& value);

// Every word of the enum in order, without "unspecified", which nobody writes.
std::vector<std::string> EnumWords(const google::protobuf::EnumDescriptor& type);

// The value a word stands for; null for an unknown word and for "unspecified".
const google::protobuf::EnumValueDescriptor* FindEnumWord(
    const google::protobuf::EnumDescriptor& type, absl::string_view word);

// The keys of a section, in the proto's order.
std::vector<std::string> Keys(const google::protobuf::Descriptor& section);

// What a key takes, to follow "expected": "a whole number", "one of gpt2, llama", "a section with
// …".
std::string Expectation(const google::protobuf::FieldDescriptor& field);

// The candidate a misspelt word most likely meant, or "" if none is near.
std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace headrace
