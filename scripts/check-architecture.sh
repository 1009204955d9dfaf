#!/usr/bin/env bash
# Keeps data flowing one way: which module may use which, and which crate belongs to which module.
#
#     main -> cli -> mount -> view -> window -> store -> codec
#                             |  \-> batch        (layouts, encoders)
#                             \----> order        (integers only)
#
# Test modules (from `#[cfg(test)] mod` on, and files named tests.rs or *_tests.rs) may use anything. Exit code 1 if a line breaks a rule.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

# Modules that a module may name as crate::X.
declare -A may_use=(
    [num]=""
    [dtype]="num"
    [order]="dtype num"
    [codec]="dtype num"
    [store]="codec dtype num"
    [batch]="store order dtype num"
    [window]="store codec batch order dtype num"
    [view]="window batch store order dtype num"
    [mount]="view window dtype num"
    [cli]="mount view window batch store codec order dtype num"
    [main]="cli"
    [lib]="*"
)

# Patterns that may occur only below the given modules (extended regular expressions, matched against code).
only_in=(
    'mount|fuser[ :;{]|the FUSE library'
    'store|use (::)?(hdf5|hdf5_sys|zarrs)[:; ]|hdf5(_sys)?::(File|Group|Dataset|Error|h5|types)|zarrs::|HDF5 and zarr'
    'cli|(^|[^:_[:alnum:]])(clap|indicatif|anyhow)::|the command line'
)

# Patterns that may not occur in a module.
never_in=(
    'order|std::(fs|io|net|time|thread|process|env)|I/O, clocks and threads'
    'store|thread::(spawn|scope|Builder)|rayon::|crossbeam_channel::|threads'
    'codec|std::(fs|net|thread|time)|I/O, clocks and threads'
    'batch|(^|[^_[:alnum:]])Store([^_[:alnum:]]|$)|reading a store'
    'batch|std::fs|I/O'
    'view|std::fs|I/O'
)

# code FILE: its lines as FILE:NUMBER:TEXT without comments, up to the test module.
code() {
    awk -v file="$1" '
        /^[[:space:]]*#\[cfg\(test\)\]/ { held = 1; next }
        held && /^[[:space:]]*(pub(\([a-z]+\))?[[:space:]]+)?mod[[:space:]]+[a-z_]+[[:space:]]*\{/ { exit }
        { held = 0 }
        /^[[:space:]]*\/\// { next }
        { sub(/[[:space:]]\/\/.*/, ""); print file ":" FNR ":" $0 }' "$1"
}

failed=0
report() {
    printf '%s\n    %s\n' "$2" "$1" >&2
    failed=1
}

module_of() {
    local path=${1#src/}
    path=${path%%/*}
    printf '%s' "${path%.rs}"
}

# A nested `use crate::{a, b::{..}}` is read name by name: rustfmt keeps `crate::{` groups rare, and a brace list of modules
# is split at its top level.
uses() {
    code "$1" | grep -oE '^[^:]+:[0-9]+:|crate::[a-z_0-9]+|crate::\{[^}]*' | awk '
        /^[^:]+:[0-9]+:$/ { place = $0; next }
        /^crate::\{/ { sub(/^crate::\{/, ""); n = split($0, names, /,[[:space:]]*/)
            for (i = 1; i <= n; i++) { sub(/::.*/, "", names[i]); gsub(/[[:space:]]/, "", names[i]); if (names[i] ~ /^[a-z]/) print place names[i] }
            next }
        { sub(/^crate::/, ""); print place $0 }'
}

while IFS= read -r file; do
    case $file in */tests.rs | */*_tests.rs | */tests/*) continue ;; esac
    module=$(module_of "$file")
    if [ -z "${may_use[$module]+known}" ]; then
        report "module $module has no entry in scripts/check-architecture.sh" "$file"
        continue
    fi
    while IFS= read -r line; do
        used=${line##*:}
        if [ "$used" = "$module" ] || [ "${may_use[$module]}" = "*" ]; then continue; fi
        # Macros and constants at the crate root are not modules.
        if [ ! -e "src/$used.rs" ] && [ ! -d "src/$used" ]; then continue; fi
        case " ${may_use[$module]} " in
        *" $used "*) ;;
        *) report "$module may not use crate::$used" "${line%:*}" ;;
        esac
    done < <(uses "$file")
    for rule in "${only_in[@]}"; do
        owner=${rule%%|*} what=${rule##*|} pattern=${rule#*|}
        pattern=${pattern%|*}
        [ "$module" != "$owner" ] || continue
        while IFS= read -r line; do report "$what belongs to src/$owner" "$line"; done < <(code "$file" | grep -E "^[^:]+:[0-9]+:.*($pattern)" || true)
    done
    for rule in "${never_in[@]}"; do
        owner=${rule%%|*} what=${rule##*|} pattern=${rule#*|}
        pattern=${pattern%|*}
        [ "$module" = "$owner" ] || continue
        while IFS= read -r line; do report "src/$owner must be free of: $what" "$line"; done < <(code "$file" | grep -E "^[^:]+:[0-9]+:.*($pattern)" || true)
    done
done < <(find src -name '*.rs' | sort)

[ "$failed" = 0 ] || die "data must flow one way (see the comment at the top)"
say "architecture: $(find src -name '*.rs' | wc -l) files follow the rules"
