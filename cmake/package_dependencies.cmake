# cpack reads this file before it makes the .deb: adds the packages of the libraries to which CPACK_TUTTI_BINARIES are
# linked. CPack can do this itself, but would examine each file of the package, among them 10,000 headers of LibTorch.
set(folder ${CPACK_TUTTI_BUILD}/package-dependencies)
file(WRITE ${folder}/debian/control "Source: tutti\n\nPackage: tutti\nArchitecture: any\n")
list(TRANSFORM CPACK_TUTTI_PRIVATE_DIRS PREPEND -l OUTPUT_VARIABLE private)
execute_process(COMMAND dpkg-shlibdeps -O --ignore-missing-info --warnings=0 ${private} ${CPACK_TUTTI_BINARIES}
  WORKING_DIRECTORY ${folder} OUTPUT_VARIABLE found ERROR_VARIABLE errors RESULT_VARIABLE result)
string(REGEX MATCH "shlibs:Depends=([^\n]+)" line "${found}")
if(NOT result EQUAL 0 OR NOT line)
  message(FATAL_ERROR "dpkg-shlibdeps (of the package dpkg-dev) has not found the dependencies: ${errors}")
endif()
list(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ${CMAKE_MATCH_1})
list(JOIN CPACK_DEBIAN_PACKAGE_DEPENDS ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
