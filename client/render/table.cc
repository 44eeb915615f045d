#include "client/render/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

bool StartsCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

constexpr int kGap = 2;
constexpr int kNarrowest = 8;  // a column is cut no further

}  // namespace

int DisplayWidth(absl::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), StartsCharacter));
}

std::string Cut(absl::string_view text, int width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  std::string cut;
  int columns = 0;
  for (char c : text) {
    if (StartsCharacter(c) && ++columns >= width) break;
    cut += c;
  }
  return cut + "…";
}

void Table::Add(std::vector<std::string> cells) {
  for (std::string& cell : cells) std::replace(cell.begin(), cell.end(), '\n', ' ');
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<int> Table::Widths(int width, int indent) const {
  std::vector<int> widths;
  int total = indent - kGap;
  size_t widest = columns_.size();
  for (size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(DisplayWidth(columns_[c].title));
    for (const auto& row : rows_) widths[c] = std::max(widths[c], DisplayWidth(row[c]));
    total += widths[c] + kGap;
    if (columns_[c].align == Align::kRight) continue;
    if (widest == columns_.size() || widths[c] > widths[widest]) widest = c;
  }
  if (total > width && widest < columns_.size()) {
    const int narrowest = std::min(kNarrowest, widths[widest]);
    widths[widest] = std::max(narrowest, widths[widest] - (total - width));
  }
  return widths;
}

void Table::AppendRow(const std::vector<std::string>& cells, const std::vector<int>& widths,
                      int indent, std::string* out) const {
  std::string line(indent, ' ');
  for (size_t c = 0; c < columns_.size(); ++c) {
    const std::string text = Cut(cells[c], widths[c]);
    const std::string pad(widths[c] - DisplayWidth(text), ' ');
    const bool left = columns_[c].align == Align::kLeft;
    absl::StrAppend(&line, c == 0 ? "" : "  ", left ? text : pad, left ? pad : text);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  absl::StrAppend(out, line, "\n");
}

std::string Table::Render(int width, int indent) const {
  const std::vector<int> widths = Widths(width, indent);
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::string out;
  AppendRow(titles, widths, indent, &out);
  for (const auto& row : rows_) AppendRow(row, widths, indent, &out);
  return out;
}

}  // namespace headrace
