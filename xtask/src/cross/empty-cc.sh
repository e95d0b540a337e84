#!/bin/sh
# A C compiler whose objects are empty, for builds that end with metadata.
out=
while [ $# -gt 0 ]; do
  case "$1" in
    -E) echo clang; exit 0 ;;
    --version | -v | -dumpversion) echo "clang version 20.0.0"; exit 0 ;;
    -o) out="$2"; shift ;;
    -o*) out="${1#-o}" ;;
  esac
  shift
done
if [ -n "$out" ]; then : >"$out"; fi
