# Compiler settings that hold for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

set(headrace_warnings -Wall -Wextra -Werror -Wno-unused-parameter -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND headrace_warnings -Wno-restrict)  # false alarms on std::string assignment (GCC bug 105651)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  list(APPEND headrace_warnings -Wthread-safety -Wno-unused-command-line-argument)
endif()

# nvcc has options of its own (worker/backend/cuda/CMakeLists.txt).
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${headrace_warnings}>")

if(HEADRACE_SANITIZE)
  add_compile_options(-fsanitize=${HEADRACE_SANITIZE} -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${HEADRACE_SANITIZE})
endif()

# A fast linker and a compiler cache where the machine has them; neither is required.
find_program(HEADRACE_MOLD mold)
if(HEADRACE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
find_program(HEADRACE_CCACHE ccache)
if(HEADRACE_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
endif()
