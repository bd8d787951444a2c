"""Compression of fragments: the bytes that stand in a store for the bytes of a journal.

A *compressor* turns batches into stored bytes; a *decompressor* takes stored bytes in pieces of any
size and gives content back, across the members or frames of a file. All of them
spend their time in C or Rust with the GIL released, so they belong in worker threads.
"""

from __future__ import annotations

from gazette_platform.codecs.codec import compressor, decompress_steps, decompressor, extension
from gazette_platform.codecs.interface import Compressor, Decompressor

__all__ = [
    "Compressor",
    "Decompressor",
    "compressor",
    "decompress_steps",
    "decompressor",
    "extension",
]
