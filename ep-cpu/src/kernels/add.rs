//! Add: the sum of any number of sources, in one pass over each.
//!
//! Terms are added from left to right. f16 and bf16 add in f32 and round once, integers wrap, bool is "or".

use super::elem::{Bool, GROUP, Storage};
use super::engine::Run;
use super::fill::fill_pattern;
use super::memcpy::{MemcpyArgs, memcpy};
use super::raw::{Shared, for_ranges};
use super::simd::{self, Kernel, Lanes};
use super::stream::{self, Ahead, Blocks};
use crate::isa::{Body, Isa};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use half::{bf16, f16};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::{ptr, slice};

/// Arguments of an [`AddFn`].
#[derive(Clone, Copy, Debug)]
pub struct AddArgs<'a> {
    /// Elements of each operand.
    pub count: usize,
    /// The address of the first element of each source; any number of them.
    pub srcs: &'a [u64],
    /// The first element of the destination.
    pub dst: *mut u8,
}

/// Writes the sum of the sources to the destination: zeros if there are none.
///
/// # Errors
/// `InvalidArgument` if the elements are more bytes than an address space holds; those of `par`.
///
/// # Safety
/// Addresses are aligned to their elements, the sources readable and `dst` writable for `count` elements, and
/// nothing else writes the sources or touches the destination meanwhile. The destination is the same address as
/// any of the sources, or does not overlap them; sources may overlap.
pub type AddFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &AddArgs<'_>) -> Result<()>;

/// The kernel for a dtype; `None` for dtypes outside [`DType::ALL`].
pub fn lookup(dtype: DType) -> Option<AddFn> {
    Some(match dtype {
        DType::BOOL => sum::<Bool, 1>,
        // The sum modulo a power of two does not depend on the sign.
        DType::I8 | DType::U8 => sum::<u8, 1>,
        DType::I16 | DType::U16 => sum::<u16, 1>,
        DType::I32 | DType::U32 => sum::<u32, 1>,
        DType::I64 | DType::U64 => sum::<u64, 1>,
        DType::F16 => sum::<f16, 1>,
        DType::BF16 => sum::<bf16, 1>,
        DType::F32 => sum::<f32, 1>,
        DType::F64 => sum::<f64, 1>,
        DType::COMPLEX64 => sum::<f32, 2>,
        DType::COMPLEX128 => sum::<f64, 2>,
        _ => return None,
    })
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| lookup(dtype).is_some())
}

/// An element that can be added.
trait Term: Storage {
    fn plus(a: Self::Value, b: Self::Value) -> Self::Value;
}

macro_rules! terms {
    ($($t:ty: |$a:ident, $b:ident| $sum:expr;)*) => {$(
        impl Term for $t {
            #[inline(always)]
            fn plus($a: Self::Value, $b: Self::Value) -> Self::Value {
                $sum
            }
        }
    )*};
}
terms! {
    Bool: |a, b| a | b;
    u8: |a, b| a.wrapping_add(b);
    u16: |a, b| a.wrapping_add(b);
    u32: |a, b| a.wrapping_add(b);
    u64: |a, b| a.wrapping_add(b);
    f16: |a, b| a + b;
    bf16: |a, b| a + b;
    f32: |a, b| a + b;
    f64: |a, b| a + b;
}

/// `PARTS` numbers of type `T` are an element.
unsafe fn sum<T: Term, const PARTS: usize>(isa: Isa, par: &dyn Parallel, args: &AddArgs<'_>) -> Result<()> {
    let &AddArgs { count, srcs, dst } = args;
    let size = size_of::<T>();
    let n = count
        .checked_mul(PARTS)
        .filter(|n| n.checked_mul(size).is_some_and(|bytes| bytes <= isize::MAX as usize))
        .ok_or_else(|| too_many(count))?;
    match *srcs {
        _ if n == 0 => return Ok(()),
        // SAFETY: the caller's promise.
        [] => return unsafe { fill_pattern(isa, par, dst, [0; 16], n * size) },
        [src] => {
            let src = ptr::with_exposed_provenance(src as usize);
            // SAFETY: the caller's promise.
            return unsafe { memcpy(isa, par, &MemcpyArgs { dst, src, bytes: n * size }) };
        }
        _ => {}
    }
    let in_place = srcs.contains(&(dst.addr() as u64));
    let sum = Sum::<T> { isa, srcs, in_place, term: PhantomData };
    let bytes = size.saturating_mul(srcs.len() + 1);
    let streaming = !in_place && stream::pays(par, n * size, n.saturating_mul(bytes));
    let mut ahead = [Ahead { start: ptr::null(), size }; MOST_AHEAD];
    for (ahead, &src) in ahead.iter_mut().zip(srcs) {
        ahead.start = ptr::with_exposed_provenance(src as usize);
    }
    let ahead = &ahead[..srcs.len().min(MOST_AHEAD)];
    let to = Shared::new(dst);
    for_ranges(par, n, bytes, MULTIPLE, |range| {
        // SAFETY: the range is within the `n` numbers, and other tasks have other ranges.
        unsafe {
            if streaming {
                stream::blocks(isa, &sum, to.get(), size, range, ahead);
            } else {
                let mut at = range.start;
                sum.compute(&mut at, Run::cached(range.len()), to.get().add(range.start * size));
            }
        }
        Ok(())
    })
}

#[cold]
fn too_many(count: usize) -> Error {
    Error::invalid(format!("add of {count} elements: no address space holds that"))
}

/// Ranges of a parallel launch begin at multiples of this, so that no two threads write one line.
const MULTIPLE: usize = 64;
/// Sources that are fetched ahead; more would evict each other.
const MOST_AHEAD: usize = 8;
/// The most sources that are added right into the destination, but for elements that are converted many at a time. Of more,
/// blocks are added that stay in the first-level cache.
const DIRECT: usize = 8;
/// The most sources that are added to a block in one pass over it.
const FUSED: usize = 4;
/// Numbers of a block.
const BLOCK: usize = 512;

struct Sum<'a, T> {
    isa: Isa,
    srcs: &'a [u64],
    in_place: bool,
    term: PhantomData<fn() -> T>,
}

impl<T: Term> Blocks for Sum<'_, T> {
    type Cursor = usize;

    fn cursor(&self, at: usize, _: usize) -> usize {
        at
    }

    fn streams(&self) -> bool {
        false
    }

    unsafe fn compute(&self, at: &mut usize, Run { n, .. }: Run, out: *mut u8) {
        let out = out.cast::<T>();
        // SAFETY: `out` has `n` numbers by the caller's promise, and the sources have them from `at` on.
        unsafe {
            if T::BULK {
                simd::dispatch(self.isa, Grouped::<T> { srcs: self.srcs, at: *at, out, n });
            } else if self.srcs.len() <= DIRECT && !self.in_place {
                self.direct(*at, slice::from_raw_parts_mut(out.cast(), n));
            } else {
                for start in (0..n).step_by(BLOCK) {
                    let len = BLOCK.min(n - start);
                    self.block(*at + start, out.add(start), len);
                }
            }
        }
        *at += n;
    }
}

impl<T: Term> Sum<'_, T> {
    /// Computes `n` numbers, up to [`BLOCK`]. All sources of a block have been read before it is written, so that the
    /// destination may be among them.
    ///
    /// # Safety
    /// The sources have the numbers from `at` on, and `out` is writable for them.
    unsafe fn block(&self, at: usize, out: *mut T, n: usize) {
        let mut sums = [const { MaybeUninit::<T::Value>::uninit() }; BLOCK];
        let sums = &mut sums[..n];
        for (i, srcs) in self.srcs.chunks(FUSED).enumerate() {
            // SAFETY: the caller's promise; the first pass writes the sums that later ones add to.
            unsafe {
                if i == 0 {
                    self.pass::<false>(srcs, at, sums);
                } else {
                    self.pass::<true>(srcs, at, sums);
                }
            }
        }
        // SAFETY: every pass has written all sums, and nothing reads the sources any more.
        let (sums, out) = unsafe { (written(sums), slice::from_raw_parts_mut(out.cast(), n)) };
        store::<T>(sums, out);
    }

    /// Adds up to [`DIRECT`] sources, at least two, right into `out`.
    ///
    /// # Safety
    /// The sources have the numbers from `at` on, and none of them is `out`.
    unsafe fn direct(&self, at: usize, out: &mut [MaybeUninit<T>]) {
        // SAFETY: the caller's promise.
        unsafe {
            match *self.srcs {
                [a, b] => self.isa.dispatch(Direct { srcs: starts([a, b], at), out }),
                [a, b, c] => self.isa.dispatch(Direct { srcs: starts([a, b, c], at), out }),
                [a, b, c, d] => self.isa.dispatch(Direct { srcs: starts([a, b, c, d], at), out }),
                [a, b, c, d, e] => self.isa.dispatch(Direct { srcs: starts([a, b, c, d, e], at), out }),
                [a, b, c, d, e, f] => self.isa.dispatch(Direct { srcs: starts([a, b, c, d, e, f], at), out }),
                [a, b, c, d, e, f, g] => {
                    self.isa.dispatch(Direct { srcs: starts([a, b, c, d, e, f, g], at), out })
                }
                [a, b, c, d, e, f, g, h] => {
                    self.isa.dispatch(Direct { srcs: starts([a, b, c, d, e, f, g, h], at), out })
                }
                _ => unreachable!("{} sources are not added in one pass", self.srcs.len()),
            }
        }
    }

    /// Adds up to [`FUSED`] sources, to what the sums hold where there is `MORE` before them.
    ///
    /// # Safety
    /// The sources have the numbers from `at` on; where there is more, the sums are written.
    unsafe fn pass<const MORE: bool>(&self, srcs: &[u64], at: usize, sums: &mut [MaybeUninit<T::Value>]) {
        // SAFETY: the caller's promise.
        unsafe {
            match *srcs {
                [a] => self.isa.dispatch(Pass::<T, 1, MORE> { srcs: starts([a], at), sums }),
                [a, b] => self.isa.dispatch(Pass::<T, 2, MORE> { srcs: starts([a, b], at), sums }),
                [a, b, c] => self.isa.dispatch(Pass::<T, 3, MORE> { srcs: starts([a, b, c], at), sums }),
                [a, b, c, d] => {
                    self.isa.dispatch(Pass::<T, 4, MORE> { srcs: starts([a, b, c, d], at), sums })
                }
                _ => unreachable!("{} sources are not a pass", srcs.len()),
            }
        }
    }
}

/// A source's numbers.
fn address<T>(src: u64) -> *const T {
    ptr::with_exposed_provenance(src as usize)
}

/// The sources' numbers from `at` on.
///
/// # Safety
/// They have so many.
#[inline(always)]
unsafe fn starts<T, const K: usize>(srcs: [u64; K], at: usize) -> [*const T; K] {
    let mut starts = [ptr::null(); K];
    for (start, src) in starts.iter_mut().zip(srcs) {
        // SAFETY: the caller's promise.
        *start = unsafe { address::<T>(src).add(at) };
    }
    starts
}

/// # Safety
/// All values are written.
unsafe fn written<V>(values: &mut [MaybeUninit<V>]) -> &mut [V] {
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

/// Made only where the sources are readable for as many numbers as are written, which they are apart from.
struct Direct<'a, T, const K: usize> {
    srcs: [*const T; K],
    out: &'a mut [MaybeUninit<T>],
}

impl<T: Term, const K: usize> Body for Direct<'_, T, K> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        direct(self.srcs, self.out);
    }
}

// A slice as a parameter of its own tells the compiler that nothing else points there; inside a struct it does not.
#[inline(always)]
fn direct<T: Term, const K: usize>(srcs: [*const T; K], out: &mut [MaybeUninit<T>]) {
    for (i, out) in out.iter_mut().enumerate() {
        // SAFETY: what `Direct` is made with.
        let mut sum = unsafe { srcs[0].add(i).read() }.load();
        for src in &srcs[1..] {
            // SAFETY: as above.
            sum = T::plus(sum, unsafe { src.add(i).read() }.load());
        }
        out.write(T::store(sum));
    }
}

// As for `direct`.
fn store<T: Term>(sums: &[T::Value], out: &mut [MaybeUninit<T>]) {
    for (out, &sum) in out.iter_mut().zip(sums) {
        out.write(T::store(sum));
    }
}

/// As [`Direct`], with sums of the type computed in, which hold what to add to where there is `MORE`.
struct Pass<'a, T: Term, const K: usize, const MORE: bool> {
    srcs: [*const T; K],
    sums: &'a mut [MaybeUninit<T::Value>],
}

impl<T: Term, const K: usize, const MORE: bool> Body for Pass<'_, T, K, MORE> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        pass::<T, K, MORE>(self.srcs, self.sums);
    }
}

// As for `direct`.
#[inline(always)]
fn pass<T: Term, const K: usize, const MORE: bool>(srcs: [*const T; K], sums: &mut [MaybeUninit<T::Value>]) {
    for (i, out) in sums.iter_mut().enumerate() {
        // SAFETY: what `Pass` is made with.
        let mut sum = unsafe { srcs[0].add(i).read() }.load();
        if MORE {
            // SAFETY: as above.
            sum = T::plus(unsafe { out.assume_init() }, sum);
        }
        for src in &srcs[1..] {
            // SAFETY: as above.
            sum = T::plus(sum, unsafe { src.add(i).read() }.load());
        }
        out.write(sum);
    }
}

/// Sums of elements that are converted many at a time, of any number of sources: nine take two thirds of what blocks take.
/// Made only where the sources, at least one, have the numbers from `at` on and `out` is writable for `n`; it may be among the
/// sources, as a group of all has been read before that is written.
struct Grouped<'a, T> {
    srcs: &'a [u64],
    at: usize,
    out: *mut T,
    n: usize,
}

impl<T: Term> Kernel for Grouped<'_, T> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { srcs, at, out, n } = self;
        let whole = n - n % GROUP;
        // SAFETY: what this is made with; `dispatch` runs it.
        unsafe {
            for i in (0..whole).step_by(GROUP) {
                let mut sums = T::load_group::<L>(address::<T>(srcs[0]).add(at + i));
                for &src in &srcs[1..] {
                    let term = T::load_group::<L>(address::<T>(src).add(at + i));
                    for (sum, term) in sums.0.iter_mut().zip(term.0) {
                        *sum = T::plus(*sum, term);
                    }
                }
                T::store_group::<L>(&sums, out.add(i));
            }
            for i in whole..n {
                let mut sum = address::<T>(srcs[0]).add(at + i).read().load();
                for &src in &srcs[1..] {
                    sum = T::plus(sum, address::<T>(src).add(at + i).read().load());
                }
                out.add(i).write(T::store(sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::{Buffer, Val, decode, encode, samples, size};
    use crate::kernels::testing::{Rng, Threads};
    use ep_core::Code;
    use ep_core::parallel::Serial;

    /// The sum from left to right in the type that a dtype adds in, rounded once.
    fn reference(dtype: DType, terms: &[Val]) -> Vec<u8> {
        let narrow =
            |x: f64| if matches!(dtype, DType::F64 | DType::COMPLEX128) { x } else { f64::from(x as f32) };
        let float = |of: &dyn Fn(Val) -> f64| {
            let mut terms = terms.iter().map(|&x| of(x));
            let first = terms.next().unwrap_or(0.0);
            terms.fold(first, |a, b| narrow(a + b))
        };
        let imaginary = |v| match v {
            Val::Complex(_, im) => im,
            other => panic!("{other:?}"),
        };
        let sum = match dtype {
            DType::BOOL => Val::Int(terms.iter().any(|t| t.truth()).into()),
            _ if dtype.is_int() => Val::Int(terms.iter().fold(0, |a, b| a + b.int())),
            _ if dtype.is_complex() => Val::Complex(float(&Val::float), float(&imaginary)),
            _ => Val::Float(float(&Val::float)),
        };
        encode(dtype, sum)
    }

    struct Case<'a> {
        dtype: DType,
        isa: Isa,
        par: &'a dyn Parallel,
        count: usize,
        arity: usize,
        /// Sources that are the destination too.
        shared: &'a [usize],
    }

    fn check(case: &Case<'_>, rng: &mut Rng) {
        let Case { dtype, isa, count, arity, .. } = *case;
        let size = size(dtype);
        let mut sources: Vec<Vec<u8>> = (0..arity).map(|_| samples(dtype, count, rng)).collect();
        for &i in case.shared {
            sources[i] = sources[case.shared[0]].clone();
        }
        let mut buffers: Vec<Buffer> = sources.iter().map(|s| Buffer::of(s, size)).collect();
        let mut separate = Buffer::poisoned(count * size, size);
        let dst = match case.shared.first() {
            Some(&i) => buffers[i].ptr(),
            None => separate.ptr(),
        };
        let of = |(i, b): (usize, &mut Buffer)| if case.shared.contains(&i) { dst } else { b.ptr() };
        let srcs: Vec<u64> =
            buffers.iter_mut().enumerate().map(of).map(|p| p.expose_provenance() as u64).collect();
        let args = AddArgs { count, srcs: &srcs, dst };
        // SAFETY: every buffer has `count` aligned elements.
        unsafe { lookup(dtype).unwrap()(isa, case.par, &args) }.unwrap();
        let mut got = Vec::new();
        for (i, buffer) in buffers.into_iter().enumerate() {
            let bytes = buffer.into_bytes();
            if case.shared.first() == Some(&i) {
                got = bytes;
            } else {
                assert!(bytes == sources[i], "source {i} was written");
            }
        }
        if case.shared.is_empty() {
            got = separate.into_bytes();
        }
        let decoded: Vec<Vec<Val>> = sources.iter().map(|s| decode(dtype, s)).collect();
        for (i, (got, raw)) in decode(dtype, &got).into_iter().zip(got.chunks(size)).enumerate() {
            let terms: Vec<Val> = decoded.iter().map(|s| s[i]).collect();
            let want = reference(dtype, &terms);
            let same = raw == want || got.same(decode(dtype, &want)[0]);
            assert!(same, "{dtype} {isa}, {arity} terms, {count} elements [{i}]: {terms:?} is {got:?}");
        }
    }

    #[test]
    fn every_dtype_level_and_arity() {
        let mut rng = Rng::new();
        assert_eq!(rows().count(), 15);
        for dtype in rows() {
            for isa in Isa::available() {
                for arity in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 23] {
                    let count = (rng.next() % 90) as usize + 500 * (arity % 2);
                    check(&Case { dtype, isa, par: &Serial, count, arity, shared: &[] }, &mut rng);
                }
            }
        }
    }

    #[test]
    fn the_destination_may_be_any_of_the_sources() {
        let mut rng = Rng::new();
        for (dtype, isa) in rows().flat_map(|dtype| Isa::available().into_iter().map(move |isa| (dtype, isa)))
        {
            let several: [(usize, &[usize]); 8] = [
                (1, &[0]),
                (2, &[0]),
                (2, &[1]),
                (2, &[0, 1]),
                (5, &[4]),
                (6, &[0, 5]),
                (9, &[3]),
                (100, &[7, 64, 99]),
            ];
            for (arity, shared) in several {
                let count = 300 + (rng.next() % 900) as usize;
                check(&Case { dtype, isa, par: &Serial, count, arity, shared }, &mut rng);
            }
        }
    }

    #[test]
    fn many_terms_on_several_threads() {
        let mut rng = Rng::new();
        let isa = *Isa::available().last().unwrap();
        for (dtype, arity, shared) in [
            (DType::F32, 3, &[][..]),
            (DType::BF16, 6, &[2]),
            (DType::F16, 3, &[]),
            (DType::COMPLEX64, 100, &[]),
        ] {
            let count = 70_001 + 100_000 / arity;
            check(&Case { dtype, isa, par: &Threads(3), count, arity, shared }, &mut rng);
        }
    }

    #[test]
    fn streams_past_the_cache() {
        let mut rng = Rng::new();
        let isa = *Isa::available().last().unwrap();
        let count = stream::STREAM_BYTES / 4 + 1003;
        let fill = |rng: &mut Rng| -> Vec<f32> { (0..=count).map(|_| rng.signed() as f32).collect() };
        let (a, b) = (fill(&mut rng), fill(&mut rng));
        let mut dst = vec![f32::NAN; count + 1];
        let srcs = [&a[1..], &b[..count], &a[..count]].map(|s| s.as_ptr().expose_provenance() as u64);
        let args = AddArgs { count, srcs: &srcs, dst: dst[1..].as_mut_ptr().cast() };
        // SAFETY: all have `count` elements.
        unsafe { lookup(DType::F32).unwrap()(isa, &Threads(2), &args) }.unwrap();
        assert!(dst[0].is_nan());
        let wrong = (0..count).find(|&i| dst[i + 1].to_bits() != (a[i + 1] + b[i] + a[i]).to_bits());
        assert_eq!(wrong, None);
    }

    #[test]
    fn too_many_elements_are_refused_and_none_are_nothing() {
        let run = |count, srcs: &[u64]| {
            let args = AddArgs { count, srcs, dst: ptr::null_mut() };
            // SAFETY: refused, or nothing to do, before any address is used.
            unsafe { lookup(DType::COMPLEX128).unwrap()(Isa::BASELINE, &Serial, &args) }
        };
        for srcs in [&[][..], &[0], &[0, 0]] {
            assert_eq!(run(usize::MAX / 8, srcs).unwrap_err().code(), Code::InvalidArgument);
            assert_eq!(run(1 << 60, srcs).unwrap_err().code(), Code::InvalidArgument);
            run(0, srcs).unwrap();
        }
    }
}
