use super::*;
use crate::kernels::check::Buffer;
use crate::kernels::testing::Rng;
use std::cell::Cell;

thread_local! {
    /// What [`streams`] says on this thread, if set.
    pub(super) static FORCED: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Calls `test` on every instruction set, with plain and with streaming stores at every size.
pub(in crate::kernels) fn everywhere(mut test: impl FnMut(Isa)) {
    for streaming in [false, true] {
        FORCED.set(Some(streaming));
        for isa in Isa::available() {
            test(isa);
        }
    }
    FORCED.set(None);
}

enum Piece {
    Put(Vec<u8>),
    Fill([u8; 16], usize, usize),
    Room(Vec<u8>),
}

struct Pieces<'a>(&'a [Piece]);

impl Producer for Pieces<'_> {
    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        for piece in self.0 {
            // SAFETY: the test's output has room for all pieces.
            unsafe {
                match piece {
                    Piece::Put(bytes) => sink.put(bytes.as_ptr(), bytes.len()),
                    Piece::Fill(value, size, n) => sink.fill(&Pattern::new(value, *size), *n),
                    Piece::Room(bytes) => {
                        sink.room(bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                        sink.advance(bytes.len());
                    }
                }
            }
        }
    }
}

#[test]
fn pieces_of_any_size_come_out_in_order() {
    let mut rng = Rng::new();
    for round in 0..400 {
        let mut pieces = Vec::new();
        let mut want = Vec::new();
        for _ in 0..rng.next() % 20 {
            let most = [9, 70, 600, 10_000][(rng.next() % 4) as usize];
            let n = (rng.next() % most) as usize;
            match rng.next() % 3 {
                0 => {
                    let n = if round % 2 == 0 { n.next_multiple_of(LINE) } else { n };
                    let bytes = rng.bytes(n);
                    want.extend_from_slice(&bytes);
                    pieces.push(Piece::Put(bytes));
                }
                1 => {
                    let size = 1 << (rng.next() % 5);
                    let value: [u8; 16] = rng.bytes(16).try_into().unwrap();
                    want.extend((0..n).map(|i| value[i % size]));
                    pieces.push(Piece::Fill(value, size, n));
                }
                _ => {
                    let bytes = rng.bytes(n.min(ROOM));
                    want.extend_from_slice(&bytes);
                    pieces.push(Piece::Room(bytes));
                }
            }
        }
        for isa in Isa::available() {
            for streaming in [false, true] {
                let mut dst = Buffer::poisoned(want.len(), round % 16 + 1);
                // SAFETY: the buffer has room for all pieces.
                unsafe { write(isa, streaming, dst.ptr(), Pieces(&pieces)) };
                assert!(dst.into_bytes() == want, "{isa}, streaming: {streaming}, {} bytes", want.len());
            }
        }
    }
}

#[test]
fn copies_of_any_size() {
    let src = Rng::new().bytes(2000);
    for n in 0..1200 {
        let mut dst = Buffer::poisoned(n, n % 16 + 1);
        // SAFETY: both sides have `n` bytes.
        unsafe { copy(dst.ptr(), src[n % 7..].as_ptr(), n) };
        assert!(dst.into_bytes() == src[n % 7..][..n], "{n}");
    }
}

/// Copies of the bytes between each two places.
struct Long<'a>(&'a [u8], &'a [usize]);

impl Producer for Long<'_> {
    fn written(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        for piece in self.1.windows(2) {
            // SAFETY: the test's output is as long as its bytes.
            unsafe { sink.put(self.0[piece[0]..].as_ptr(), piece[1] - piece[0]) };
        }
    }
}

#[test]
fn long_copies_of_a_large_output_come_out_in_order() {
    let mut rng = Rng::new();
    for odd in [0, 1, 63] {
        let bytes = rng.bytes(OWN_BYTES + odd);
        let mut places = vec![0];
        while let Some(&last) = places.last().filter(|last| **last < bytes.len()) {
            let most = [200, 1100, 1500, 5000, 50_000][(rng.next() % 5) as usize];
            places.push((last + (rng.next() % most) as usize).min(bytes.len()));
        }
        for isa in Isa::available() {
            for streaming in [false, true] {
                let mut dst = Buffer::poisoned(bytes.len(), odd % 16 + 1);
                // SAFETY: the buffer has room for all pieces.
                unsafe { write(isa, streaming, dst.ptr(), Long(&bytes, &places)) };
                assert!(dst.into_bytes() == bytes, "{isa}, streaming: {streaming}");
            }
        }
    }
}
