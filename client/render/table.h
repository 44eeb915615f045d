// Columns for people.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace headrace {

enum class Align { kLeft, kRight };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns. A newline in a cell becomes a space.
  void Add(std::vector<std::string> cells);

  // One line a row, two spaces between columns, `indent` before; no trailing spaces. Where the
  // table is wider than `width`, the widest left-aligned column is cut with "…".
  std::string Render(int width, int indent = 0) const;

  bool empty() const { return rows_.empty(); }

 private:
  std::vector<int> Widths(int width, int indent) const;
  void AppendRow(const std::vector<std::string>& cells, const std::vector<int>& widths, int indent,
                 std::string* out) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Columns a text takes, counting each UTF-8 character as one.
int DisplayWidth(absl::string_view text);
// At most `width` columns, ending in "…" if it was cut.
std::string Cut(absl::string_view text, int width);

}  // namespace headrace
