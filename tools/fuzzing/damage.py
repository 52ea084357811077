"""Damage to files, decided by bytes: to their bytes, their JSON, their place, their checksums."""

from __future__ import annotations

import copy
import itertools
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from tools.fuzzing.choices import Choices

Files = dict[str, bytes | str]

NUMBERS = (0, 1, -1, 2, 3, 5, 7, 8, 16, 255, 4096, 2**31 - 1, 2**31, 2**32, 2**40, 2**48, 2**53)
NUMBERS += (2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**63), -(2**63) - 1)
VALUES: tuple[Any, ...] = (
    *NUMBERS, 1.5, 2.0, 1e308, -0.0, 1e-46, True, False, None, "", "x", "\u0000", "\ud800", "fp8",
    "bf16", "nvfp4", "F32", "F8_E4M3", "U8", "I64", "F4", [], {}, [0], [1, 2, 3], {"a": 1},
    "../a.safetensors", "/etc/passwd.safetensors", "a.safetensors", "a" * 5000,
)  # fmt: skip
SPLICES = (
    b"", b"\0", b"{", b"}", b"[", b"]", b'"', b",", b"\xff", b"\xef\xbb\xbf", b"NaN", b"Infinity",
    b"-Infinity", b"1e999", b"[" * 2000, b"{}" * 8, b'"a":1,', b'"a":1,"a":2,', b"9" * 5000, b"1.0",
)  # fmt: skip


def damage(files: Files, choices: Choices) -> Files:
    """Returns the files with up to four changes; none if the bytes are used up."""
    changed = dict(files)
    for _ in range(choices.integer(0, 4)):
        if not changed:
            break
        name = choices.pick(sorted(changed))
        choices.pick(CHANGES)(changed, name, choices)
    return changed


def _change_bytes(files: Files, name: str, choices: Choices) -> None:
    data = files[name]
    if isinstance(data, str):
        return
    # Half of the time near the start, where the headers are.
    top = len(data) if choices.integer(0, 1) else min(len(data), 1024)
    at = choices.integer(0, top)
    kind = choices.pick(("flip", "set", "insert", "cut", "truncate", "append", "repeat", "length"))
    if kind == "flip" and at < len(data):
        flipped = data[at] ^ (1 << choices.integer(0, 7))
        files[name] = data[:at] + bytes([flipped]) + data[at + 1 :]
    elif kind == "set":
        patch = choices.blob(choices.integer(1, 16))
        files[name] = data[:at] + patch + data[at + len(patch) :]
    elif kind == "insert":
        files[name] = data[:at] + choices.pick(SPLICES) + data[at:]
    elif kind == "cut":
        files[name] = data[:at] + data[at + choices.integer(1, 4096) :]
    elif kind == "truncate":
        files[name] = data[:at]
    elif kind == "append":
        files[name] = data + bytes(choices.pick((1, 7, 8, 4096)))
    elif kind == "repeat":
        files[name] = data[: at + 64] + data[at:]
    elif kind == "length":
        number = choices.pick(NUMBERS) & 0xFFFFFFFFFFFFFFFF
        files[name] = struct.pack("<Q", number) + data[8:]


def _change_json(files: Files, name: str, choices: Choices) -> None:
    data = files[name]
    if isinstance(data, str):
        return
    begin, end = _json_span(data)
    try:
        parsed = json.loads(data[begin:end])
    except (ValueError, RecursionError):
        return
    for _ in range(choices.integer(1, 3)):
        parsed = _change_value(parsed, choices)
    form = choices.pick(({}, {"separators": (",", ":"), "sort_keys": True}, {"indent": 1}))
    try:
        text = json.dumps(parsed, **form).encode()
    except (TypeError, ValueError, RecursionError):
        return
    files[name] = _with_json(data, begin, end, text, choices)


def _json_span(data: bytes) -> tuple[int, int]:
    """Returns where a file's JSON lies: all of it, a safetensors header, or a pack's metadata."""
    if data[:4] == b"GRAM" and len(data) >= 48:
        return 48, 48 + int.from_bytes(data[44:48], "little")
    if data[8:9] == b"{" and data[:1] != b"{":
        return 8, 8 + int.from_bytes(data[:8], "little")
    return 0, len(data)


def _with_json(data: bytes, begin: int, end: int, text: bytes, choices: Choices) -> bytes:
    if begin == 0:
        return text
    if begin == 8:
        text = text.ljust(choices.pick((0, end - begin)))
        return struct.pack("<Q", len(text)) + text + data[end:]
    header = min(int.from_bytes(data[12:16], "little"), len(data))
    body = data[:44] + struct.pack("<I", len(text)) + text
    return body.ljust(header - 8, b"\0")[: header - 8] + data[header - 8 :]


def _change_value(root: Any, choices: Choices) -> Any:
    places = list(itertools.islice(_places(root), 4096))
    if not places:
        return choices.pick(VALUES)
    holder, key = choices.pick(places)
    kind = choices.pick(("value", "delete", "swap", "rename", "nudge", "copy"))
    other_holder, other_key = choices.pick(places)
    if kind == "value":
        holder[key] = choices.pick(VALUES)
    elif kind == "delete":
        del holder[key]
    elif kind == "swap":
        # Copies: a value that holds itself would have no end.
        value = copy.deepcopy(holder[key])
        holder[key] = copy.deepcopy(other_holder[other_key])
        other_holder[other_key] = value
    elif kind == "copy":
        holder[key] = copy.deepcopy(other_holder[other_key])
    elif kind == "rename" and isinstance(holder, dict):
        taken = choices.pick(sorted(map(str, holder)))
        digits = str(choices.integer(0, 12))
        name = choices.pick((taken, key.replace("shard_0", "shard_00"), key + digits, "x" + key))
        name = choices.pick((name, key.replace("shard_1", f"shard_{digits}")))
        holder[name] = holder.pop(key)
    elif kind == "nudge" and type(holder[key]) is int:
        holder[key] += choices.pick((1, -1, 8, -8, 64, -64))
    return root


def _places(root: Any) -> Any:
    """Yields (container, key) of every value below a JSON value."""
    stack = [root]
    while stack:
        holder = stack.pop()
        keys = (
            holder
            if isinstance(holder, dict)
            else range(len(holder) if isinstance(holder, list) else 0)
        )
        for key in list(keys):
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                stack.append(holder[key])


def _change_file(files: Files, name: str, choices: Choices) -> None:
    kind = choices.pick(("delete", "empty", "rename", "copy", "swap", "link", "special"))
    other = choices.pick(sorted(files))
    fresh = choices.pick(
        ("model.safetensors", "c.safetensors", "model.safetensors.index.json", "config.json",
         "pytorch_model.bin", "table.pack", "z\x1b[2J.safetensors")
    )  # fmt: skip
    if kind == "delete":
        del files[name]
    elif kind == "empty":
        files[name] = b""
    elif kind == "rename":
        files[fresh] = files.pop(name)
    elif kind == "copy":
        files[fresh] = files[name]
    elif kind == "swap":
        files[name], files[other] = files[other], files[name]
    elif kind == "link":
        files[name] = choices.pick((other, "nowhere", name, ".", "/dev/zero", "/dev/null"))
    else:
        files[name] = choices.pick(("<folder>", "<pipe>"))


def _sign(files: Files, name: str, choices: Choices) -> None:
    """Changes a field of a pack, then makes its checksums right again: the header's, or all."""
    data = files[name]
    if isinstance(data, str) or data[:4] != b"GRAM" or len(data) < 64:
        return
    at, width = choices.pick(
        ((0, 0), (8, 4), (12, 4), (16, 8), (24, 8), (32, 4), (36, 4), (40, 4), (44, 4))
    )
    if width:
        number = int.from_bytes(data[at : at + width], "little") + choices.pick((1, -1, 4096, 8))
        number = choices.pick((number, choices.pick(NUMBERS))) % (1 << (8 * width))
        data = data[:at] + number.to_bytes(width, "little") + data[at + width :]
    files[name] = sign_pack(data, every_block=bool(choices.integer(0, 1)))


def sign_pack(data: bytes, *, every_block: bool) -> bytes:
    """Returns a pack with the checksum of its header, and if asked of its blocks, made right."""
    header, block = (int.from_bytes(data[at : at + 4], "little") for at in (12, 36))
    length = int.from_bytes(data[44:48], "little")
    if not 64 <= header <= len(data):
        return data
    digest = xxhash.xxh64_intdigest(data[: header - 8]).to_bytes(8, "little")
    signed = bytearray(data[: header - 8] + digest + data[header:])
    if every_block and 4096 <= block <= 1 << 20:
        seed = xxhash.xxh64_intdigest(bytes(signed[48 : 48 + length]))
        for start in range(header, len(signed) - block + 1, block):
            content = bytes(signed[start : start + block - 8])
            seeded = (seed + start // block) & 0xFFFFFFFFFFFFFFFF
            digest = xxhash.xxh64_intdigest(content, seed=seeded).to_bytes(8, "little")
            signed[start + block - 8 : start + block] = digest
    return bytes(signed)


CHANGES: tuple[Callable[[Files, str, Choices], None], ...] = (
    _change_bytes, _change_json, _change_json, _change_file, _sign,
)  # fmt: skip


def write_files(files: Files, folder: Path) -> None:
    """Writes files into an empty folder; a `str` is a link's target, or what is no file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        if content == "<folder>":
            path.mkdir()
        elif content == "<pipe>":
            os.mkfifo(path)
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
