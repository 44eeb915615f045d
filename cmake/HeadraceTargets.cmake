# headrace_library(NAME SOURCES a.cc … DEPS target … [NO_UNITY]): one static library per folder.
# NO_UNITY: its files use the same names in anonymous namespaces, so the presets that join files
# (clang, asan, tsan) compile these one by one.
function(headrace_library name)
  cmake_parse_arguments(ARG "NO_UNITY" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/proto)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  if(ARG_NO_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  endif()
endfunction()

# headrace_tsan(NAME): tells ThreadSanitizer about absl::Mutex in a program of the tsan build.
function(headrace_tsan name)
  if(HEADRACE_SANITIZE STREQUAL "thread")
    target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/tsan_mutex.cc)
    target_link_libraries(${name} PRIVATE absl::synchronization ${CMAKE_DL_LIBS})
  endif()
endfunction()

# headrace_relocatable(NAME): a program that looks for libraries in ../lib beside it before anywhere
# else, for itself and for what those need (DT_RPATH), so that it runs where tests/gpu/pack unpacks it.
function(headrace_relocatable name)
  set_property(TARGET ${name} APPEND PROPERTY BUILD_RPATH "$ORIGIN/../lib")
  target_link_options(${name} PRIVATE -Wl,--disable-new-dtags)
endfunction()

# headrace_binary(NAME SOURCES a.cc … DEPS target …): a program in build/bin.
function(headrace_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  headrace_tsan(${name})
  headrace_relocatable(${name})
endfunction()

# headrace_test(NAME SOURCES a_test.cc DEPS target … [LABELS label …] [TIMEOUT seconds] [SERIAL]): one
# GoogleTest program, run by ctest. Labels `asan` and `tsan` say under which sanitizers tests/run builds
# and runs it again; SERIAL keeps other tests away while it runs.
add_custom_target(asan_tests)
add_custom_target(tsan_tests)
function(headrace_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT HEADRACE_BUILD_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  headrace_tsan(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
                                           UNITY_BUILD OFF)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(ARG_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
  foreach(sanitizer asan tsan)
    if(sanitizer IN_LIST ARG_LABELS)
      add_dependencies(${sanitizer}_tests ${name})
    endif()
  endforeach()
endfunction()
