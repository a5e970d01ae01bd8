"""Memory for the tests: any misalignment, poison before a launch, and a check that nothing outside was written."""
import numpy as np

GUARD, POISON = 64, 0xA5


def numpy_dtype(dtype):
    import ml_dtypes

    names = dict(b8="uint8", i8="int8", u8="uint8", i16="int16", u16="uint16", i32="int32", u32="uint32", i64="int64",
                 u64="uint64", f16="float16", f32="float32", f64="float64", c64="complex64", c128="complex128")
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bf16" else np.dtype(names[dtype])


class Block:
    """Elements on the device, `offset` elements past a multiple of 256 bytes."""

    def __init__(self, dtype, size, count, offset, data):
        import torch

        self.dtype, self.bytes, self.start = dtype, count * size, 256 + offset * size
        self.whole = torch.full((256 + self.start + self.bytes + GUARD,), POISON, dtype=torch.uint8, device="cuda")
        self.start += -self.whole.data_ptr() % 256
        self.address = self.whole.data_ptr() + self.start
        if data is not None:
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            assert raw.size == self.bytes, (raw.size, self.bytes)
            self.whole[self.start : self.start + self.bytes] = torch.from_numpy(raw.copy()).cuda()

    def read(self):
        """The elements; fails if memory around them was written."""
        raw = self.whole.cpu().numpy()
        around = np.concatenate([raw[self.start - GUARD : self.start], raw[self.start + self.bytes :][:GUARD]])
        assert (around == POISON).all(), "memory outside was written"
        return raw[self.start : self.start + self.bytes].copy().view(numpy_dtype(self.dtype))


class Memory:
    """Makes blocks on the device."""

    def block(self, dtype, size, count, offset=0, data=None):
        return Block(dtype, size, count, offset, data() if data else None)


class Addresses:
    """Makes only addresses, of the alignment that blocks would have: enough to know which kernels are needed."""

    def block(self, dtype, size, count, offset=0, data=None):
        self.address = 1 << 30 | offset * size
        return type("Address", (), dict(address=self.address))()
