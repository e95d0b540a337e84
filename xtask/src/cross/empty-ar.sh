#!/bin/sh
# The archiver that goes with the compiler beside it.
for file in "$@"; do
  case "$file" in
    *.a | *.lib) printf '!<arch>\n' >"$file" ;;
  esac
done
