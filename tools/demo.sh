#!/usr/bin/env bash
# A Qwen4-Exp model writes text while its n-gram table stays on disk, and again with all rows in
# memory: every token and every logit has to be the same.
set -euo pipefail
cd "$(dirname "$0")/.."

model=build/demo-model
prompt='It was the best of times, it was the worst of times, it was the age of wisdom, it was the'

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

if [ ! -e "$model/config.json" ] || [ tools/make_model.py -nt "$model" ]; then
    printf 'Making a small model with random weights in %s ...\n' "$model"
    rm -rf "$model" "$model.part"
    TRANSFORMERS_VERBOSITY=error .venv/bin/python tools/make_model.py "$model.part" \
        --codec fp8 --ngram-vocab-size-base 50000 >/dev/null 2>&1
    mv "$model.part" "$model"
fi

show gramary inspect "$model"
show gramary generate --model "$model" --placement disk --compare resident \
    --max-new-tokens 48 --prompt "$prompt"

cat <<'TEXT'

The rows of the n-gram table were read from the model's own files as they were needed; none was
loaded. The same run with all rows in memory gave the same tokens and the same logits, bit for bit.
(The weights are random, so the words mean nothing. Try: .venv/bin/gramary doctor)
TEXT
