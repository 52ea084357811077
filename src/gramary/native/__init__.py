"""Thin typed Python over the C++ core in csrc/; one module per concern.

The compiled module is `gramary.native._core`. Wrappers check sizes and pass data pointers; the
core releases the interpreter lock while it works.
"""
