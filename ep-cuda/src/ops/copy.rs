//! Copies between strided layouts, by the largest pieces that stay together: `copy_nd`, `strided_copy` and `permute`.

use super::nd::{ByIndex, Index, Loops, Nd, Operand, RANK, specialise};
use super::source::COPY;
use super::{SIZES, with_loose, with_loose_sizes};
use crate::compiler::Spec;
use crate::kernel::{Argument, Loader};
use crate::stream::CudaStream;
use ep_core::Result;

/// Packs of a thread.
const UNROLL: u32 = 4;
fn spec(piece: u64, index: Index, loose: bool) -> Spec {
    let spec = Spec::new(&COPY).with("EP_SIZE", piece);
    with_loose(specialise(spec, 16 / piece, UNROLL, index), loose)
}

/// The kernels of every copy with indices of 32 bits; the others are compiled when they are needed.
pub(super) fn kernels() -> Vec<Spec> {
    with_loose_sizes(|piece, loose| spec(piece, Index::Narrow, loose))
}

// SAFETY: as `Args` of copy.cu.
unsafe impl Argument for Nd<2> {}

/// What is copied: sizes from the innermost dimension outwards, of which none is 0, the bytes from one index to the
/// next in destination and source, and their first addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    rank: usize,
    sizes: [u64; RANK],
    strides: [[i64; 2]; RANK],
    addresses: [u64; 2],
}

impl Move {
    /// From pairs of a size and its strides.
    pub(super) fn new(dims: impl IntoIterator<Item = (u64, [i64; 2])>, addresses: [u64; 2]) -> Move {
        let mut m = Move { rank: 0, sizes: [1; RANK], strides: [[0; 2]; RANK], addresses };
        for (size, strides) in dims.into_iter().filter(|(size, _)| *size != 1) {
            m.sizes[m.rank] = size;
            m.strides[m.rank] = strides;
            m.rank += 1;
        }
        // One element is a loop too.
        m.rank = m.rank.max(1);
        m
    }

    /// The bytes of one run, where it is all.
    fn plain(&self, size: u64) -> Option<u64> {
        (self.rank == 1 && self.strides[0] == [size as i64; 2]).then(|| self.sizes[0] * size)
    }

    /// Puts neighbours together to the largest pieces that all runs and addresses are multiples of, instead of elements
    /// of `size` bytes; their bytes, and whether addresses are multiples of half of that only.
    fn fold(&mut self, size: u64) -> (u64, bool) {
        let outer = 1..self.rank;
        let [to, from] = self.addresses;
        let places = outer.clone().fold(to | from, |bits, d| {
            bits | self.strides[d][0].unsigned_abs() | self.strides[d][1].unsigned_abs()
        });
        if self.strides[0] != [size as i64; 2] {
            let inner = self.strides[0].iter().fold(places, |bits, s| bits | s.unsigned_abs());
            return (size, !inner.is_multiple_of(size));
        }
        let run = self.sizes[0] * size;
        let piece = 1 << (places | run).trailing_zeros().min(4);
        self.sizes[0] = run / piece;
        self.strides[0] = [piece as i64; 2];
        if self.sizes[0] == 1 && self.rank > 1 {
            self.sizes.copy_within(outer.clone(), 0);
            self.strides.copy_within(outer, 0);
            self.rank -= 1;
        }
        (piece, false)
    }
}

/// Moves pieces of any size.
pub(super) struct Mover {
    name: &'static str,
    size: u64,
    kernels: [ByIndex; SIZES.len()],
    loose: ByIndex,
}

impl Mover {
    /// Of elements of `size` bytes.
    pub(super) fn new(loader: &Loader, name: &'static str, size: u64) -> Mover {
        Mover {
            name,
            size,
            kernels: SIZES.map(|piece| ByIndex::new(loader, name, |index| spec(piece, index, false))),
            loose: ByIndex::new(loader, name, |index| spec(size, index, true)),
        }
    }

    /// Queues a copy.
    ///
    /// # Safety
    /// Every element of the source is readable and every one of the destination writable until the copy is done, with
    /// no other access; the two do not overlap.
    ///
    /// # Errors
    /// Those of loading and launching.
    pub(super) unsafe fn run(&self, stream: &CudaStream, mut copy: Move) -> Result<()> {
        let [dst, src] = copy.addresses;
        if let Some(bytes) = copy.plain(self.size) {
            // SAFETY: the caller's promise.
            return stream.queue(self.name, |c| unsafe {
                c.driver().cuMemcpyAsync(dst, src, bytes as usize, stream.raw())
            });
        }
        let (piece, loose) = copy.fold(self.size);
        let elements = |d: usize| copy.strides[d].map(|stride| stride / piece as i64);
        let loops = Loops::new((0..copy.rank).map(|d| (copy.sizes[d], elements(d))));
        let operands = [Operand::Memory(dst, piece), Operand::Memory(src, piece)];
        let (nd, index) = Nd::new(&loops, operands, 16 / piece);
        let kernels = if loose { &self.loose } else { &self.kernels[piece.trailing_zeros() as usize] };
        // SAFETY: the caller's promise, and the kernel's argument.
        unsafe { kernels.get(index)?.launch(stream, nd.geometry(UNROLL)?, &nd) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_moved_by_the_largest_pieces() {
        let fold = |size: u64, count: u64, outer: [i64; 2], addresses: [u64; 2]| {
            let mut m = Move::new([(count, [size as i64; 2]), (9, outer)], addresses);
            let folded = m.fold(size);
            (folded, m.sizes[0], m.rank)
        };
        assert_eq!(fold(4, 64, [256, 512], [0x100, 0x200]), ((16, false), 16, 2));
        assert_eq!(fold(4, 3, [12, 16], [0x100, 0x200]), ((4, false), 3, 2));
        assert_eq!(fold(4, 4, [16, 32], [0x108, 0x200]), ((8, false), 2, 2), "by the addresses");
        assert_eq!(fold(4, 4, [16, 32], [0x100, 0x200]), ((16, false), 9, 1), "one piece for each run");
        assert_eq!(fold(8, 5, [40, 48], [0x104, 0x200]), ((4, false), 10, 2), "halves of complex numbers");
        let mut m = Move::new([(5, [8, 24])], [0x104, 0x200]);
        assert_eq!(m.fold(8), (8, true));
        let mut m = Move::new([(5, [8, 24])], [0x108, 0x200]);
        assert_eq!(m.fold(8), (8, false));
        assert_eq!(Move::new([(5, [8, 8])], [0, 0]).plain(8), Some(40));
    }
}
