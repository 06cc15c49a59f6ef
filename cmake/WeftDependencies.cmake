# Finds everything that Weft is built with. It lists all missing packages at once, each with its
# Debian package.

set(WEFT_MISSING "")

# weft_find(PACKAGE DEBIAN_PACKAGE [find_package arguments ...])
macro(weft_find package debian)
  find_package(${package} QUIET ${ARGN})
  if(NOT ${package}_FOUND)
    list(APPEND WEFT_MISSING "${package}: Debian package ${debian}")
  endif()
endmacro()

weft_find(Threads libc6-dev)
weft_find(ZLIB zlib1g-dev)
weft_find(OpenSSL libssl-dev)
find_path(XXHASH_INCLUDE_DIR xxhash.h)  # used inline, not linked
if(NOT XXHASH_INCLUDE_DIR)
  list(APPEND WEFT_MISSING "xxhash.h: Debian package libxxhash-dev")
endif()
weft_find(absl libabsl-dev CONFIG)
weft_find(Protobuf "libprotobuf-dev and protobuf-compiler" MODULE)
if(Protobuf_FOUND AND NOT Protobuf_PROTOC_EXECUTABLE)
  list(APPEND WEFT_MISSING "protoc: Debian package protobuf-compiler")
endif()
weft_find(gRPC libgrpc++-dev CONFIG)
weft_find(nlohmann_json nlohmann-json3-dev CONFIG)
weft_find(CLI11 libcli11-dev CONFIG)
if(WEFT_BUILD_TESTS)
  weft_find(GTest "libgtest-dev and libgmock-dev" CONFIG)
endif()
if(WEFT_BUILD_EXAMPLES)
  weft_find(GD libgd-dev MODULE)
endif()

if(WEFT_WITH_TORCH)
  set(torch_dir ${CMAKE_CURRENT_SOURCE_DIR}/.deps/site/torch)
  if(WEFT_WITH_CUDA)
    file(GLOB found ${CMAKE_CURRENT_SOURCE_DIR}/.deps/oracles/lib/python3*/site-packages/torch)
    list(APPEND found ${CMAKE_CURRENT_SOURCE_DIR}/.deps/oracles/torch)
    list(GET found 0 torch_dir)
  endif()
  set(WEFT_TORCH_DIR ${torch_dir}
      CACHE PATH "LibTorch 2.11: the folder that holds include/ and lib/")
  include(WeftTorch)
  if(WEFT_TORCH_PROBLEM)
    list(APPEND WEFT_MISSING "${WEFT_TORCH_PROBLEM}")
  endif()
  # Headers of the Gloo inside libtorch_cpu, for the one file that needs them. Gloo's own library is
  # never linked.
  set(WEFT_GLOO_DIR ${CMAKE_CURRENT_SOURCE_DIR}/.deps/gloo/usr/include
      CACHE PATH "Headers of Gloo: the folder that holds gloo/")
  if(NOT EXISTS ${WEFT_GLOO_DIR}/gloo/context.h)
    list(APPEND WEFT_MISSING "gloo/context.h: headers of Debian's libgloo-dev, in ${WEFT_GLOO_DIR}")
  endif()
endif()

if(WEFT_MISSING)
  list(JOIN WEFT_MISSING "\n  " missing)
  message(FATAL_ERROR "Weft cannot be built yet. Missing:\n  ${missing}\n"
                      "tools/setup.sh installs all of them.")
endif()
