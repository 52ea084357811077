"""The pack: gramary's own table file, as docs/format.md specifies it."""

from gramary.pack.building import PackReport, build_pack
from gramary.pack.header import PackHeader, SourceIdentity
from gramary.pack.opening import open_pack
from gramary.pack.recoding import RecodingError
from gramary.pack.verifying import VerifyReport, verify_pack

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
