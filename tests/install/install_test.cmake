# CTest runs this script (CMakeLists.txt in this folder). If a step fails, the test fails.
function(step)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)

set(flags "")
if(SANITIZE)
  set(flags -fsanitize=${SANITIZE})
endif()
step(${CMAKE_COMMAND} -G Ninja -S ${CONSUMER} -B ${SCRATCH}/build
     -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix
     -DCMAKE_CXX_COMPILER=${COMPILER}
     -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}
     -DCMAKE_CXX_FLAGS=${flags}
     -DWITH_TORCH=${WITH_TORCH}
     -DREADME=${README})
step(${CMAKE_COMMAND} --build ${SCRATCH}/build)
step(${SCRATCH}/build/consumer)
if(WITH_TORCH)
  step(${SCRATCH}/build/torch_consumer)
  # One linked with the static libraries, and, if it was built, one with libweft.so.
  file(GLOB programs ${SCRATCH}/build/*readme_program)
  foreach(program IN LISTS programs)
    execute_process(COMMAND ${SCRATCH}/prefix/bin/weft_launch --nproc-per-node 2 -- ${program}
                    COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE printed ECHO_OUTPUT_VARIABLE)
    if(NOT printed MATCHES "loss 64\n.*loss 29.5936\n.*loss 13.6841\n")
      message(FATAL_ERROR "the README's program printed: ${printed}")
    endif()
  endforeach()
endif()
