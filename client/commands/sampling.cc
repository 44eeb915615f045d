#include "client/commands/sampling.h"

#include "absl/strings/str_cat.h"
#include "client/render/json.h"
#include "common/status.h"
#include "plan/model.h"

namespace headrace {
namespace {

bool IsBytes(const v1::JobSpec& spec) { return spec.data().tokenizer() == v1::TOKENIZER_BYTE; }

std::vector<int64_t> PromptTokens(const SamplingOptions& options) {
  if (!options.tokens.empty()) return options.tokens;
  std::vector<int64_t> tokens;
  for (char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// A token as the terminal shows it: its byte, or its number.
std::string Shown(int64_t token, bool bytes, bool terminal) {
  if (!bytes) return absl::StrCat(token, " ");
  const std::string byte(1, static_cast<char>(token));
  return terminal ? Printable(byte) : byte;
}

}  // namespace

void AddSamplingOptions(CLI::App* app, SamplingOptions* options) {
  app->add_option("-p,--prompt", options->prompt, "Text to go on from")->type_name("TEXT");
  app->add_option("--prompt-tokens", options->tokens,
                  "Tokens to go on from, such as 1,2,3: for jobs trained on a .bin file")
      ->delimiter(',')
      ->type_name("TOKENS");
  app->add_option("--temperature", options->temperature,
                  "0 takes the likeliest token, 1 draws as the model says")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0))
      ->type_name("NUMBER");
  app->add_option("--top-k", options->top_k, "Draw among the k likeliest tokens; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->type_name("K");
  app->add_option("--seed", options->seed, "Same seed, same text")
      ->capture_default_str()
      ->type_name("NUMBER");
  app->add_option("-n,--max-tokens", options->max_tokens, "How many tokens to draw")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->type_name("N");
}

absl::Status CheckSampling(const SamplingOptions& options, const v1::JobSpec& spec) {
  if (!options.wanted()) {
    return absl::InvalidArgumentError(
        IsBytes(spec) ? "nothing to go on from: give --prompt TEXT"
                      : "nothing to go on from: give --prompt-tokens, such as 1,2,3");
  }
  if (!options.prompt.empty() && !options.tokens.empty()) {
    return absl::InvalidArgumentError("--prompt and --prompt-tokens: give one of them");
  }
  if (!options.prompt.empty() && !IsBytes(spec)) {
    return absl::InvalidArgumentError(
        "--prompt: this job was trained on a .bin file, whose tokenizer is not known; give "
        "--prompt-tokens 1,2,3");
  }
  HEADRACE_ASSIGN_OR_RETURN(const Model model, ResolveModel(spec.model()));
  for (int64_t token : PromptTokens(options)) {
    if (token >= 0 && token < model.vocabulary) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(options.tokens.empty() ? "--prompt: byte " : "--prompt-tokens: ", token,
                     "; expected 0 to ", model.vocabulary - 1, " (the model's vocabulary)"));
  }
  return absl::OkStatus();
}

absl::Status GenerateText(Coordinator* coordinator, const v1::Job& job,
                          const SamplingOptions& options, absl::Time deadline, Format format,
                          std::ostream* out, const Environment& environment) {
  HEADRACE_RETURN_IF_ERROR(CheckSampling(options, job.spec()));
  const bool bytes = IsBytes(job.spec());
  const bool terminal = environment.console.out_is_terminal;
  v1::GenerateRequest request;
  request.set_job(job.id());
  for (int64_t token : PromptTokens(options)) request.add_prompt(token);
  request.set_temperature(options.temperature);
  request.set_top_k(options.top_k);
  request.set_seed(options.seed);
  request.set_max_tokens(options.max_tokens);
  std::vector<int64_t> drawn;
  if (format == Format::kText) {
    for (int64_t token : request.prompt()) *out << Shown(token, bytes, terminal);
    out->flush();
  }
  const absl::Status status =
      coordinator->Generate(request, deadline, environment.interrupt, [&](int64_t token) {
        drawn.push_back(token);
        if (format == Format::kText) *out << Shown(token, bytes, terminal) << std::flush;
      });
  if (format == Format::kText) *out << "\n";
  HEADRACE_RETURN_IF_ERROR(status);
  if (format == Format::kText) return absl::OkStatus();
  Json json = {{"job", job.id()}, {"prompt", options.prompt}, {"tokens", drawn}};
  if (bytes) json["text"] = std::string(drawn.begin(), drawn.end());
  *out << Print(json, format);
  return absl::OkStatus();
}

}  // namespace headrace
