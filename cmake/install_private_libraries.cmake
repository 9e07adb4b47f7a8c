# Puts the libraries that `libraries` need and the system does not have into `folder` below the prefix, and LibTorch's
# headers (`torch_headers`; empty if they are the system's) into its subfolder `include`. `how` selects links (tutti_links)
# or copies (tutti_copies), with the licenses in `licenses_folder`. `cross`: they are for another kind of machine, so the system's
# are in a folder below which is another usr/lib (scripts/arm), and those of C and C++ are not among them. Set by
# cmake/TuttiInstall.cmake.
cmake_policy(VERSION 3.24)
set(system "^/lib" "^/usr/lib")
set(cross_compilers)
if(cross)
  set(system "/usr/lib/[^/]+-linux-gnu/")
  set(cross_compilers PRE_EXCLUDE_REGEXES "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+)\\.so" "^ld-linux")
endif()
file(GET_RUNTIME_DEPENDENCIES LIBRARIES ${libraries}
  RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
  ${cross_compilers} POST_EXCLUDE_REGEXES ${system})
if(missing)
  message(FATAL_ERROR "These libraries were not found, which Tutti was built with: ${missing}")
endif()
if(how STREQUAL tutti_copies AND cuda AND torch_headers)
  message(FATAL_ERROR "A package cannot contain a LibTorch with CUDA: some of its libraries are only looked for when it runs. "
    "Configure with -DTUTTI_WITH_CUDA=OFF, or use `cmake --install`, which links to the LibTorch that is here.")
endif()

set(to ${CMAKE_INSTALL_PREFIX}/${folder})
# An installation of an earlier build may have libraries here that are not needed any more.
file(REMOVE_RECURSE $ENV{DESTDIR}${to})
if(how STREQUAL tutti_copies)
  if(found)
    file(INSTALL ${found} DESTINATION ${to} FOLLOW_SYMLINK_CHAIN)
  endif()
  if(torch_headers)
    file(INSTALL ${torch_headers}/ DESTINATION ${to}/include)
    # The licenses of PyPI's LibTorch, and of the libraries to which it is linked, are beside it.
    file(GLOB licenses ${torch_headers}/../../*.dist-info)
    file(INSTALL ${licenses} DESTINATION ${CMAKE_INSTALL_PREFIX}/${licenses_folder})
  endif()
else()
  if(found OR torch_headers)
    file(MAKE_DIRECTORY $ENV{DESTDIR}${to})
  endif()
  foreach(library ${found})
    get_filename_component(name ${library} NAME)
    message(STATUS "Linking: ${to}/${name} -> ${library}")
    file(CREATE_LINK ${library} $ENV{DESTDIR}${to}/${name} SYMBOLIC)
  endforeach()
  if(torch_headers)
    file(CREATE_LINK ${torch_headers} $ENV{DESTDIR}${to}/include SYMBOLIC)
  endif()
endif()
