# Debian packages, made by deploy/debian/make_packages.sh:
#
#   weft-tools    weft_launch, weft_cert and weft_pipeline, which need no LibTorch
#   libweft-dev   headers, static libraries and the files of find_package(weft)
#   weft-doc      README.md and docs/
#
# LibTorch is no Debian package. A program says where it lies: -DWEFT_TORCH_DIR=.
foreach(page README.md docs deploy store/README.md rpc/README.md)
  set(source ${PROJECT_SOURCE_DIR}/${page})
  cmake_path(GET page PARENT_PATH folder)
  if(IS_DIRECTORY ${source})
    install(DIRECTORY ${source} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/weft-doc
            COMPONENT doc EXCLUDE_FROM_ALL)
  else()
    install(FILES ${source} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/weft-doc/${folder}
            COMPONENT doc EXCLUDE_FROM_ALL)
  endif()
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL tools dev doc)
set(CPACK_PACKAGE_NAME weft)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The Weft developers <weft@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
                                                GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME weft-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_TOOLS_DESCRIPTION
    "launcher, certificates and schedules for training with Weft
 Weft trains models whose parts live on different workers. This package has
 weft_launch, which starts the processes of a job on one or several machines,
 weft_cert, which makes certificates for workers, and weft_pipeline, which
 checks and draws schedules of pipelines.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libweft-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
    "libgrpc++-dev, protobuf-compiler-grpc, libprotobuf-dev, protobuf-compiler, libabsl-dev, zlib1g-dev, libssl-dev, nlohmann-json3-dev, libxxhash-dev")
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS "weft-tools, cmake, g++")
set(CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS weft-doc)
set(CPACK_COMPONENT_DEV_DESCRIPTION
    "C++ framework for training models across workers, static libraries
 Weft has typed remote calls, remote references, distributed autograd,
 optimizers that step where the parameters live, DistributedDataParallel and
 pipelines. It needs LibTorch 2.11, which is no Debian package.")

set(CPACK_DEBIAN_DOC_PACKAGE_NAME weft-doc)
set(CPACK_DEBIAN_DOC_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_DOC_PACKAGE_ARCHITECTURE all)
set(CPACK_COMPONENT_DOC_DESCRIPTION
    "documentation of the Weft framework
 Guides, pages on design and protocols, and scripts for SLURM, mpirun and
 Kubernetes. The pages are Markdown.")

# Each package says who has the rights, and what has changed.
find_program(WEFT_GZIP gzip)
set(changelog ${PROJECT_BINARY_DIR}/changelog.Debian.gz)
if(WEFT_GZIP)
  execute_process(COMMAND ${WEFT_GZIP} -9nc ${PROJECT_SOURCE_DIR}/deploy/debian/changelog
                  OUTPUT_FILE ${changelog})
endif()
foreach(component tools dev doc)
  string(TOUPPER ${component} upper)
  set(folder ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/debian/copyright ${changelog} DESTINATION ${folder}
          COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
include(CPack)
