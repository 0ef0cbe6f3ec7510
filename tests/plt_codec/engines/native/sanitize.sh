#!/bin/sh
# Runs the tests of the compiled engine on a build with AddressSanitizer and UndefinedBehaviorSanitizer.
# Needs gcc and an environment in which pytest finds pltz; test_sanitize.py runs it:
#   sh tests/plt_codec/engines/native/sanitize.sh [--build | pytest arguments]
# SANITIZED names a folder for the build, which is used again. --build builds alone.
set -eu
cd "$(dirname "$0")/../../../.."
cc=${CC:-gcc} compiling=
if [ -n "${SANITIZED:-}" ]; then
    build=$SANITIZED
else
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
fi
if [ ! -e "$build/_native.so" ]; then
    for source in plt_codec/engines/native/*.c; do
        name=$(basename "$source" .c)
        [ "$name" = module ] && continue # the Python module: coder.py calls the functions alone
        "$cc" -O1 -g1 -std=c11 -Wall -Wextra -Werror -fPIC -pthread -fsanitize=address,undefined \
            -fno-sanitize-recover=all -fno-omit-frame-pointer -c "$source" -o "$build/$name.o" &
        compiling="$compiling $!"
    done
    for one in $compiling; do wait "$one"; done
    "$cc" -shared -pthread -fsanitize=address,undefined "$build"/*.o -lm -o "$build/_native.so"
fi
[ "${1:-}" = --build ] && exit
# Leaks are not looked for: the interpreter's own would drown ours.
LD_PRELOAD=$("$cc" -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 \
    PLTZ_NATIVE="$build/_native.so" pytest tests/plt_codec/engines/native/test_coder.py -q -p no:cacheprovider "$@"
