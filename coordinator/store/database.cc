#include "coordinator/store/database.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace headrace {
namespace {

absl::Status SqliteError(sqlite3* db, const std::string& path) {
  const int code = sqlite3_errcode(db);
  const std::string text = absl::StrCat(path, ": ", sqlite3_errmsg(db));
  switch (code) {
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      return absl::DataLossError(
          absl::StrCat(text, ". Move the file away to start afresh, or restore a copy of it."));
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_IOERR:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace

Statement::Statement(Statement&& other) noexcept
    : db_(other.db_),
      path_(std::move(other.path_)),
      statement_(std::exchange(other.statement_, nullptr)) {}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::Bind(int index, int64_t value) {
  sqlite3_bind_int64(statement_, index, value);
  return *this;
}

Statement& Statement::Bind(int index, std::string_view blob) {
  // A null pointer would bind NULL, which is not the empty blob.
  const char* data = blob.empty() ? "" : blob.data();
  sqlite3_bind_blob64(statement_, index, data, blob.size(), SQLITE_TRANSIENT);
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  absl::Status status = SqliteError(db_, path_);
  sqlite3_reset(statement_);
  return status;
}

absl::Status Statement::Run() {
  while (true) {
    HEADRACE_ASSIGN_OR_RETURN(const bool row, Step());
    if (!row) break;
  }
  sqlite3_reset(statement_);
  return absl::OkStatus();
}

int64_t Statement::Int(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Statement::Blob(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  if (data == nullptr) return "";
  return std::string(static_cast<const char*>(data), sqlite3_column_bytes(statement_, column));
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path,
                                                         int64_t application_id) {
  sqlite3* raw = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path.c_str(), &raw, flags, nullptr);
  std::unique_ptr<Database> database(new Database(path, raw));
  if (code != SQLITE_OK) {
    if (raw == nullptr) return absl::ResourceExhaustedError(absl::StrCat(path, ": out of memory"));
    return SqliteError(raw, path);
  }
  // Nobody else should have it open; whoever writes tries again (JobDriver).
  sqlite3_busy_timeout(raw, 200);
  HEADRACE_RETURN_IF_ERROR(database->Check(application_id));
  HEADRACE_RETURN_IF_ERROR(database->Execute("PRAGMA journal_mode=WAL"));
  HEADRACE_RETURN_IF_ERROR(database->Execute("PRAGMA synchronous=FULL"));
  HEADRACE_RETURN_IF_ERROR(database->Execute("PRAGMA foreign_keys=ON"));
  return database;
}

Database::~Database() { sqlite3_close(db_); }

absl::Status Database::Check(int64_t application_id) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t id, QueryInt("PRAGMA application_id"));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t tables, QueryInt("SELECT count(*) FROM sqlite_schema"));
  if (id != application_id && (id != 0 || tables != 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " is a database of another program; choose another --data-dir"));
  }
  HEADRACE_ASSIGN_OR_RETURN(Statement check, Prepare("PRAGMA quick_check(1)"));
  HEADRACE_ASSIGN_OR_RETURN(const bool row, check.Step());
  const std::string verdict = row ? check.Blob(0) : "no answer";
  if (verdict != "ok") {
    return absl::DataLossError(
        absl::StrCat(path_, " is damaged: ", verdict,
                     ". Move the file away to start afresh, or restore a copy of it."));
  }
  return Execute(absl::StrCat("PRAGMA application_id=", application_id));
}

absl::Status Database::Execute(const std::string& sql) {
  if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    return SqliteError(db_, path_);
  }
  return absl::OkStatus();
}

absl::StatusOr<Statement> Database::Prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int size = static_cast<int>(sql.size());
  if (sqlite3_prepare_v2(db_, sql.data(), size, &statement, nullptr) != SQLITE_OK) {
    return SqliteError(db_, path_);
  }
  return Statement(db_, path_, statement);
}

absl::StatusOr<int64_t> Database::QueryInt(const std::string& sql) {
  HEADRACE_ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  HEADRACE_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

}  // namespace headrace
