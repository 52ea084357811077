"""The pack: gramary's own table file, as docs/format.md specifies it."""

from gramary.files.pack.building import PackReport, build_pack
from gramary.files.pack.header import PackHeader, SourceIdentity
from gramary.files.pack.opening import open_pack
from gramary.files.pack.recoding import RecodingError
from gramary.files.pack.verifying import VerifyReport, verify_pack

__all__ = [
    "PackHeader",
    "PackReport",
    "RecodingError",
    "SourceIdentity",
    "VerifyReport",
    "build_pack",
    "open_pack",
    "verify_pack",
]
