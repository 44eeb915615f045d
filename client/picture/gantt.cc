#include "client/picture/gantt.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/status.h"

namespace headrace {
namespace {

// Units of the picture are pixels at its natural size.
constexpr double kPlotWidth = 1600;
constexpr double kMargin = 16;
constexpr double kHeader = 84;        // title, subtitle, legend
constexpr double kAxis = 44;          // ticks and their unit
constexpr double kDigitWidth = 0.58;  // of the font's size, in any sans-serif
constexpr double kMinFont = 6.5, kMaxFont = 11;

struct Look {
  const char* letter;  // its CSS class
  const char* name;    // in the legend
};
constexpr std::array<Look, 6> kLooks = {{{"f", "forward"},
                                         {"r", "recompute"},
                                         {"b", "backward"},
                                         {"u", "update"},
                                         {"e", "evaluate"},
                                         {"w", "waiting"}}};

// The palette is safe for the colour-blind; numbers stand dark on light bars and light on dark
// ones.
constexpr char kStyle[] = R"(<style>
text{font-family:Helvetica,Arial,sans-serif;fill:#24292f}
.bg{fill:#fff}.t{font-size:17px;font-weight:bold}.s{font-size:13px}.l{font-size:12px}
.a{font-size:11px}.m{text-anchor:middle}.e{text-anchor:end}
.f{fill:#4477aa}.r{fill:#a5cbe6}.b{fill:#ee8a3a}.u{fill:#3f9a5b}.e0{fill:#aa4499}.w{fill:#e4e8ec}
.edge{stroke:#fff;stroke-width:.7}.grid{stroke:#d0d7de;stroke-width:1}
.mark{stroke:#57606a;stroke-width:1;stroke-dasharray:4 3}
.n{text-anchor:middle}.n.f,.n.u,.n.e0{fill:#fff}.n.r,.n.b{fill:#1b1f23}
@media(prefers-color-scheme:dark){text{fill:#d5dbe1}.bg{fill:#161a1f}.w{fill:#2c333b}
.edge{stroke:#161a1f}.grid{stroke:#353d46}.mark{stroke:#9aa4ae}}
</style>
)";

const char* ClassOf(BarKind kind) {
  return kind == BarKind::kEvaluate ? "e0" : kLooks[static_cast<size_t>(kind)].letter;
}

// "12.5", "3", "-0.25": as short as two decimals allow.
std::string Number(double x) {
  std::string text = absl::StrFormat("%.2f", x);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

struct Unit {
  double seconds;
  const char* name;
};

Unit UnitOf(double seconds) {
  if (seconds < 1e-3) return {1e-6, "µs"};
  if (seconds < 1) return {1e-3, "ms"};
  if (seconds < 300) return {1, "s"};
  if (seconds < 18000) return {60, "min"};
  return {3600, "h"};
}

// The widest of 1, 2, 5 × 10ⁿ that gives at least `count` steps up to `end`.
double TickStep(double end, int count) {
  const double rough = end / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double digit = rough / power;
  return power * (digit >= 5 ? 5 : digit >= 2 ? 2 : 1);
}

class Drawing {
 public:
  explicit Drawing(const Gantt& gantt) : gantt_(gantt) {
    size_t label = 0;
    for (const GanttRow& row : gantt.rows) {
      label = std::max(label, row.label.size());
      for (const Bar& bar : row.bars) end_s_ = std::max(end_s_, bar.end_s);
    }
    if (end_s_ <= 0) end_s_ = 1e-9;
    left_ = kMargin + 10 + 6.4 * static_cast<double>(label);
    const double rows = static_cast<double>(std::max<size_t>(gantt.rows.size(), 1));
    pitch_ = std::clamp(340 / rows, 3.0, 34.0);
    height_ = pitch_ * (pitch_ > 12 ? 0.86 : 0.92);
    bottom_ = kHeader + pitch_ * rows;
    ChooseFonts();
  }

  std::string Draw() {
    const double width = left_ + kPlotWidth + kMargin, height = bottom_ + kAxis;
    absl::StrAppend(&out_, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ",
                    Number(width), " ", Number(height), "\" width=\"", Number(width),
                    "\" height=\"", Number(height), "\">\n<title>", Escaped(gantt_.title),
                    "</title>\n", kStyle, "<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n");
    Text("t", kMargin, 28, gantt_.title);
    Text("s", kMargin, 48, gantt_.subtitle);
    DrawLegend();
    DrawAxis();
    for (size_t k = 0; k < gantt_.rows.size(); ++k) DrawRow(k);
    for (const Mark& mark : gantt_.marks) DrawMark(mark);
    absl::StrAppend(&out_, "</svg>\n");
    return std::move(out_);
  }

 private:
  double X(double seconds) const { return seconds / end_s_ * kPlotWidth; }

  // For each kind the largest font that fits most of its bars, so that numbers look alike.
  void ChooseFonts() {
    std::array<std::vector<double>, kLooks.size()> fitting;
    std::vector<double> widths;
    for (const GanttRow& row : gantt_.rows) {
      for (const Bar& bar : row.bars) {
        present_[static_cast<size_t>(bar.kind)] = true;
        if (bar.micro_batch < 0) continue;
        widths.push_back(X(bar.end_s - bar.begin_s));
        fitting[static_cast<size_t>(bar.kind)].push_back(FontThatFits(bar));
      }
    }
    for (size_t kind = 0; kind < kLooks.size(); ++kind) {
      std::vector<double>& fonts = fitting[kind];
      if (fonts.empty()) continue;
      const auto low = fonts.begin() + static_cast<std::ptrdiff_t>(fonts.size() / 20);
      std::nth_element(fonts.begin(), low, fonts.end());
      font_[kind] = std::clamp(std::floor(*low * 2) / 2, kMinFont, std::min(kMaxFont, height_));
    }
    if (widths.empty()) return;
    const auto middle = widths.begin() + static_cast<std::ptrdiff_t>(widths.size() / 2);
    std::nth_element(widths.begin(), middle, widths.end());
    edges_ = *middle >= 4;  // around thinner bars an edge would hide them
  }

  double FontThatFits(const Bar& bar) const {
    const double digits = static_cast<double>(absl::StrCat(bar.micro_batch).size());
    return (X(bar.end_s - bar.begin_s) - 2.2) / (digits * kDigitWidth);
  }

  void Text(const char* css, double x, double y, const std::string& text) {
    absl::StrAppend(&out_, "<text class=\"", css, "\" x=\"", Number(x), "\" y=\"", Number(y), "\">",
                    Escaped(text), "</text>\n");
  }

  void DrawLegend() {
    double x = kMargin;
    for (size_t kind = 0; kind < kLooks.size(); ++kind) {
      if (!present_[kind]) continue;
      absl::StrAppend(&out_, "<rect class=\"", ClassOf(static_cast<BarKind>(kind)), "\" x=\"",
                      Number(x), "\" y=\"59\" width=\"13\" height=\"13\"/>\n");
      Text("l", x + 18, 70, kLooks[kind].name);
      x += 40 + 6.5 * static_cast<double>(std::string(kLooks[kind].name).size());
    }
  }

  void DrawAxis() {
    const Unit unit = UnitOf(end_s_);
    const double end = end_s_ / unit.seconds, step = TickStep(end, 7);
    const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
    for (int i = 0; i * step <= end * (1 + 1e-9); ++i) {
      const double x = left_ + X(i * step * unit.seconds);
      absl::StrAppend(&out_, "<path class=\"grid\" d=\"M", Number(x), " ", Number(kHeader - 4), "V",
                      Number(bottom_ + 5), "\"/>\n");
      Text("a m", x, bottom_ + 19, absl::StrFormat("%.*f", decimals, i * step));
    }
    Text("a m", left_ + kPlotWidth / 2, bottom_ + 37, absl::StrCat("time, ", unit.name));
  }

  void DrawRow(size_t k) {
    const GanttRow& row = gantt_.rows[k];
    const double top = kHeader + pitch_ * static_cast<double>(k);
    if (pitch_ >= 9) {
      const double middle = top + height_ / 2 + 4;
      Text(pitch_ >= 14 ? "l e" : "a e", left_ - 8, middle, row.label);
    }
    absl::StrAppend(&out_, "<g transform=\"translate(", Number(left_), " ", Number(top), ")\">\n");
    // Waits lie below: a bar that begins a moment early covers them.
    DrawBars(row, BarKind::kWait);
    for (size_t kind = 0; kind + 1 < kLooks.size(); ++kind) {
      DrawBars(row, static_cast<BarKind>(kind));
    }
    for (size_t kind = 0; kind + 1 < kLooks.size(); ++kind) {
      DrawNumbers(row, static_cast<BarKind>(kind));
    }
    absl::StrAppend(&out_, "</g>\n");
  }

  void DrawBars(const GanttRow& row, BarKind kind) {
    std::string path;
    for (const Bar& bar : row.bars) {
      if (bar.kind != kind) continue;
      const double x = X(bar.begin_s), width = std::max(0.2, X(bar.end_s) - x);
      absl::StrAppend(&path, "M", Number(x), " 0h", Number(width), "v", Number(height_), "h-",
                      Number(width), "z");
    }
    if (path.empty()) return;
    const bool edge = edges_ && kind != BarKind::kWait;
    absl::StrAppend(&out_, "<path class=\"", ClassOf(kind), edge ? " edge" : "", "\" d=\"", path,
                    "\"/>\n");
  }

  void DrawNumbers(const GanttRow& row, BarKind kind) {
    const double font = font_[static_cast<size_t>(kind)];
    if (font == 0 || font > height_) return;
    std::string numbers;
    for (const Bar& bar : row.bars) {
      if (bar.kind != kind || bar.micro_batch < 0 || FontThatFits(bar) < font) continue;
      absl::StrAppend(&numbers, "<text class=\"n ", ClassOf(kind), "\" x=\"",
                      Number(X((bar.begin_s + bar.end_s) / 2)), "\">", bar.micro_batch, "</text>");
    }
    if (numbers.empty()) return;
    absl::StrAppend(&out_, "<g transform=\"translate(0 ", Number(height_ / 2 + font * 0.36),
                    ")\" font-size=\"", Number(font), "\">", numbers, "</g>\n");
  }

  void DrawMark(const Mark& mark) {
    const double x = left_ + X(mark.at_s);
    absl::StrAppend(&out_, "<path class=\"mark\" d=\"M", Number(x), " ", Number(kHeader - 6), "V",
                    Number(bottom_), "\"/>\n");
    Text("a m", x, kHeader - 9, mark.text);
  }

  const Gantt& gantt_;
  double end_s_ = 0;
  double left_ = 0;    // of the plot
  double pitch_ = 0;   // from row to row
  double height_ = 0;  // of a bar
  double bottom_ = 0;  // of the last row
  std::array<bool, kLooks.size()> present_ = {};
  std::array<double, kLooks.size()> font_ = {};
  bool edges_ = false;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> DrawGantt(const Gantt& gantt) {
  size_t bars = 0;
  for (const GanttRow& row : gantt.rows) bars += row.bars.size();
  if (bars > kMaxBars) {
    return absl::FailedPreconditionError(
        absl::StrCat("a picture of ", bars, " bars is too large; at most ", kMaxBars));
  }
  return Drawing(gantt).Draw();
}

}  // namespace headrace
