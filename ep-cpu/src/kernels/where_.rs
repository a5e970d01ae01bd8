//! Where: `cond ? x : y` of three broadcast operands.
//!
//! A launch is cut into blocks of some thousand bytes, which a loop over contiguous elements selects. Operands that
//! repeat are expanded for it into a stage in the first-level cache, unless it is the condition that repeats over a
//! row, which is then a copy. So is an operand that is also the destination: blocks never overlap.

use crate::isa::{Body, Isa};
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::sink::{self, FAR_BYTES, PIECE, Pattern, Producer, ROOM, Sink, prefetch};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use primitives::broadcast::{Odometer, Plan};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

/// Arguments of [`WhereKernel::launch`].
#[derive(Clone, Copy, Debug)]
pub struct WhereArgs<'a> {
    /// The condition's shape, outermost dimension first; at most 8 dimensions.
    pub cond_dims: &'a [i64],
    /// The shape of what is taken where the condition holds.
    pub x_dims: &'a [i64],
    /// The shape of what is taken elsewhere.
    pub y_dims: &'a [i64],
    /// The dense condition; any alignment.
    pub cond: *const u8,
    /// The dense `x`; any alignment.
    pub x: *const u8,
    /// The dense `y`; any alignment.
    pub y: *const u8,
    /// The dense destination, of the broadcast shape; any alignment.
    pub dst: *mut u8,
}

/// Selects `n` elements: `(isa, cond, x, y, dst, n)`. The destination must overlap no source.
///
/// # Safety
/// The sources are readable and the destination writable for `n` elements.
type Select = unsafe fn(Isa, *const u8, *const u8, *const u8, *mut u8, usize);

/// The kernel for a condition's dtype and the data's.
#[derive(Clone, Copy, Debug)]
pub struct WhereKernel {
    select: Select,
    cond_size: usize,
    data_size: usize,
}

/// The kernel for conditions of a bool or integer dtype and data of any, which are only bytes here.
pub fn lookup(cond: DType, data: DType) -> Option<WhereKernel> {
    if cond != DType::BOOL && !cond.is_int() {
        return None;
    }
    let (cond_size, data_size) = (cond.size()?, data.size()?);
    let select = match cond_size {
        1 => of_cond::<u8>(data_size),
        2 => of_cond::<u16>(data_size),
        4 => of_cond::<u32>(data_size),
        8 => of_cond::<u64>(data_size),
        _ => None,
    }?;
    Some(WhereKernel { select, cond_size, data_size })
}

fn of_cond<C: Cond>(data_size: usize) -> Option<Select> {
    match data_size {
        1 => Some(select::<C, u8>),
        2 => Some(select::<C, u16>),
        4 => Some(select::<C, u32>),
        8 => Some(select::<C, u64>),
        16 => Some(select::<C, [u64; 2]>),
        _ => None,
    }
}

/// Every pair of dtypes, the condition's first, that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = (DType, DType)> {
    let pairs = DType::ALL.into_iter().flat_map(|cond| DType::ALL.into_iter().map(move |data| (cond, data)));
    pairs.filter(|&(cond, data)| lookup(cond, data).is_some())
}

/// Rows shorter than this are put together to blocks, not selected one by one.
const SHORT_ROW: usize = 128;
/// The most elements of a block.
const BLOCK: usize = 1024;
/// The same where operands come from memory, so that prefetches are not too many at once.
const FAR_BLOCK: usize = 256;
/// Bytes prefetched ahead of a block.
const AHEAD: usize = 2048;

impl WhereKernel {
    /// Selects. A condition is any value but zero.
    ///
    /// # Errors
    /// `InvalidArgument` for shapes that do not broadcast, results that no address space holds, and a destination
    /// that is also an operand of another shape or element size; those of `par`.
    ///
    /// # Safety
    /// The operands are readable for the elements of their shapes and `dst` writable for those of the broadcast
    /// one, with no other access until this returns. The destination is the address of an operand, or
    /// overlaps none.
    pub unsafe fn launch(self, isa: Isa, par: &dyn Parallel, args: &WhereArgs<'_>) -> Result<()> {
        let plan = Plan::new([args.cond_dims, args.x_dims, args.y_dims])?;
        if plan.count() == 0 {
            return Ok(());
        }
        let sizes = [self.cond_size, self.data_size, self.data_size];
        let bytes = plan.count().checked_mul(self.data_size.max(self.cond_size));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::invalid(format!(
                "where of {} elements: no address space holds them",
                plan.count()
            )));
        }
        let written = plan.count() * self.data_size;
        let src = [args.cond, args.x, args.y];
        let in_place = src.map(|operand| ptr::eq(operand, args.dst));
        if (0..3).any(|i| in_place[i] && (!plan.is_dense(i) || sizes[i] != self.data_size)) {
            return Err(in_place_error());
        }
        let read: usize = (0..3).filter(|&i| plan.is_dense(i)).map(|i| plan.count() * sizes[i]).sum();
        // Lines of a destination that is also a source have been read already.
        let streaming = sink::streams(written, read) && in_place == [false; 3];
        let far = read >= FAR_BYTES;
        let src = src.map(|operand| Shared::new(operand.cast_mut()));
        let dst = Shared::new(args.dst);
        let item = (read + written) / plan.count() + 1;
        for_ranges(par, plan.count(), item, PIECE, |elements| {
            let src = [0, 1, 2].map(|i| src[i].get().cast_const());
            // SAFETY: the range is within the destination and no other task has it.
            unsafe {
                let to = dst.get().add(elements.start * self.data_size);
                let part = Part { isa, kernel: self, sizes, plan: &plan, src, in_place, far, elements };
                sink::write(isa, streaming, to, part);
            }
            Ok(())
        })
    }
}

#[cold]
fn in_place_error() -> Error {
    Error::invalid(
        "the destination is also an operand of `where`, but one of another shape or element size; select into a \
         separate buffer instead",
    )
}

/// Room for a block of the largest elements.
#[repr(C, align(64))]
struct Stage([MaybeUninit<u8>; STAGE]);

/// Conditions have up to 8 bytes.
const STAGE: usize = 8 * BLOCK;

impl Stage {
    const NEW: Stage = Stage([MaybeUninit::uninit(); STAGE]);

    fn at(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// A range of the destination's elements.
struct Part<'a> {
    isa: Isa,
    kernel: WhereKernel,
    sizes: [usize; 3],
    plan: &'a Plan<3>,
    src: [*const u8; 3],
    in_place: [bool; 3],
    far: bool,
    elements: Range<usize>,
}

impl Producer for Part<'_> {
    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        // SAFETY: the caller's promise.
        unsafe { if self.plan.inner() >= SHORT_ROW { self.long_rows(sink) } else { self.short_rows(sink) } }
    }
}

impl Part<'_> {
    /// Elements of a block.
    fn block(&self) -> usize {
        BLOCK.min(ROOM / self.kernel.data_size)
    }

    /// Takes a block.
    ///
    /// # Safety
    /// As for [`Select`], and the sink's output has `n` elements left, at most those of a block.
    #[inline(always)]
    unsafe fn take<S: Sink>(&self, sink: &mut S, mut operands: [*const u8; 3], n: usize) {
        let bytes = n * self.kernel.data_size;
        let mut stage = const { Stage::NEW };
        // SAFETY: the caller's promise; an operand in place has the destination's element size.
        unsafe {
            let to = sink.room(bytes);
            for (operand, in_place) in operands.iter_mut().zip(self.in_place) {
                if in_place {
                    sink::copy(stage.at(), to, bytes);
                    *operand = stage.at();
                }
            }
            let [cond, x, y] = operands;
            (self.kernel.select)(self.isa, cond, x, y, to, n);
            sink.advance(bytes);
        }
    }

    /// Row by row.
    ///
    /// # Safety
    /// As for [`Producer::run`].
    #[inline(always)]
    unsafe fn long_rows<S: Sink>(&self, sink: &mut S) {
        let Part { plan, sizes, src, in_place, far, ref elements, .. } = *self;
        let (inner, last) = (plan.inner(), plan.dims().len() - 1);
        let spans = [0, 1, 2].map(|i| plan.strides(i)[last] != 0);
        let block = if far { FAR_BLOCK } else { self.block() };
        let mut stages = [const { Stage::NEW }; 3];
        // Offset of the element that a stage is filled with.
        let mut filled = [usize::MAX; 3];
        let mut odometer = Odometer::at(plan, elements.start / inner);
        let mut col = elements.start % inner;
        let mut left = elements.len();
        while left > 0 {
            let run = (inner - col).min(left);
            let offsets = odometer.offsets();
            // SAFETY: the offsets are those of the operands' rows, of which `col..col + run` is read where they span
            // them and one element elsewhere.
            unsafe {
                let at = [0, 1, 2].map(|i| {
                    let offset = offsets[i] + if spans[i] { col } else { 0 };
                    src[i].add(offset * sizes[i])
                });
                if !spans[0] {
                    let chosen = if is_zero(at[0], sizes[0]) { 2 } else { 1 };
                    let bytes = run * sizes[chosen];
                    if in_place[chosen] {
                        sink.advance(bytes);
                    } else if spans[chosen] {
                        sink.put(at[chosen], bytes);
                    } else {
                        sink.fill(&Pattern::read(at[chosen], sizes[chosen]), bytes);
                    }
                } else {
                    for i in 1..3 {
                        if !spans[i] && filled[i] != offsets[i] {
                            expand(sizes[i], at[i], 0, stages[i].at(), block);
                            filled[i] = offsets[i];
                        }
                    }
                    for start in (0..run).step_by(block) {
                        let n = block.min(run - start);
                        let operands = [0, 1, 2].map(|i| {
                            if !spans[i] {
                                return stages[i].at().cast_const();
                            }
                            let from = at[i].add(start * sizes[i]);
                            if far {
                                prefetch(from.wrapping_add(AHEAD), n * sizes[i]);
                            }
                            from
                        });
                        self.take(sink, operands, n);
                    }
                }
            }
            left -= run;
            col = 0;
            odometer.advance();
        }
    }

    /// Several rows at a time.
    ///
    /// # Safety
    /// As for [`Producer::run`].
    #[inline(always)]
    unsafe fn short_rows<S: Sink>(&self, sink: &mut S) {
        let Part { plan, sizes, src, far, ref elements, .. } = *self;
        let (inner, last) = (plan.inner(), plan.dims().len() - 1);
        let block = self.block();
        let direct = [0, 1, 2].map(|i| plan.is_dense(i));
        // An operand that repeats over the outermost dimension is periodic. Where a period fits, blocks of whole
        // periods see the same elements of it, and one expansion serves all.
        let period = (0..3).map(|i| plan.period(i)).filter(|&p| p <= block && p < plan.count()).max();
        let step = period.map_or(block, |p| block - block % p);
        let mut stages = [const { Stage::NEW }; 3];
        let mut stale = direct.map(|direct| !direct);
        let mut odometer = Odometer::at(plan, elements.start / inner);
        let mut col = elements.start % inner;
        for position in elements.clone().step_by(step) {
            let n = step.min(elements.end - position);
            let mut done = if stale == [false; 3] { n } else { 0 };
            while done < n {
                let run = (inner - col).min(n - done);
                let offsets = odometer.offsets();
                for i in (0..3).filter(|&i| stale[i]) {
                    let stride = plan.strides(i)[last];
                    // SAFETY: the offsets lie within the operand, and `done + run <= n` within the stage.
                    unsafe {
                        let from = src[i].add((offsets[i] + col * stride) * sizes[i]);
                        expand(sizes[i], from, stride, stages[i].at().add(done * sizes[i]), run);
                    }
                }
                done += run;
                col += run;
                if col == inner {
                    col = 0;
                    odometer.advance();
                }
            }
            for (i, stale) in stale.iter_mut().enumerate() {
                *stale = *stale && !step.is_multiple_of(plan.period(i));
            }
            let operands = [0, 1, 2].map(|i| {
                if !direct[i] {
                    return stages[i].at().cast_const();
                }
                let from = src[i].wrapping_add(position * sizes[i]);
                if far {
                    prefetch(from.wrapping_add(AHEAD), n * sizes[i]);
                }
                from
            });
            // SAFETY: stages hold `n` elements, and a dense operand has the destination's at the same offsets.
            unsafe { self.take(sink, operands, n) };
        }
    }
}

/// Whether the `size` bytes at `at` are all zero.
///
/// # Safety
/// They are readable.
unsafe fn is_zero(at: *const u8, size: usize) -> bool {
    // SAFETY: the caller's promise.
    (0..size).all(|i| unsafe { at.add(i).read() } == 0)
}

/// Writes `n` elements: those at `from` (stride 1), or the one there `n` times (stride 0).
///
/// # Safety
/// `from` is readable for `n` (or 1) elements of `size` bytes and `to` writable for `n`; no overlap.
#[inline]
unsafe fn expand(size: usize, from: *const u8, stride: usize, to: *mut u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if stride != 0 {
            sink::copy(to, from, n * size);
        } else {
            match size {
                1 => to.write_bytes(from.read(), n),
                2 => repeat::<u16>(from, to, n),
                4 => repeat::<u32>(from, to, n),
                8 => repeat::<u64>(from, to, n),
                _ => repeat::<[u64; 2]>(from, to, n),
            }
        }
    }
}

/// # Safety
/// As for [`expand`], with elements of type `T`.
#[inline(always)]
unsafe fn repeat<T: Copy>(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let value = from.cast::<T>().read_unaligned();
        for i in 0..n {
            to.cast::<T>().add(i).write_unaligned(value);
        }
    }
}

/// A condition as stored.
trait Cond: Copy {
    fn holds(self) -> bool;
}

macro_rules! cond {
    ($($t:ty),*) => {$(
        impl Cond for $t {
            #[inline(always)]
            fn holds(self) -> bool {
                self != 0
            }
        }
    )*};
}
cond!(u8, u16, u32, u64);

/// # Safety
/// As for [`Select`].
unsafe fn select<C: Cond, T: Copy>(
    isa: Isa,
    cond: *const u8,
    x: *const u8,
    y: *const u8,
    dst: *mut u8,
    n: usize,
) {
    isa.dispatch(Selected::<C, T> { cond: cond.cast(), x: x.cast(), y: y.cast(), dst: dst.cast(), n });
}

/// Made only under the promises of [`Select`].
struct Selected<C, T> {
    cond: *const C,
    x: *const T,
    y: *const T,
    dst: *mut T,
    n: usize,
}

impl<C: Cond, T: Copy> Body for Selected<C, T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Selected { cond, x, y, dst, n } = self;
        for i in 0..n {
            // SAFETY: `i < n`.
            unsafe {
                let (x, y) = (x.add(i).read_unaligned(), y.add(i).read_unaligned());
                dst.add(i).write_unaligned(if cond.add(i).read_unaligned().holds() { x } else { y });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::Buffer;
    use crate::kernels::sink::tests::everywhere;
    use crate::kernels::testing::{Rng, Threads};
    use ep_core::Code;
    use ep_core::parallel::Serial;
    use primitives::reference::{Launch, View};
    use proptest::prelude::*;

    /// Compares in a new destination, and in place of every operand that allows it.
    fn check(par: &dyn Parallel, dims: [&[i64]; 3], cond: DType, data: DType) {
        let mut rng = Rng::new();
        let sizes = [cond, data, data].map(|d| d.size().unwrap());
        let mut operands = [0, 1, 2].map(|i| rng.bytes(dims[i].iter().product::<i64>() as usize * sizes[i]));
        // Half of the conditions are zero, and others only in their low bytes.
        for element in operands[0].chunks_exact_mut(sizes[0]) {
            match rng.next() % 4 {
                0 | 1 => element.fill(0),
                2 => element[..sizes[0] - 1].fill(0),
                _ => {}
            }
        }
        let views = [0, 1, 2].map(|i| View::new([cond, data, data][i], &operands[i]));
        let want = Launch::new("where")
            .dtype("cond", cond)
            .dtype("data", data)
            .dims("cond_dims", dims[0])
            .dims("x_dims", dims[1])
            .dims("y_dims", dims[2])
            .read("cond", views[0])
            .read("x", views[1])
            .read("y", views[2])
            .run()
            .map(|outputs| outputs.get("dst").unwrap().bytes.clone())
            .unwrap();
        let plan = Plan::new(dims).unwrap();
        let kernel = lookup(cond, data).unwrap();
        for place in [None, Some(0), Some(1), Some(2)] {
            if place.is_some_and(|i| !plan.is_dense(i) || sizes[i] != sizes[1] || want.is_empty()) {
                continue;
            }
            everywhere(|isa| {
                let mut buffers = [0, 1, 2].map(|i| Buffer::of(&operands[i], sizes[i]));
                let mut dst = Buffer::poisoned(want.len(), sizes[1]);
                let [c, x, y] = buffers.each_mut().map(|b| b.ptr());
                let to = place.map_or(dst.ptr(), |i| [c, x, y][i]);
                let args = WhereArgs {
                    cond_dims: dims[0],
                    x_dims: dims[1],
                    y_dims: dims[2],
                    cond: c,
                    x,
                    y,
                    dst: to,
                };
                // SAFETY: all sides have their elements.
                unsafe { kernel.launch(isa, par, &args) }.unwrap();
                for (i, buffer) in buffers.into_iter().enumerate() {
                    let content = buffer.into_bytes();
                    let expected = if place == Some(i) { &want } else { &operands[i] };
                    assert!(
                        content == *expected,
                        "operand {i} of {dims:?} {cond} {data} {isa} in place of {place:?}"
                    );
                }
                if place.is_none() {
                    assert!(dst.into_bytes() == want, "{dims:?} {cond} {data} {isa}");
                }
            });
        }
    }

    #[test]
    fn every_pair_of_dtypes() {
        assert_eq!(rows().count(), 9 * 15);
        for (cond, data) in rows() {
            check(&Serial, [&[777], &[777], &[777]], cond, data);
            check(&Serial, [&[5, 300], &[300], &[]], cond, data);
            check(&Serial, [&[3, 1], &[3, 7], &[7]], cond, data);
        }
    }

    #[test]
    fn shapes_of_all_kinds() {
        for (cond, data) in [
            (DType::BOOL, DType::F32),
            (DType::I64, DType::I64),
            (DType::U16, DType::U8),
            (DType::I32, DType::COMPLEX128),
        ] {
            for dims in [
                [&[][..], &[], &[]],
                [&[1, 1], &[1], &[]],
                [&[0, 3], &[3], &[1]],
                [&[9, 1], &[9, 500], &[500]],
                [&[1, 500], &[9, 1], &[9, 500]],
                [&[9, 1], &[1, 500], &[1]],
                [&[], &[9, 500], &[9, 500]],
                [&[4, 1, 200], &[1, 6, 200], &[4, 6, 1]],
                [&[40, 1, 3], &[1, 50, 1], &[40, 50, 3]],
                [&[60, 10], &[10], &[60, 1]],
                [&[700, 3], &[3], &[1, 3]],
                [&[2, 1, 2, 1, 2, 1, 2, 1], &[1, 3, 1, 2, 1, 2, 1, 2], &[3, 1, 2, 1, 1, 2, 1]],
            ] {
                check(&Serial, dims, cond, data);
            }
        }
    }

    #[test]
    fn large_ones_on_several_threads() {
        for (cond, data) in [(DType::BOOL, DType::F32), (DType::I32, DType::F32), (DType::U8, DType::U8)] {
            check(&Threads(3), [&[200_003], &[200_003], &[200_003]], cond, data);
            check(&Threads(3), [&[333, 1], &[333, 701], &[701]], cond, data);
            check(&Threads(3), [&[20_001, 7], &[7], &[20_001, 1]], cond, data);
        }
    }

    #[test]
    fn bad_shapes_and_places_are_refused() {
        let mut dst = [1u32; 8];
        let p = dst.as_mut_ptr().cast::<u8>();
        let launch =
            |cond_dims: &[i64], x_dims: &[i64], y_dims: &[i64], cond, x: *const u8, y: *const u8, to| {
                let args = WhereArgs { cond_dims, x_dims, y_dims, cond, x, y, dst: to };
                // SAFETY: refused before anything is read or written.
                unsafe { lookup(DType::U8, DType::U32).unwrap().launch(Isa::BASELINE, &Serial, &args) }
                    .unwrap_err()
            };
        let far = p.wrapping_add(64).cast_const();
        for e in [
            launch(&[2], &[3], &[1], far, far, far, p),
            launch(&[-1], &[1], &[1], far, far, far, p),
            launch(&[1; 9], &[1], &[1], far, far, far, p),
            launch(&[i64::MAX], &[1], &[1], far, far, far, p),
            launch(&[4], &[1], &[4], far, p, far, p),
            launch(&[4], &[4], &[1, 4, 1], far, far, p, p),
            launch(&[8], &[8], &[8], p, far, far, p),
        ] {
            assert_eq!(e.code(), Code::InvalidArgument, "{e}");
        }
        assert!(lookup(DType::F32, DType::F32).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn any_broadcast(
            dims in prop::collection::vec((0i64..5, any::<[bool; 3]>()), 0..=6),
            long in any::<bool>(),
            drop in any::<[bool; 3]>(),
        ) {
            let last = dims.len().saturating_sub(1);
            let shapes = [0, 1, 2].map(|n| {
                let of = |(i, &(d, keep)): (usize, &(i64, [bool; 3]))| {
                    if !keep[n] { 1 } else if long && i == last { 60 * d } else { d }
                };
                let shape: Vec<i64> = dims.iter().enumerate().map(of).collect();
                let ones = if drop[n] { shape.iter().take_while(|&&d| d == 1).count() } else { 0 };
                shape[ones..].to_vec()
            });
            check(&Serial, [&shapes[0], &shapes[1], &shapes[2]], DType::BOOL, DType::U8);
            check(&Serial, [&shapes[0], &shapes[1], &shapes[2]], DType::I16, DType::F64);
        }
    }
}
