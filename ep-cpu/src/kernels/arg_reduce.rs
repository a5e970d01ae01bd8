//! The position of the largest or smallest element along an axis: `[outer, reduced, inner]` to `[outer, inner]`.
//!
//! Over the last axis, the extreme of a block is found as `reduce` finds it, and its place only where it beats
//! what came before. Over other axes, columns side by side carry value and place.

use crate::isa::{Body, Isa};
use crate::kernels::elem::{Bool, Storage};
use crate::kernels::num::Number;
use crate::kernels::raw::{GRAIN_BYTES, Shared, for_ranges};
use crate::kernels::reduce::{BLOCK, End, first};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use half::{bf16, f16};

/// What can be looked for, in the order of the schema's selector.
pub const OPS: &[&str] = &["argmax", "argmin"];

/// Arguments of an [`ArgReduceFn`].
#[derive(Clone, Copy, Debug)]
pub struct ArgReduceArgs {
    /// Dimensions before the axis.
    pub outer: usize,
    /// Length of the axis.
    pub reduced: usize,
    /// Dimensions behind it.
    pub inner: usize,
    /// `[outer, reduced, inner]`, aligned to its elements.
    pub src: *const u8,
    /// `[outer, inner]`, aligned to its elements.
    pub dst: *mut u8,
}

/// Finds positions.
///
/// # Errors
/// `InvalidArgument` for an axis without elements or one that the dtype of positions cannot number, and for a
/// shape that no address space holds; `OutOfMemory` if there is none for partial results; those of `par`.
///
/// # Safety
/// `src` is readable for `outer * reduced * inner` elements and `dst` writable for `outer * inner`, with no other
/// access until this returns; they do not overlap.
pub type ArgReduceFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &ArgReduceArgs) -> Result<()>;

/// One row of the table: index into [`OPS`], dtypes, kernel.
#[derive(Clone, Copy)]
pub struct Row {
    /// What is looked for.
    pub op: usize,
    /// Source dtype.
    pub src: DType,
    /// Dtype of positions.
    pub dst: DType,
    kernel: ArgReduceFn,
}

macro_rules! table {
    ($($t:ty),*) => {
        [$(
            Row { op: 0, src: <$t>::DTYPE, dst: DType::I32, kernel: run::<$t, i32, true> },
            Row { op: 0, src: <$t>::DTYPE, dst: DType::I64, kernel: run::<$t, i64, true> },
            Row { op: 1, src: <$t>::DTYPE, dst: DType::I32, kernel: run::<$t, i32, false> },
            Row { op: 1, src: <$t>::DTYPE, dst: DType::I64, kernel: run::<$t, i64, false> },
        )*]
    };
}

static ROWS: [Row; 52] = table!(Bool, i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64);

/// All rows.
pub fn rows() -> &'static [Row] {
    &ROWS
}

/// The kernel for what is looked for and its dtypes.
pub fn lookup(op: usize, src: DType, dst: DType) -> Option<ArgReduceFn> {
    ROWS.iter().find(|r| (r.op, r.src, r.dst) == (op, src, dst)).map(|r| r.kernel)
}

/// A dtype of positions.
trait Position: Copy + Send + Sync + 'static {
    /// The longest axis that it numbers.
    const MOST: usize;
    fn of(place: usize) -> Self;
}

impl Position for i32 {
    const MOST: usize = 1 << 31;

    #[inline(always)]
    fn of(place: usize) -> i32 {
        place as i32
    }
}

impl Position for i64 {
    const MOST: usize = isize::MAX as usize;

    #[inline(always)]
    fn of(place: usize) -> i64 {
        place as i64
    }
}

/// Elements of a part of a row that a thread works on by itself.
const PART: usize = 128 << 10;
/// Elements looked at side by side, and behind the last of these.
const LANES: usize = 64;
/// Of so few, each is compared with the best before it.
const FEW: usize = 16;
/// Columns that are worked on side by side.
const STRIP: usize = 512;

/// Whether `x`, which comes later, takes the place of `best`.
#[inline(always)]
fn beats<V: Number, const MAX: bool>(x: V, best: V) -> bool {
    // Nothing stays beside NaN but NaN. Without branches, so that it vectorises.
    let stays = if MAX { x <= best } else { x >= best };
    !stays & !best.is_nan()
}

/// Equal, or both NaN.
#[inline(always)]
fn same<V: Number>(a: V, b: V) -> bool {
    (a == b) | (a.is_nan() & b.is_nan())
}

#[inline(always)]
fn extreme<V: Number, const MAX: bool>(a: V, b: V) -> V {
    if MAX { Number::max(a, b) } else { Number::min(a, b) }
}

/// Some elements side by side, at least one.
struct Part<S, const MAX: bool> {
    src: *const S,
    count: usize,
}

impl<S: Storage<Value: Number>, const MAX: bool> Part<S, MAX> {
    /// # Safety
    /// `at < self.count`.
    #[inline(always)]
    unsafe fn value(&self, at: usize) -> S::Value {
        // SAFETY: the maker of `self` promises so many elements.
        unsafe { self.src.add(at).read() }.load()
    }

    /// The extreme of elements `from..to`, at least one.
    ///
    /// # Safety
    /// `from < to <= self.count`.
    #[inline(always)]
    unsafe fn extreme_of(&self, from: usize, to: usize) -> S::Value {
        // SAFETY: all indices are in `from..to`.
        unsafe {
            // Only the loops of fixed length index these, so that they can be registers.
            let mut lanes = [self.value(from); LANES];
            let mut some = [lanes[0]; FEW];
            let mut at = from;
            while at + LANES <= to {
                for (i, lane) in lanes.iter_mut().enumerate() {
                    *lane = extreme::<_, MAX>(*lane, self.value(at + i));
                }
                at += LANES;
            }
            while at + FEW <= to {
                for (i, lane) in some.iter_mut().enumerate() {
                    *lane = extreme::<_, MAX>(*lane, self.value(at + i));
                }
                at += FEW;
            }
            for i in 0..FEW {
                lanes[i] = extreme::<_, MAX>(lanes[i], some[i]);
            }
            let mut half = LANES / 2;
            while half > 0 {
                for i in 0..half {
                    lanes[i] = extreme::<_, MAX>(lanes[i], lanes[i + half]);
                }
                half /= 2;
            }
            let mut best = lanes[0];
            while at < to {
                best = extreme::<_, MAX>(best, self.value(at));
                at += 1;
            }
            best
        }
    }

    /// Where `found`, an element of `from..to`, is first.
    ///
    /// # Safety
    /// `from < to <= self.count`.
    #[inline(always)]
    unsafe fn place_of(&self, found: S::Value, from: usize, to: usize) -> usize {
        // SAFETY: all indices are in `from..to`.
        unsafe {
            let mut at = from;
            // Without branches inside the lanes, so that they vectorise.
            while at + LANES <= to {
                let mut any = false;
                for i in 0..LANES {
                    any |= same(self.value(at + i), found);
                }
                if any {
                    let mut first = LANES as u8;
                    for i in 0..LANES as u8 {
                        let here = if same(self.value(at + usize::from(i)), found) { i } else { LANES as u8 };
                        first = if here < first { here } else { first };
                    }
                    return at + usize::from(first);
                }
                at += LANES;
            }
            (at..to).find(|at| same(self.value(*at), found)).unwrap_or(from)
        }
    }
}

impl<S: Storage<Value: Number>, const MAX: bool> Body for Part<S, MAX> {
    type Out = (S::Value, usize);

    #[inline(always)]
    fn run(self) -> (S::Value, usize) {
        // SAFETY: all indices are below `count`, which is not 0.
        unsafe {
            let (mut best, mut place) = (self.value(0), 0);
            if self.count <= FEW {
                for at in 1..self.count {
                    let x = self.value(at);
                    let better = beats::<_, MAX>(x, best);
                    best = if better { x } else { best };
                    place = if better { at } else { place };
                }
                return (best, place);
            }
            for from in (0..self.count).step_by(BLOCK) {
                let to = self.count.min(from + BLOCK);
                let found = self.extreme_of(from, to);
                if !beats::<_, MAX>(found, best) {
                    continue;
                }
                best = found;
                place = self.place_of(found, from, to);
                if best.is_nan() {
                    break;
                }
            }
            (best, place)
        }
    }
}

/// Rows of at most [`FEW`] elements, at least one, one behind the other.
struct Short<S, P, const MAX: bool> {
    src: *const S,
    rows: usize,
    count: usize,
    dst: *mut P,
}

impl<S: Storage<Value: Number>, P: Position, const MAX: bool> Body for Short<S, P, MAX> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for row in 0..self.rows {
            // SAFETY: the maker of `self` promises so many rows of `count` elements, and as many positions.
            unsafe {
                let (_, place) =
                    Part::<S, MAX> { src: self.src.add(row * self.count), count: self.count }.run();
                self.dst.add(row).write(P::of(place));
            }
        }
    }
}

/// Columns side by side: some steps of them, after which [`Self::best`] is the best so far, and [`Self::place`] the step at
/// which that was found, if it was.
struct Columns<'a, S: Storage, const MAX: bool> {
    src: *const S,
    steps: usize,
    stride: usize,
    best: &'a mut [S::Value],
    place: &'a mut [u32],
}

impl<S: Storage<Value: Number>, const MAX: bool> Body for Columns<'_, S, MAX> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Columns { src, steps, stride, best, place } = self;
        let whole = steps - steps % TURNS;
        // SAFETY: the maker of `self` promises `steps` rows of `best.len()` elements, `stride` apart.
        unsafe {
            for step in (0..whole).step_by(TURNS) {
                take::<S, MAX, TURNS>(src.add(step * stride), stride, step as u32, best, place);
            }
            for step in whole..steps {
                take::<S, MAX, 1>(src.add(step * stride), stride, step as u32, best, place);
            }
        }
    }
}

/// Rows that are looked at while a column's best is in a register.
const TURNS: usize = 4;
/// Rows that are looked at with one numbering. Few in tests, which have no time for many.
const STEPS: usize = if cfg!(test) { 50 } else { 1 << 31 };
/// For no step.
const NONE: u32 = u32::MAX;

/// The next `N` rows, from `step` on. Slices as parameters tell the compiler that they do not alias what is read.
///
/// # Safety
/// Each of the rows is readable for `best.len()` elements.
#[inline(always)]
unsafe fn take<S: Storage<Value: Number>, const MAX: bool, const N: usize>(
    row: *const S,
    stride: usize,
    step: u32,
    best: &mut [S::Value],
    place: &mut [u32],
) {
    let place = &mut place[..best.len()];
    for i in 0..best.len() {
        let (mut found, mut at) = (best[i], place[i]);
        for k in 0..N {
            // SAFETY: the caller's promise.
            let x = unsafe { row.add(k * stride + i).read() }.load();
            let better = beats::<_, MAX>(x, found);
            found = if better { x } else { found };
            at = if better { step + k as u32 } else { at };
        }
        (best[i], place[i]) = (found, at);
    }
}

/// The places of the best of some columns.
///
/// # Safety
/// There are `reduced` rows, at least one, of `best.len()` elements that are readable, `stride` apart.
unsafe fn places<S: Storage<Value: Number>, const MAX: bool>(
    isa: Isa,
    src: *const S,
    reduced: usize,
    stride: usize,
    best: &mut [S::Value],
    places: &mut [usize],
) {
    for (i, best) in best.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *best = unsafe { src.add(i).read() }.load();
    }
    places.fill(0);
    let mut at = [NONE; STRIP];
    let at = &mut at[..best.len()];
    for from in (1..reduced).step_by(STEPS) {
        let steps = STEPS.min(reduced - from);
        // SAFETY: the caller's promise.
        let src = unsafe { src.add(from * stride) };
        isa.dispatch(Columns::<S, MAX> { src, steps, stride, best, place: at });
        for (place, at) in places.iter_mut().zip(at.iter_mut()).filter(|(_, at)| **at != NONE) {
            *place = from + std::mem::replace(at, NONE) as usize;
        }
    }
}

/// # Safety
/// As for [`ArgReduceFn`].
unsafe fn run<S: Storage<Value: Number>, P: Position, const MAX: bool>(
    isa: Isa,
    par: &dyn Parallel,
    args: &ArgReduceArgs,
) -> Result<()> {
    let &ArgReduceArgs { outer, reduced, inner, .. } = args;
    if outer == 0 || inner == 0 {
        return Ok(());
    }
    if reduced == 0 || reduced > P::MOST {
        return Err(Error::invalid(format!(
            "an axis of {reduced} elements: one has a largest element and positions for this dtype from 1 to {}",
            P::MOST
        )));
    }
    let size = size_of::<S>().max(size_of::<P>());
    let total = outer.checked_mul(reduced).and_then(|n| n.checked_mul(inner)?.checked_mul(size));
    if total.is_none_or(|n| n > isize::MAX as usize) {
        return Err(Error::invalid(format!(
            "[{outer}, {reduced}, {inner}] elements: no address space holds that"
        )));
    }
    let (src, dst) = (Shared::new(args.src.cast_mut().cast::<S>()), Shared::new(args.dst.cast::<P>()));
    if inner > 1 {
        let strips = inner.div_ceil(STRIP);
        let item = reduced.saturating_mul(inner.min(STRIP)).saturating_mul(size_of::<S>());
        return for_ranges(par, outer * strips, item, 1, |range| {
            let (mut best, mut place) = ([S::store_zero(); STRIP], [0; STRIP]);
            for unit in range {
                let (o, column) = (unit / strips, unit % strips * STRIP);
                let width = STRIP.min(inner - column);
                let (best, place) = (&mut best[..width], &mut place[..width]);
                // SAFETY: the strip's part of outer index `o`, and its results, which one task writes.
                unsafe {
                    let src = src.get().add(o * reduced * inner + column);
                    places::<S, MAX>(isa, src, reduced, inner, best, place);
                    for (i, place) in place.iter().enumerate() {
                        dst.get().add(o * inner + column + i).write(P::of(*place));
                    }
                }
            }
            Ok(())
        });
    }
    if reduced <= FEW {
        return for_ranges(par, outer, reduced * size_of::<S>() + size_of::<P>(), 1, |range| {
            // SAFETY: rows below `outer`, whose positions one task writes.
            let (src, dst) = unsafe { (src.get().add(range.start * reduced), dst.get().add(range.start)) };
            isa.dispatch(Short::<S, P, MAX> { src, rows: range.len(), count: reduced, dst });
            Ok(())
        });
    }
    let parts = reduced.div_ceil(PART);
    let part = |row: usize, p: usize| {
        let from = p * PART;
        let count = PART.min(reduced - from);
        // SAFETY: a part of row `row`, with at least one element.
        let at = unsafe { src.get().add(row * reduced + from) };
        let end = if MAX { End::Greatest } else { End::Least };
        // SAFETY: as above.
        let float = unsafe { first(isa, end, at, count) };
        let (best, place) = float.unwrap_or_else(|| isa.dispatch(Part::<S, MAX> { src: at, count }));
        (best, from + place)
    };
    let better = |a: (S::Value, usize), b: (S::Value, usize)| if beats::<_, MAX>(b.0, a.0) { b } else { a };
    let row_bytes = reduced.saturating_mul(size_of::<S>());
    if parts == 1 || outer >= 4 * par.threads() || outer.saturating_mul(row_bytes) < 2 * GRAIN_BYTES {
        return for_ranges(par, outer, row_bytes, 1, |range| {
            for row in range {
                let found = (1..parts).map(|p| part(row, p)).fold(part(row, 0), better);
                // SAFETY: `row < outer`, written by one task.
                unsafe { dst.get().add(row).write(P::of(found.1)) };
            }
            Ok(())
        });
    }
    let count = outer * parts;
    let mut found = Vec::new();
    found
        .try_reserve_exact(count)
        .map_err(|_| Error::out_of_memory(format!("{count} partial results of a search along an axis")))?;
    found.resize(count, (S::store_zero(), 0));
    let into = Shared::new(found.as_mut_ptr());
    for_ranges(par, count, PART * size_of::<S>(), 1, |range| {
        for at in range {
            // SAFETY: `at < count`, written by one task.
            unsafe { into.get().add(at).write(part(at / parts, at % parts)) };
        }
        Ok(())
    })?;
    for (row, parts) in found.chunks(parts).enumerate() {
        let found = parts[1..].iter().copied().fold(parts[0], better);
        // SAFETY: `row < outer`.
        unsafe { dst.get().add(row).write(P::of(found.1)) };
    }
    Ok(())
}

/// A value to fill room with before it is written.
trait Zero: Storage<Value: Number> {
    fn store_zero() -> Self::Value {
        Number::ZERO
    }
}

impl<S: Storage<Value: Number>> Zero for S {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Guarded, Rng, Threads};
    use primitives::reference::{Data, Launch, Number as Value};

    fn check(row: &Row, shape: [usize; 3], data: &Data, threads: usize, isa: Isa) {
        let [outer, reduced, inner] = shape;
        let op = OPS[row.op];
        let want = Launch::new("arg_reduce")
            .selector("op", op)
            .dtype("src", row.src)
            .dtype("dst", row.dst)
            .size("outer", outer as i64)
            .size("reduced", reduced as i64)
            .size("inner", inner as i64)
            .read("src", data.view())
            .run();
        let size = row.dst.size().unwrap();
        let mut out = Guarded::<u8>::new(outer * inner * size + 8);
        let words: Vec<u64> = data
            .bytes
            .chunks(8)
            .map(|c| {
                let mut word = [0; 8];
                word[..c.len()].copy_from_slice(c);
                u64::from_ne_bytes(word)
            })
            .collect();
        let start = out.ptr().align_offset(8);
        // SAFETY: inside of the guarded room.
        let dst = unsafe { out.ptr().add(start) };
        let args = ArgReduceArgs { outer, reduced, inner, src: words.as_ptr().cast(), dst };
        // SAFETY: both sides have these sizes, aligned to 8.
        let done = unsafe { (row.kernel)(isa, &Threads(threads), &args) };
        match want {
            Err(e) => assert_eq!(done.unwrap_err().code(), e.code(), "{op} {shape:?}"),
            Ok(outputs) => {
                done.unwrap();
                let want = &outputs.get("dst").unwrap().bytes;
                assert_eq!(
                    &out.written()[start..][..want.len()],
                    &want[..],
                    "{op} {} {shape:?} {isa}",
                    row.src
                );
            }
        }
    }

    #[test]
    fn positions_are_those_of_the_reference() {
        let mut rng = Rng::new();
        let shapes = [
            [0, 3, 2],
            [2, 0, 3],
            [3, 1, 1],
            [9, 3, 1],
            [9, 7, 1],
            [1, 67, 1],
            [5, 131, 1],
            [3, 7, 5],
            [2, 33, 600],
            [1, 2 * STEPS + 9, 21],
            [1, BLOCK + 1, 1],
            [1, 3 * PART / 2, 1],
        ];
        for row in rows() {
            for shape in shapes {
                let large = shape[1] >= PART;
                if large && !(row.src == DType::F32 || row.src == DType::U8) {
                    continue;
                }
                let count = shape.iter().product();
                // Few different values, so that there are ties; for floats NaN, rarely, and both zeros.
                let value = |rng: &mut Rng| match (DType::FLOAT.contains(&row.src), rng.next() % 40) {
                    (true, 0) if rng.next().is_multiple_of(8) => Value::Real(f64::NAN),
                    (true, 1) => Value::Real(-0.0),
                    (true, 2) => Value::Real(f64::NEG_INFINITY),
                    (true, n) => Value::Real(n as f64 - 20.0),
                    (false, n) => Value::Int(n as i128 % 100),
                };
                let data = Data::new(row.src, (0..count).map(|_| value(&mut rng)));
                let levels = Isa::available();
                for isa in if large { &levels[levels.len() - 1..] } else { &levels } {
                    check(row, shape, &data, 1 + rng.next() as usize % 3, *isa);
                }
            }
        }
    }

    /// Alone in any block, at its ends and behind the last vector, and the first of two; a lone NaN before and behind it.
    #[test]
    fn one_extreme_is_found_wherever_it_is() {
        const COUNT: usize = 2 * BLOCK + 37;
        let places = [0, 1, 63, 64, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, COUNT - 2, COUNT - 1];
        for row in rows().iter().filter(|r| r.dst == DType::I32) {
            let float = DType::FLOAT.contains(&row.src);
            let number = |n: i32| if float { Value::Real(n.into()) } else { Value::Int(n.into()) };
            let least = if row.src == DType::BOOL { [1, 0] } else { [7, 3] };
            let [usual, extreme] = if OPS[row.op] == "argmin" { least } else { [least[1], least[0]] };
            for place in places {
                let mut values = vec![number(usual); COUNT];
                values[place] = number(extreme);
                values[COUNT - 1] = number(extreme);
                let lone_nan = values
                    .iter()
                    .enumerate()
                    .map(|(i, v)| if i == BLOCK + 5 { Value::Real(f64::NAN) } else { *v });
                let with_nan: Option<Vec<Value>> = float.then(|| lone_nan.collect());
                for values in std::iter::once(values.clone()).chain(with_nan) {
                    let data = Data::new(row.src, values);
                    for isa in Isa::available() {
                        check(row, [1, COUNT, 1], &data, 1, isa);
                    }
                }
            }
        }
        // In the second part of a row.
        let row = rows().iter().find(|r| (r.src, r.op) == (DType::F32, 0)).unwrap();
        for place in [PART, PART + BLOCK + 3, PART + BLOCK + 4] {
            let values = (0..PART + BLOCK + 5).map(|i| Value::Real(if i == place { 2.0 } else { 1.0 }));
            check(row, [1, PART + BLOCK + 5, 1], &Data::new(row.src, values), 2, Isa::detect().unwrap());
        }
    }
}
