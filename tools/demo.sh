#!/usr/bin/env bash
# A Qwen4-Exp model writes text while its n-gram table stays on disk, and again with all rows in
# memory: every token and every logit has to be the same.
set -euo pipefail
cd "$(dirname "$0")/.."

# A model this small is computed fastest by one thread.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
model=models/tiny
prompt='And it came to pass in those days, that the king'

# show COMMAND...: prints the command as one would type it, then runs it.
show() {
    local word
    printf '\n$'
    for word in "$@"; do
        case $word in
        *[!A-Za-z0-9_./=-]*) printf " '%s'" "$word" ;;
        *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    ".venv/bin/$1" "${@:2}"
}

show gramary inspect "$model"
show gramary generate --model "$model" --placement disk --compare resident \
    --max-new-tokens 80 --temperature 0.7 --seed 1 --prompt "$prompt"

cat <<'TEXT'

The rows of the n-gram table were read from the model's own file as they were needed; none was
loaded before. The same run with all rows in memory gave the same tokens and the same logits.
To see what this machine can do, try: .venv/bin/gramary doctor
TEXT
