# The compiler of `make wheel`: Zig's clang. It brings the headers and symbols of a C library as old
# as it is asked for, and links its own C++ runtime into what it makes.
#
# tools/make_wheel.py sets GRAMARY_ZIG (the program), GRAMARY_ZIG_TARGET (aarch64-linux-gnu.2.28) and
# GRAMARY_ZIG_INCLUDE (a folder of headers, or nothing).
set(zig "$ENV{GRAMARY_ZIG}")
set(target "$ENV{GRAMARY_ZIG_TARGET}")

string(REGEX MATCH "^[^-]+" processor "${target}")
if(NOT processor STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
  set(CMAKE_SYSTEM_NAME Linux)
  set(CMAKE_SYSTEM_PROCESSOR "${processor}")
endif()

set(CMAKE_CXX_COMPILER "${zig}" c++ -target "${target}")
set(CMAKE_CXX_ARCHIVE_CREATE "\"${zig}\" ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "\"${zig}\" ar q <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "\"${zig}\" ranlib <TARGET>")

# nanobind 3.1 uses stderr and relies on Python's full header, or on GCC's library, for stdio.h.
set(CMAKE_CXX_FLAGS_INIT "-include stdio.h")
if(NOT "$ENV{GRAMARY_ZIG_INCLUDE}" STREQUAL "")
  string(APPEND CMAKE_CXX_FLAGS_INIT " \"-isystem$ENV{GRAMARY_ZIG_INCLUDE}\"")
endif()

# C libraries before 2.40 may lose vector registers in a call for a thread's variables by this
# dialect, which nanobind would choose (glibc bug 31372).
set(NB_HAS_MTLS_GNU2 OFF CACHE BOOL "")
