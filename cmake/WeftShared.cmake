# libweft.so: all rooms in one shared library, for programs that link weft::shared instead of
# weft::weft. A program must not link both. The library of version X.Y.Z is libweft.so.X.Y: programs
# that were linked with it need no new link while X.Y stays the same, which tools/compare_abi.sh
# checks.
get_property(rooms GLOBAL PROPERTY WEFT_LIBRARIES)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/weft_shared.cc CONTENT "")
add_library(weft_shared SHARED ${PROJECT_BINARY_DIR}/weft_shared.cc)
add_library(weft::shared ALIAS weft_shared)
foreach(room IN LISTS rooms)
  get_target_property(target ${room} ALIASED_TARGET)
  get_target_property(type ${target} TYPE)
  # Objects, not archives: what registers itself before main() must be there too.
  if(type STREQUAL STATIC_LIBRARY)
    target_sources(weft_shared PRIVATE $<TARGET_OBJECTS:${target}>)
  endif()
  # The libraries that the rooms need, and of them those that their headers need.
  foreach(scope LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
    get_target_property(linked ${target} ${scope})
    list(FILTER linked EXCLUDE REGEX "^weft::|NOTFOUND|^\\$<")
    list(REMOVE_DUPLICATES linked)
    if(scope STREQUAL LINK_LIBRARIES)
      target_link_libraries(weft_shared PRIVATE ${linked})
    else()
      target_link_libraries(weft_shared PUBLIC ${linked})
    endif()
  endforeach()
endforeach()
set_target_properties(weft_shared PROPERTIES
  OUTPUT_NAME weft
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  EXPORT_NAME shared)
target_compile_features(weft_shared PUBLIC cxx_std_20)
target_include_directories(weft_shared PUBLIC $<BUILD_INTERFACE:${WEFT_INCLUDE_DIR}>
                           $<BUILD_INTERFACE:${WEFT_GENERATED_DIR}>)
target_link_libraries(weft_shared PRIVATE $<BUILD_INTERFACE:weft_flags>)
if(WEFT_WITH_TORCH)
  target_link_libraries(weft_shared PUBLIC weft::torch)
endif()
install(TARGETS weft_shared EXPORT weftTargets COMPONENT dev
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
