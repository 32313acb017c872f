# Sourced by tests/run.sh and train/quickstart.sh: installs what the build needs, and builds.
# Sets HF_ROOT (the clone) and HF_BUILD (its build folder).
#
# Needs Debian 12 or Ubuntu 24.04, as root or with sudo, and the system's package registry;
# nothing is installed where everything is there already.

HF_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HF_BUILD=${HF_BUILD:-$HF_ROOT/build}
HF_PACKAGES=(gcc g++ libc6-dev make cmake pkg-config libdnnl-dev libhdf5-dev hdf5-tools libzstd-dev
    libxxhash-dev libcjson-dev libyaml-dev libpcre2-dev libcurl4-openssl-dev libssl-dev libexpat1-dev
    libsentencepiece-dev libcriterion-dev bible-kjv)

hf_say() {
    printf '== %s\n' "$*"
}

hf_as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        echo "holdfast: cannot install packages: neither root nor sudo; install: ${HF_PACKAGES[*]}" >&2
        return 1
    fi
}

# Installs the missing ones of the named packages; says nothing when none is missing.
hf_install() {
    local missing=() package
    for package in "$@"; do
        if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
            missing+=("$package")
        fi
    done
    if [ ${#missing[@]} = 0 ]; then
        return 0
    fi
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "holdfast: cannot install packages: no apt-get; the build needs: ${missing[*]}" >&2
        return 1
    fi
    hf_say "installing ${missing[*]}"
    hf_as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    hf_as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >"/tmp/holdfast-apt.$$" 2>&1 || {
        tail -n 20 "/tmp/holdfast-apt.$$" >&2
        rm -f "/tmp/holdfast-apt.$$"
        echo "holdfast: cannot install: ${missing[*]}" >&2
        return 1
    }
    rm -f "/tmp/holdfast-apt.$$"
}

# hf_build [cmake options]: configures and builds everything.
hf_build() {
    hf_say "building in $HF_BUILD"
    mkdir -p "$HF_BUILD"
    cmake -S "$HF_ROOT" -B "$HF_BUILD" "$@" >"$HF_BUILD/configure.log" 2>&1 || {
        tail -n 30 "$HF_BUILD/configure.log" >&2
        return 1
    }
    cmake --build "$HF_BUILD" -j "$(nproc)" >"$HF_BUILD/build.log" 2>&1 || {
        grep -E -A 5 'error|Error' "$HF_BUILD/build.log" | head -n 60 >&2
        return 1
    }
}
