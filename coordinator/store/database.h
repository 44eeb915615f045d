// SQLite with absl::Status and no surprises: WAL, synchronous=FULL, errors that name the file.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace headrace {

// One SQL statement, compiled. Used by one thread at a time; must not outlive its Database.
class Statement {
 public:
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  // Parameters count from 1. Text and blobs are copied.
  Statement& Bind(int index, int64_t value);
  Statement& Bind(int index, std::string_view blob);

  // True: a row is there; false: done. Errors as Database's.
  absl::StatusOr<bool> Step();
  // Steps to the end, ignoring rows; ready to be bound and run again.
  absl::Status Run();

  // Columns of the current row count from 0.
  int64_t Int(int column) const;
  std::string Blob(int column) const;

 private:
  friend class Database;
  Statement(sqlite3* db, std::string path, sqlite3_stmt* statement)
      : db_(db), path_(std::move(path)), statement_(statement) {}

  sqlite3* db_;
  std::string path_;
  sqlite3_stmt* statement_;
};

// A connection. Used by one thread at a time.
class Database {
 public:
  // Creates the file if there is none, and checks one that is there.
  //   FAILED_PRECONDITION  a database of another program (its application_id is not
  //   `application_id`) DATA_LOSS            not a database, or damaged; says what SQLite found
  //   UNAVAILABLE, RESOURCE_EXHAUSTED, INTERNAL  what the system said
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path,
                                                        int64_t application_id);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  absl::Status Execute(const std::string& sql);
  absl::StatusOr<Statement> Prepare(std::string_view sql);
  absl::StatusOr<int64_t> QueryInt(const std::string& sql);
  const std::string& path() const { return path_; }

 private:
  Database(std::string path, sqlite3* db) : path_(std::move(path)), db_(db) {}
  absl::Status Check(int64_t application_id);

  std::string path_;
  sqlite3* db_;
};

}  // namespace headrace
