# cmake_versions.py: which versions find_package(evoformer ...) takes, and that it says so of a part that is missing.
# usage: cmake_versions.py BUILD-DIR
# Exit status 77, skipped, without CMake.
import os
import shutil
import sys
import tempfile

from prefix import environment, install, run

PROJECT = """\
cmake_minimum_required(VERSION 3.19)
project(versions LANGUAGES C)
find_package(evoformer REQUIRED)
string(REGEX MATCH "^([0-9]+)\\\\.([0-9]+)\\\\.([0-9]+)$" whole "${evoformer_VERSION}")
set(major "${CMAKE_MATCH_1}")
set(minor "${CMAKE_MATCH_2}")
set(patch "${CMAKE_MATCH_3}")
math(EXPR next_major "${major} + 1")
math(EXPR next_minor "${minor} + 1")
math(EXPR next_patch "${patch} + 1")
math(EXPR last_minor "${minor} - 1")
if(major EQUAL 0)
    set(older_minor NO) # an interface of its own
else()
    set(older_minor YES)
endif()

function(request wanted)
    unset(evoformer_DIR CACHE)
    find_package(evoformer ${ARGN} QUIET)
    if((evoformer_FOUND AND NOT wanted) OR (wanted AND NOT evoformer_FOUND))
        message(FATAL_ERROR "request '${ARGN}' of ${whole}: found ${evoformer_FOUND}, expected ${wanted}")
    endif()
    message(STATUS "request '${ARGN}': ${evoformer_FOUND}")
endfunction()

request(YES ${whole} EXACT)
request(YES ${major}.${minor})
request(YES ${major}.${minor}.${patch})
request(NO ${major}.${minor}.${next_patch})
request(NO ${major}.${next_minor})
request(NO ${next_major}.0)
if(minor GREATER 0)
    request(${older_minor} ${major}.${last_minor})
endif()
request(NO ${major}.${minor}.${next_patch} EXACT)
request(YES ${major}.${minor}...${next_major})
request(YES ${major}.0...<${major}.${next_minor})
request(NO ${major}.0...<${major}.${minor})
request(NO ${major}.${next_minor}...${next_major})
"""

BROKEN = """\
cmake_minimum_required(VERSION 3.19)
project(broken LANGUAGES C)
find_package(evoformer QUIET)
if(evoformer_FOUND OR NOT evoformer_NOT_FOUND_MESSAGE MATCHES "evoformer.h")
    message(FATAL_ERROR "found without its headers: '${evoformer_NOT_FOUND_MESSAGE}'")
endif()
"""


def configure(folder, name, text, env):
    os.mkdir(f"{folder}/{name}")
    with open(f"{folder}/{name}/CMakeLists.txt", "w", encoding="utf-8") as file:
        file.write(text)
    run(["cmake", "-S", f"{folder}/{name}", "-B", f"{folder}/{name}/build"], "cmake", env=env)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: cmake_versions.py BUILD-DIR")
    if shutil.which("cmake") is None:
        print("skipped: no cmake")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        prefix, _ = install(sys.argv[1], folder)
        env = {**environment("", folder), "CMAKE_PREFIX_PATH": prefix}
        configure(folder, "versions", PROJECT, env)
        os.remove(f"{prefix}/include/evoformer/evoformer.h")
        configure(folder, "broken", BROKEN, env)


main()
