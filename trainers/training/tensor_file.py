"""The file of one rank of a checkpoint in safetensors' format, written and checksummed in one pass. safetensors'
`save_file` neither gives a checksum nor reports the system's error for a full disk.
"""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainers.records.checkpoint_manifest import StoredFile

_ALIGNMENT = 8
_BLOCK_BYTES = 4 * 2**20


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> StoredFile:
    """Writes contiguous fp32 tensors in host memory; returns the file when it is on disk.

    Raises:
        OSError: it cannot be written in full.
    """
    size_bytes, checksum = 0, 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o644), "wb", buffering=0) as file:
        for data in (memoryview(_header(tensors)), *map(_bytes, tensors.values())):
            for first in range(0, len(data), _BLOCK_BYTES):  # checksummed while still in the processor's cache
                block = data[first : first + _BLOCK_BYTES]
                checksum = zlib.crc32(block, checksum)
                while block:
                    block = block[file.write(block) :]
            size_bytes += len(data)
        os.fsync(file.fileno())
    return StoredFile(name=path.name, size_bytes=size_bytes, crc32=f"{checksum:08x}")


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Returns the length and the JSON that precede the values."""
    entries: dict[str, Any] = {}
    end = 0
    for key, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[key] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: torch.Tensor) -> memoryview:
    assert tensor.dtype == torch.float32 and tensor.is_contiguous()
    return tensor.reshape(-1).numpy().view(np.uint8).data
