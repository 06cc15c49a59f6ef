# Finds libgd, which draws the pictures of the examples. Defines the target GD::GD.
find_path(GD_INCLUDE_DIR gd.h)
find_library(GD_LIBRARY gd)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(GD REQUIRED_VARS GD_LIBRARY GD_INCLUDE_DIR)
mark_as_advanced(GD_INCLUDE_DIR GD_LIBRARY)
if(GD_FOUND AND NOT TARGET GD::GD)
  add_library(GD::GD UNKNOWN IMPORTED)
  set_target_properties(GD::GD PROPERTIES IMPORTED_LOCATION ${GD_LIBRARY}
                                          INTERFACE_INCLUDE_DIRECTORIES ${GD_INCLUDE_DIR})
endif()
