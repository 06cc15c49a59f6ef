# Defines weft::torch, LibTorch 2.11 as found in WEFT_TORCH_DIR. Sets WEFT_TORCH_PROBLEM on failure.
#
# It does not use find_package(Torch): its include folder holds protobuf 3.13. Under -I or -isystem
# those headers shadow the protobuf that gRPC is built with. With -idirafter they never win. The
# defines are those that the wheel was built with. Without them c10d's class layouts differ from the
# library's.
#
# With WEFT_WITH_CUDA it uses the whole wheel, with NVIDIA's headers and libraries beside it, where
# pip puts them.
#
# libgloo, libtensorpipe and libuv must never be linked or loaded beside libtorch_cpu, because it
# exports the symbols of its own copies.

set(WEFT_TORCH_PROBLEM "")
foreach(file include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS ${WEFT_TORCH_DIR}/${file})
    set(WEFT_TORCH_PROBLEM
        "LibTorch 2.11: no ${WEFT_TORCH_DIR}/${file} (tools/setup.sh installs it into .deps/site, -DWEFT_TORCH_DIR= names another copy)")
    return()
  endif()
endforeach()

if(WEFT_WITH_CUDA)
  cmake_path(GET WEFT_TORCH_DIR PARENT_PATH site)
  foreach(file torch/lib/libtorch_cuda.so torch/lib/libc10_cuda.so nvidia/cu13/include/cuda_runtime_api.h
               nvidia/nccl/include/nccl.h)
    if(NOT EXISTS ${site}/${file})
      set(WEFT_TORCH_PROBLEM
          "LibTorch 2.11 with CUDA: no ${site}/${file} (tools/oracles.sh installs it into .deps/oracles, -DWEFT_TORCH_DIR= names another copy)")
      return()
    endif()
  endforeach()
endif()

add_library(weft_torch_cpu SHARED IMPORTED)
set_target_properties(weft_torch_cpu PROPERTIES IMPORTED_LOCATION ${WEFT_TORCH_DIR}/lib/libtorch_cpu.so)
add_library(weft_torch_c10 SHARED IMPORTED)
set_target_properties(weft_torch_c10 PROPERTIES IMPORTED_LOCATION ${WEFT_TORCH_DIR}/lib/libc10.so)

add_library(weft::torch INTERFACE IMPORTED)
target_link_libraries(weft::torch INTERFACE weft_torch_cpu weft_torch_c10)
target_compile_definitions(weft::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
target_compile_options(weft::torch INTERFACE
  "SHELL:-idirafter ${WEFT_TORCH_DIR}/include"
  "SHELL:-idirafter ${WEFT_TORCH_DIR}/include/torch/csrc/api/include")

if(WEFT_WITH_CUDA)
  foreach(name torch_cuda c10_cuda)
    add_library(weft_${name} SHARED IMPORTED)
    set_target_properties(weft_${name} PROPERTIES IMPORTED_LOCATION ${WEFT_TORCH_DIR}/lib/lib${name}.so)
    target_link_libraries(weft::torch INTERFACE weft_${name})
  endforeach()
  target_compile_definitions(weft::torch INTERFACE USE_C10D_NCCL WEFT_WITH_CUDA)
  target_compile_options(weft::torch INTERFACE
    "SHELL:-idirafter ${site}/nvidia/cu13/include"
    "SHELL:-idirafter ${site}/nvidia/nccl/include")
endif()
