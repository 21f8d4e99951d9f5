#!/bin/sh
# Builds the software CUDA device into a folder: `build.sh FOLDER`. Set TG_CUDA_LIBRARIES to that folder to use it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
cxx=${CXX:-g++}
cp "$here/kernel.h" "$out/"
"$cxx" -std=c++17 -O2 -g1 -Wall -Wextra -fPIC -shared -fno-strict-aliasing -fvisibility=hidden -U_FORTIFY_SOURCE \
  -Wl,-soname,libsoftdevice.so -Wl,-z,nodelete -o "$out/libsoftdevice.so" \
  "$here"/block.cpp "$here"/cublaslt.cpp "$here"/driver.cpp "$here"/faults.cpp "$here"/meeting.cpp "$here"/memory.cpp \
  "$here"/module.cpp "$here"/nccl.cpp "$here"/nvrtc.cpp "$here"/stream.cpp -ldl -lpthread
# One library behind the names that programs look for.
for name in cuda nvrtc cublas cublasLt; do
  "$cxx" -shared -o "$out/lib$name.so" "-Wl,-soname,lib$name.so" -x c /dev/null \
    -Wl,--no-as-needed -L"$out" -lsoftdevice -Wl,-rpath,'$ORIGIN'
done
# NCCL in a folder of its own, so that there is a device without it, too.
mkdir -p "$out/nccl"
"$cxx" -shared -o "$out/nccl/libnccl.so" "-Wl,-soname,libnccl.so" -x c /dev/null \
  -Wl,--no-as-needed -L"$out" -lsoftdevice -Wl,-rpath,'$ORIGIN/..'
