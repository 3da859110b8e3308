"""Arrays between pages that nobody may touch: a read or write beside them ends the process."""

import ctypes
import mmap

import numpy as np

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


class GuardedMemory:
    """Memory for arrays that end, or begin, right at a forbidden page."""

    def __init__(self, pages=64):
        self._map = mmap.mmap(-1, (pages + 2) * _PAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.size = pages * _PAGE
        start = self._bytes.ctypes.data
        for page in (start, start + _PAGE + self.size):
            if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._inside = self._bytes[_PAGE : _PAGE + self.size]

    def array(self, shape, dtype, at_end=True):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert size <= self.size
        memory = self._inside[self.size - size :] if at_end else self._inside[:size]
        return memory.view(dtype).reshape(shape)
