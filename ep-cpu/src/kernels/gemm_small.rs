//! Products that are one block, read as it is stored: cutting them into tiles takes as long as multiplying them.

use crate::isa::Body;
use crate::kernels::gemm::{Element, Problem};
use crate::kernels::gemm_block::{Block, Engine, Out, Source};

/// Rows, columns and depth at most. No block is cut there, nor worth more than one task.
const MOST: usize = 64;

/// A product of two matrices, and the factors of the sums and of the old result. Made only where it may be computed.
pub(super) struct Small<'a, E: Engine> {
    problem: &'a Problem<'a, E::Number>,
    alpha: E::Sum,
    beta: E::Sum,
}

impl<'a, E: Engine> Small<'a, E> {
    /// Nothing for products that are to be done in another way.
    ///
    /// # Safety
    /// As for [`Element::multiply`] until the product is [run](Body::run), by [`Engine::run`].
    #[inline(always)]
    pub(super) unsafe fn new(
        problem: &'a Problem<'a, E::Number>,
        alpha: <E::Number as Element>::Scalar,
        beta: <E::Number as Element>::Scalar,
    ) -> Option<Small<'a, E>> {
        let p = problem;
        let one = p.outer.is_empty() && p.inner.is_empty();
        // What is so small is never better packed for the sake of `a`.
        let fits = E::IN_PLACE && one && p.m.max(p.n).max(p.k) <= MOST;
        (fits && E::reads_b(p.m, p.n, p.k, p.b.cs == 1)).then(|| {
            let [alpha, beta] = [alpha, beta].map(E::in_place);
            Small { problem, alpha, beta }
        })
    }
}

impl<E: Engine> Body for Small<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let p = self.problem;
        let block = Block::<E> {
            rows: p.m,
            cols: p.n,
            depth: p.k,
            a: Source::Stored { at: p.a.at.get(), line: p.a.rs, step: p.a.cs },
            b: Source::Stored { at: p.b.at.get(), line: p.b.cs, step: p.b.rs },
            ahead: false,
            few: false,
            streams: false,
            out: Out { at: p.c.get().cast(), stride: p.c_rs, alpha: self.alpha, beta: self.beta },
            part: None,
        };
        // SAFETY: what it was made for; the sums are in place, which is in `c`.
        unsafe { E::multiply(&block) }
    }
}
