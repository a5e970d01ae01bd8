//! Strips that are written while the next one is read.

use super::{STATE, Strips};
use crate::kernels::real::Cell;
use crate::kernels::rows::exp::Last;
use crate::kernels::rows::vector::{Compute, Vector};

/// A strip of which everything is in its buffer, and where it is to be written.
pub(super) struct Behind<S, D, A> {
    strip: Strips<S, D, A>,
    buffer: *const A,
    dst: *mut D,
    width: usize,
}

impl<S: Cell<A>, D: Cell<A>, A: Compute> Behind<S, D, A> {
    /// For the vector of each column that starts at `at`.
    #[inline(always)]
    pub(super) unsafe fn finisher<V: Vector<Lane = A>>(&self, at: usize) -> Finisher<V, D> {
        let strip = &self.strip;
        // SAFETY: the caller says that the strip has such a vector.
        unsafe {
            Finisher {
                last: strip.last(at, V::LANES),
                base: V::load(strip.kept(1).add(at)),
                log: strip.log,
                from: self.buffer.add(at),
                pitch: strip.width,
                to: self.dst.add(at),
                inner: strip.inner,
            }
        }
    }
}

/// What a vector of each column of a strip becomes. Loaded once for several columns, as what is written could, for all
/// that the compiler knows, change it.
pub(super) struct Finisher<V: Vector, D> {
    last: Last<V>,
    base: V,
    log: bool,
    from: *const V::Lane,
    pitch: usize,
    to: *mut D,
    inner: usize,
}

impl<V: Vector, D: Cell<V::Lane>> Finisher<V, D> {
    #[inline(always)]
    pub(super) unsafe fn write(&self, col: usize) {
        // SAFETY: the caller says that there is such a column; to stream, it is a line or a part of one.
        unsafe {
            let x = V::load(self.from.add(col * self.pitch));
            let y = if self.log { self.last.apply_log(x, self.base) } else { self.last.apply(x) };
            y.stream(self.to.add(col * self.inner));
        }
    }
}

impl<S: Cell<A>, D: Cell<A>, A: Compute> Strips<S, D, A> {
    /// All strips, each written while the next one is read. Results do not change by that.
    #[inline(always)]
    pub(super) unsafe fn run_behind<V: Vector<Lane = A>>(&self) {
        let mut before: Option<Behind<S, D, A>> = None;
        for unit in self.units.0..self.units.1 {
            let (start, width) = self.place(unit);
            let next = if unit + 1 < self.units.1 { self.place(unit + 1).0 } else { start };
            // SAFETY: the strip is inside the matrix, and of the two rooms the one before has the other.
            unsafe {
                let state = self.state.add((STATE + self.cols) * self.width * (unit % 2));
                let buffer = state.add(STATE * self.width);
                let strip = Self { state, buffer: Some(buffer), ..*self };
                let (src, next) = (self.src.add(start), self.src.wrapping_add(next));
                match before.take() {
                    Some(before) if before.width == width => {
                        strip.near_sums::<V>(src, buffer, width, next, Some(&before));
                    }
                    before => {
                        if let Some(before) = before {
                            before.strip.write_buffered::<V>(before.buffer, before.dst, before.width);
                        }
                        strip.near_sums::<V>(src, buffer, width, next, None);
                    }
                }
                strip.near_lasts(width);
                strip.far_columns::<V>(src, buffer, width);
                before = Some(Behind { strip, buffer, dst: self.dst.add(start), width });
            }
        }
        if let Some(Behind { strip, buffer, dst, width }) = before {
            // SAFETY: as above.
            unsafe { strip.write_buffered::<V>(buffer, dst, width) };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::rows::{RowsArgs, forward};
    use crate::kernels::testing::{Rng, Threads, between_pages};
    use ep_core::parallel::{Parallel, Serial};

    /// Beside inaccessible pages, with strips of several widths, fewer and more columns than are asked for ahead, and
    /// vectors that are far from their first columns or from later ones on.
    #[test]
    fn strips_behind_each_other_give_the_same_bits() {
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 10.5, -11.0, 50.0, -300.0, -0.0];
        let mut rng = Rng::new();
        for shape @ [rows, cols, inner] in
            [[3, 50, 160], [4, 20, 192], [2, 61, 528], [7, 9, 64], [1, 2050, 48], [3, 40, 16]]
        {
            let count = rows * cols * inner;
            for every in [usize::MAX, 5000, 301] {
                let x: Vec<f32> = (0..count)
                    .map(|i| {
                        if i % every == every - 1 {
                            special[i / every % 8]
                        } else {
                            rng.signed() as f32 * 9.0
                        }
                    })
                    .collect();
                let cases = Isa::available().into_iter().flat_map(|isa| [(false, isa), (true, isa)]);
                for (log, isa) in cases {
                    let run = |par: &dyn Parallel, at_end: bool, stream: bool| {
                        let pages = [0; 2].map(|_| between_pages(4 * count, at_end));
                        let [src, dst] = pages.each_ref().map(|p| p.ptr());
                        // SAFETY: both hold so many elements.
                        unsafe {
                            src.cast::<f32>().copy_from_nonoverlapping(x.as_ptr(), count);
                            dst.write_bytes(0xa5, 4 * count);
                            let args = RowsArgs { rows, cols, inner, src, dst };
                            forward::<f32, f32, f32>(isa, par, &args, log, count, stream).unwrap();
                            std::slice::from_raw_parts(dst.cast::<u32>(), count).to_vec()
                        }
                    };
                    let want = run(&Serial, false, false);
                    for (at_end, par) in [(true, &Serial as &dyn Parallel), (false, &Threads(3))] {
                        assert!(run(par, at_end, true) == want, "{shape:?} log {log} at {isa}, {every}");
                    }
                }
            }
        }
    }
}
