# weft_library, weft_executable, weft_test, weft_fuzz, weft_command_test: these functions make every
# target of the tree.
include(GNUInstallDirs)

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# This folder lets `#include "weft/rpc/verbs.h"` work in the tree as it does after installation.
set(WEFT_INCLUDE_DIR ${PROJECT_BINARY_DIR}/include)
set(WEFT_GENERATED_DIR ${PROJECT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${WEFT_INCLUDE_DIR} ${WEFT_GENERATED_DIR})
file(CREATE_LINK ${PROJECT_SOURCE_DIR} ${WEFT_INCLUDE_DIR}/weft SYMBOLIC)

# Every target of the tree links weft_flags; all but generated code link weft_warnings.
add_library(weft_flags INTERFACE)
target_compile_features(weft_flags INTERFACE cxx_std_20)
# gRPC's package asks for it, and a precompiled header must agree with the files that use it.
target_compile_options(weft_flags INTERFACE -pthread)
if(WEFT_SANITIZE)
  target_compile_options(weft_flags INTERFACE -fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer
                                              -fno-sanitize-recover=undefined)
  target_link_options(weft_flags INTERFACE -fsanitize=${WEFT_SANITIZE})
endif()
if(WEFT_FUZZING)
  # All code gets coverage counters, but only the fuzz targets get libFuzzer's main. The checks of
  # the standard library find errors that AddressSanitizer cannot: an empty optional, a bit past the
  # end.
  target_compile_options(weft_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_compile_definitions(weft_flags INTERFACE _GLIBCXX_ASSERTIONS)
endif()
if(WEFT_BREAKAGES)
  target_compile_definitions(weft_flags INTERFACE WEFT_BREAKAGES)
endif()
if(WEFT_FAIL_POINTS)
  target_compile_definitions(weft_flags INTERFACE WEFT_FAIL_POINTS)
endif()
find_program(WEFT_LLD ld.lld)
if(WEFT_LLD)
  target_link_options(weft_flags INTERFACE -fuse-ld=lld)
endif()

add_library(weft_warnings INTERFACE)
target_compile_options(weft_warnings INTERFACE -Wall -Wextra)
if(WEFT_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC allows a class of a source file to have members of the file's unnamed namespace, but only if
  # the compiler was started with that file.
  target_compile_options(weft_warnings INTERFACE -Wno-subobject-linkage)
endif()
if(WEFT_WARNINGS_AS_ERRORS)
  target_compile_options(weft_warnings INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_BUILD_TYPE STREQUAL Release)
  # GCC 12 at -O3 reports both inside inlined absl::Status and std::string code that is correct.
  target_compile_options(weft_warnings INTERFACE -Wno-maybe-uninitialized -Wno-stringop-overflow)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)
  # clang 14 calls a capture unused that only one branch of an `if constexpr` uses.
  target_compile_options(weft_warnings INTERFACE -Wthread-safety -Wno-unused-lambda-capture)
endif()

# ccache shares compilations between build folders. The sloppiness settings let it cache the tests'
# PCH too.
find_program(WEFT_CCACHE ccache)
if(WEFT_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${WEFT_CCACHE})
endif()

# Sources of one target are compiled together, at most this many at a time. A file with compile options
# of its own stays alone. WEFT_UNITY=OFF compiles each file by itself.
set(CMAKE_UNITY_BUILD ${WEFT_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 6)

# weft_library(NAME ROOM [TORCH] [GRPC] [OPTIMIZED] [HDRS file...] [SRCS file...] [DEPS target...])
#
# Makes the target weft_NAME, alias weft::NAME, from files of ROOM. HDRS are the installed headers:
# those at the room's root, and those of internal/ that they include. TORCH: uses LibTorch, whose
# headers are precompiled; skipped without WEFT_WITH_TORCH. OPTIMIZED: the simulators run it for long.
function(weft_library name room)
  cmake_parse_arguments(PARSE_ARGV 2 arg "TORCH;GRPC;OPTIMIZED" "" "HDRS;SRCS;DEPS")
  weft_check_arguments("weft_library(${name})")
  list(TRANSFORM arg_HDRS PREPEND ${PROJECT_SOURCE_DIR}/${room}/ OUTPUT_VARIABLE headers)
  weft_register("${headers};${arg_SRCS}")
  if(arg_TORCH AND NOT WEFT_WITH_TORCH)
    return()
  endif()

  set(target weft_${name})
  if(arg_SRCS)
    add_library(${target} STATIC ${arg_SRCS})
    set(visibility PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:weft_flags> $<BUILD_INTERFACE:weft_warnings>)
    target_compile_features(${target} PUBLIC cxx_std_20)
    if(arg_GRPC)
      target_link_libraries(${target} PRIVATE gRPC::grpc++)
    endif()
    if(arg_OPTIMIZED)
      weft_optimize(${target})
    endif()
  else()
    add_library(${target} INTERFACE)
    set(visibility INTERFACE)
    target_compile_features(${target} INTERFACE cxx_std_20)
  endif()
  add_library(weft::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} ${visibility} $<BUILD_INTERFACE:${WEFT_INCLUDE_DIR}>)
  target_link_libraries(${target} ${visibility} ${arg_DEPS})
  if(arg_TORCH)
    target_link_libraries(${target} ${visibility} weft::torch)
    if(arg_SRCS)
      weft_use_pch(${target} torch)
    endif()
  endif()

  if(NOT room MATCHES "^(tests|examples|bench)")
    install(TARGETS ${target} EXPORT weftTargets COMPONENT dev
            INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    foreach(header IN LISTS arg_HDRS)
      cmake_path(GET header PARENT_PATH folder)
      install(FILES ${PROJECT_SOURCE_DIR}/${room}/${header}
              DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft/${room}/${folder} COMPONENT dev)
    endforeach()
    set_property(GLOBAL APPEND PROPERTY WEFT_LIBRARIES weft::${name})
  endif()
endfunction()

# weft_proto_library(NAME PROTOS file...): makes weft_NAME from .proto files of this folder.
function(weft_proto_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "PROTOS")
  weft_check_arguments("weft_proto_library(${name})")
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE room)
  set(generated "")
  foreach(proto IN LISTS arg_PROTOS)
    cmake_path(GET proto STEM stem)
    set(output ${WEFT_GENERATED_DIR}/weft/${room}/${stem}.pb)
    add_custom_command(
      OUTPUT ${output}.cc ${output}.h
      COMMAND protobuf::protoc -I ${WEFT_INCLUDE_DIR} --cpp_out=${WEFT_GENERATED_DIR} weft/${room}/${proto}
      DEPENDS ${arg_PROTOS} protobuf::protoc
      VERBATIM)
    list(APPEND generated ${output}.cc)
    install(FILES ${output}.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft/${room} COMPONENT dev)
  endforeach()
  set(target weft_${name})
  add_library(${target} STATIC ${generated})
  add_library(weft::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${WEFT_GENERATED_DIR}>)
  target_link_libraries(${target} PUBLIC protobuf::libprotobuf PRIVATE $<BUILD_INTERFACE:weft_flags>)
  install(TARGETS ${target} EXPORT weftTargets COMPONENT dev
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  set_property(GLOBAL APPEND PROPERTY WEFT_LIBRARIES weft::${name})
endfunction()

# weft_executable(NAME [TORCH] [INSTALL] SRCS file... [DEPS target...])
function(weft_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;INSTALL" "" "SRCS;DEPS")
  weft_check_arguments("weft_executable(${name})")
  weft_register("${arg_SRCS}")
  if(arg_TORCH AND NOT WEFT_WITH_TORCH)
    return()
  endif()
  add_executable(${name} ${arg_SRCS})
  weft_note_quick(${name})
  target_link_libraries(${name} PRIVATE weft_flags weft_warnings ${arg_DEPS})
  target_include_directories(${name} PRIVATE ${WEFT_INCLUDE_DIR})
  if(arg_TORCH)
    target_link_libraries(${name} PRIVATE weft::torch)
    weft_use_pch(${name} torch)
  endif()
  if(arg_INSTALL)
    # Set by name, because INSTALL_RPATH_USE_LINK_PATH leaves out folders inside the project, such
    # as .deps.
    set(component tools)
    if(arg_TORCH)
      set_target_properties(${name} PROPERTIES INSTALL_RPATH ${WEFT_TORCH_DIR}/lib)
      set(component torch_tools)
    endif()
    install(TARGETS ${name} COMPONENT ${component})
  endif()
endfunction()

# Records what tools/test.sh builds without --all: all programs but those of folders that set
# WEFT_FULL, because only --all runs them.
function(weft_note_quick target)
  if(NOT WEFT_FULL)
    set_property(GLOBAL APPEND PROPERTY WEFT_QUICK ${target})
  endif()
endfunction()

# Makes the target weft_quick.
function(weft_add_quick)
  get_property(programs GLOBAL PROPERTY WEFT_QUICK)
  add_custom_target(weft_quick DEPENDS ${programs})
endfunction()

function(weft_check_arguments what)
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${what}: unknown argument: ${arg_UNPARSED_ARGUMENTS}")
  endif()
endfunction()

# Records that files belong to a target, for weft_check_registered.
function(weft_register files)
  foreach(file IN LISTS files)
    cmake_path(ABSOLUTE_PATH file NORMALIZE)
    set_property(GLOBAL APPEND PROPERTY WEFT_REGISTERED ${file})
  endforeach()
endfunction()

# Preset dev does not optimize. What computes for long does it ten times faster with -O1.
function(weft_optimize target)
  if(CMAKE_BUILD_TYPE STREQUAL Dev)
    target_compile_options(${target} PRIVATE -O1)
    # A precompiled header serves one level only.
    set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# Includes a precompiled header in all sources of a target, before their own includes: headers of
# LibTorch (KIND torch), of GoogleMock (test), or both (torch_test). All targets of a kind share one:
# docs/building.md. Folders whose programs include torch/torch.h, as users' do, set WEFT_PROGRAMS.
function(weft_use_pch target kind)
  if(WEFT_PROGRAMS AND kind STREQUAL "torch")
    set(kind program)
  endif()
  set(pch weft_${kind}_pch)
  if(NOT TARGET ${pch})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${pch}.cc CONTENT "")
    add_library(${pch} STATIC EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${pch}.cc)
    target_link_libraries(${pch} PRIVATE weft_flags weft_warnings)
    if(kind MATCHES "torch|program")
      target_link_libraries(${pch} PRIVATE weft::torch)
      target_precompile_headers(${pch} PRIVATE <ATen/ATen.h> <torch/csrc/autograd/autograd.h>
                                <torch/csrc/distributed/c10d/Backend.hpp>
                                <torch/csrc/distributed/c10d/TCPStore.hpp> <torch/nn/module.h>
                                <torch/optim/optimizer.h>)
    endif()
    if(kind STREQUAL "program")
      target_link_libraries(${pch} PRIVATE CLI11::CLI11)
      target_precompile_headers(${pch} PRIVATE <torch/torch.h> <CLI/CLI.hpp>)
    endif()
    if(kind MATCHES test)
      target_link_libraries(${pch} PRIVATE GTest::gmock)
      target_precompile_headers(${pch} PRIVATE <gmock/gmock.h>)
    endif()
    # Libraries and executables share it, so executables are compiled like libraries.
    set_target_properties(${pch} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# weft_test(ROOM/FILE_test [TORCH] [ALONE] [OPTIMIZED] [SRCS file...] [DEPS target...] [RUNS target...]
#           LABEL unit|world|process|gpu [SMOKE SUITE.TEST])
#
# Registers tests/ROOM/FILE_test.cc. Files of one room and label share one executable; with ALONE the
# file gets its own. TORCH: uses LibTorch. OPTIMIZED: computes for long; all files of its executable are
# compiled like it. RUNS: executables that the test starts; it finds them under WEFT_BUILD_DIR; without
# LibTorch, a test whose programs need it is left out. SMOKE, only for label process: the one test of
# the file that tools/test.sh runs without --all. A process test without SMOKE runs always.
function(weft_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;ALONE;OPTIMIZED" "LABEL;SMOKE" "SRCS;DEPS;RUNS")
  weft_check_arguments("weft_test(${name})")
  if(NOT arg_LABEL MATCHES "^(unit|world|process|gpu)$")
    message(FATAL_ERROR "weft_test(${name}): LABEL is one of unit, world, process, gpu")
  endif()
  if(arg_SMOKE AND NOT arg_LABEL STREQUAL "process")
    message(FATAL_ERROR "weft_test(${name}): SMOKE is for the label process")
  endif()
  set(sources ${PROJECT_SOURCE_DIR}/tests/${name}.cc ${arg_SRCS})
  weft_register("${sources}")
  if(arg_TORCH AND NOT WEFT_WITH_TORCH)
    return()
  endif()
  foreach(program IN LISTS arg_RUNS)
    if(NOT TARGET ${program} AND NOT WEFT_WITH_TORCH)
      return()
    endif()
  endforeach()
  if(arg_LABEL STREQUAL "world")
    list(APPEND arg_DEPS weft::agent_world)  # in tests/support; it links both transports
  endif()

  cmake_path(GET name PARENT_PATH room)
  cmake_path(GET name FILENAME file)
  string(REPLACE "/" "_" folder ${room})
  set(target weft_${folder}_${arg_LABEL})
  if(arg_ALONE)
    set(target weft_${folder}_${file})
  elseif(arg_TORCH)
    string(APPEND target _torch_tests)
  else()
    string(APPEND target _tests)
  endif()
  if(TARGET ${target})
    target_sources(${target} PRIVATE ${sources})
    target_link_libraries(${target} PRIVATE ${arg_DEPS})
  else()
    add_executable(${target} ${sources})
    target_link_libraries(${target} PRIVATE weft_flags weft_warnings ${arg_DEPS} GTest::gmock GTest::gtest_main)
    target_include_directories(${target} PRIVATE ${WEFT_INCLUDE_DIR})
    target_compile_definitions(${target} PRIVATE WEFT_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                                 WEFT_BUILD_DIR="${PROJECT_BINARY_DIR}")
    if(arg_TORCH)
      target_link_libraries(${target} PRIVATE weft::torch)
      weft_use_pch(${target} torch_test)
    else()
      weft_use_pch(${target} test)
    endif()
    set_property(GLOBAL APPEND PROPERTY WEFT_TESTS ${target})
    set_property(TARGET ${target} PROPERTY WEFT_LABEL ${arg_LABEL})
    set_property(TARGET ${target} PROPERTY WEFT_FULL "${WEFT_FULL}")
    weft_note_quick(${target})
  endif()
  set_property(TARGET ${target} APPEND PROPERTY WEFT_FILES ${file})
  if(arg_SMOKE)
    set_property(TARGET ${target} APPEND PROPERTY WEFT_SMOKE ${arg_SMOKE})
  endif()
  if(arg_OPTIMIZED)
    weft_optimize(${target})
  endif()
  if(arg_RUNS)
    add_dependencies(${target} ${arg_RUNS})
  endif()
endfunction()

# Makes CTest's entries from what weft_test registered. To start one process per test would cost more
# than the tests themselves: 3,000 tests, 0.15 s each with LibTorch. Instead each executable has as
# many entries as it has test files, at most 4. Each entry runs one shard of the tests. GoogleTest
# deals them out by the variables below. The label `full` marks what only --all runs. The filters of
# SMOKE are arguments, so that an environment's GTEST_FILTER (tools/test.sh sets one for tsan) does not
# turn a smoke entry into the whole executable.
function(weft_add_test_entries)
  get_property(targets GLOBAL PROPERTY WEFT_TESTS)
  foreach(target IN LISTS targets)
    get_target_property(label ${target} WEFT_LABEL)
    get_target_property(files ${target} WEFT_FILES)
    get_target_property(smoke ${target} WEFT_SMOKE)
    get_target_property(full ${target} WEFT_FULL)
    list(LENGTH files shards)
    if(label STREQUAL "unit")
      set(shards 1)
    elseif(shards GREATER 4)
      set(shards 4)
    endif()
    string(REGEX REPLACE "^weft_|_tests$" "" entry ${target})
    weft_test_properties(${label} properties)
    set(filter "")
    if(smoke)
      list(JOIN smoke ":" smoke)
      add_test(NAME ${entry}_smoke COMMAND ${target} --gtest_filter=${smoke})
      set_tests_properties(${entry}_smoke PROPERTIES ${properties})
      set(filter --gtest_filter=-${smoke})
    endif()
    foreach(shard RANGE 1 ${shards})
      set(name ${entry})
      if(shards GREATER 1)
        set(name ${entry}_${shard}of${shards})
      endif()
      math(EXPR index "${shard} - 1")
      add_test(NAME ${name} COMMAND ${target} ${filter})
      set_tests_properties(${name} PROPERTIES ${properties}
                           ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${index}")
      if(smoke OR full)
        set_property(TEST ${name} APPEND PROPERTY LABELS full)
      endif()
    endforeach()
  endforeach()
endfunction()

# weft_fuzz(FOLDER/NAME [TORCH] [DEPS target...])
#
# Makes NAME_fuzz from FOLDER/NAME_fuzz.cc. With WEFT_FUZZING it is libFuzzer's, and tools/fuzz.sh runs
# it; else a test runs it over tests/fuzz/corpus/NAME.
function(weft_fuzz path)
  cmake_path(GET path FILENAME name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "DEPS")
  weft_check_arguments("weft_fuzz(${name})")
  set(torch "")
  if(arg_TORCH)
    set(torch TORCH)
  endif()
  set(target ${name}_fuzz)
  weft_executable(${target} ${torch} SRCS ${CMAKE_CURRENT_SOURCE_DIR}/${path}_fuzz.cc
                  DEPS weft::fuzz_support ${arg_DEPS})
  if(NOT TARGET ${target})
    return()
  endif()
  if(WEFT_FUZZING)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    add_dependencies(weft_fuzz_targets ${target})
  else()
    target_link_libraries(${target} PRIVATE weft::fuzz_replay)
    weft_command_test(fuzz/${name} LABEL unit
                      COMMAND ${target} ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
  endif()
endfunction()

# weft_command_test(NAME LABEL unit|world|process|gpu [FULL] COMMAND command... [EXPECT regex])
#
# Registers a program as a test. It passes if the exit code is 0 and, with EXPECT, the output matches.
# FULL: only tools/test.sh --all runs it. A folder that sets WEFT_FULL marks all its tests so.
function(weft_command_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "FULL" "LABEL;EXPECT" "COMMAND")
  weft_check_arguments("weft_command_test(${name})")
  if(arg_EXPECT)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} "-DEXPECT=${arg_EXPECT}"
             -P ${PROJECT_SOURCE_DIR}/cmake/run_and_match.cmake -- ${arg_COMMAND})
  else()
    add_test(NAME ${name} COMMAND ${arg_COMMAND})
  endif()
  weft_test_properties(${arg_LABEL} properties)
  set_tests_properties(${name} PROPERTIES ${properties})
  if(arg_FULL OR WEFT_FULL)
    set_property(TEST ${name} APPEND PROPERTY LABELS full)
  endif()
endfunction()

# The timeouts are those of a whole entry, far above what it takes.
function(weft_test_properties label result)
  set(timeout_unit 120)
  set(timeout_world 300)
  set(timeout_process 600)
  set(timeout_gpu 300)
  set(timeout ${timeout_${label}})
  if(WEFT_SANITIZE)
    math(EXPR timeout "${timeout} * 4")
  endif()
  set(properties LABELS ${label} TIMEOUT ${timeout})
  if(label STREQUAL "gpu")
    list(APPEND properties RUN_SERIAL ON)
  endif()
  set(${result} ${properties} PARENT_SCOPE)
endfunction()

# A test file that no target builds would look green for ever. So it fails the configuration.
function(weft_check_registered)
  if(NOT WEFT_BUILD_TESTS)
    return()
  endif()
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*_test.cc
       ${PROJECT_SOURCE_DIR}/tests/*_fuzz.cc)
  get_property(registered GLOBAL PROPERTY WEFT_REGISTERED)
  list(REMOVE_ITEM files ${registered})
  if(files)
    list(JOIN files "\n  " files)
    if(WEFT_ALLOW_UNREGISTERED)
      set(severity WARNING)
    else()
      set(severity FATAL_ERROR)
    endif()
    message(${severity} "Not registered with weft_test or weft_fuzz in any CMakeLists.txt:\n  ${files}\n"
                        "(while you are writing one: -DWEFT_ALLOW_UNREGISTERED=ON)")
  endif()
endfunction()
