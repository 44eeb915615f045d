// For tests: the other end of a link as a process that can be stopped and killed.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

extern char** environ;

namespace headrace {

// Runs a program; killed when this goes.
class PeerProcess {
 public:
  // `environment`: "NAME=value", beside this process's own.
  explicit PeerProcess(std::vector<std::string> command,
                       std::vector<std::string> environment = {}) {
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::vector<char*> argv, envp;
    for (std::string& argument : command) argv.push_back(argument.data());
    for (std::string& setting : environment) envp.push_back(setting.data());
    for (char** setting = environ; *setting != nullptr; ++setting) envp.push_back(*setting);
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()) != 0) abort();
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    out_ = fdopen(out[0], "r");
  }
  ~PeerProcess() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
    fclose(out_);
  }

  std::string ReadLine() {
    char line[256] = {};
    if (fgets(line, sizeof(line), out_) == nullptr) return "";
    line[strcspn(line, "\n")] = '\0';
    return line;
  }
  void Signal(int number) { kill(pid_, number); }

 private:
  pid_t pid_ = 0;
  FILE* out_ = nullptr;
};

}  // namespace headrace
