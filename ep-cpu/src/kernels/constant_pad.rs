//! Constant pad: a border of one value around a tensor, or, where the padding is negative, a part of it.

use crate::isa::Isa;
use crate::kernels::raw::{Shared, for_ranges};
use crate::kernels::sink::{self, FAR_BYTES, PIECE, Pattern, Producer, Sink, prefetch};
use ep_core::parallel::Parallel;
use ep_core::{DType, Error, Result};
use std::ops::Range;

/// The most dimensions.
pub const MAX_DIMS: usize = 8;

/// Bytes prefetched ahead of a copy of rows.
const AHEAD: usize = 2048;

/// Arguments of a [`ConstantPadFn`].
#[derive(Clone, Copy, Debug)]
pub struct ConstantPadArgs<'a> {
    /// The source's dimensions, outermost first; at most 8, none negative.
    pub src_dims: &'a [i64],
    /// Elements put before each dimension; where negative, elements that are left out.
    pub before: &'a [i64],
    /// The same after each.
    pub after: &'a [i64],
    /// The bytes of one border element as they lie in memory, first in the array; the rest is ignored.
    pub value: [u8; 16],
    /// The dense row-major source; any alignment.
    pub src: *const u8,
    /// The dense row-major destination, of dimensions `before + src_dims + after`; any alignment.
    pub dst: *mut u8,
}

/// Pads. An element of the destination that is `before` after no element of the source is the border's, also
/// where both paddings of a dimension are so negative that nothing of the source is left.
///
/// # Errors
/// `InvalidArgument` if the lists differ in length or are longer than 8, a dimension of the source or the
/// destination is negative, or either has more bytes than an address space holds; those of `par`.
///
/// # Safety
/// `src` is readable and `dst` writable for all elements, with no other access until this returns; they do
/// not overlap.
pub type ConstantPadFn = unsafe fn(isa: Isa, par: &dyn Parallel, args: &ConstantPadArgs<'_>) -> Result<()>;

/// The kernel for a dtype. Elements are only bytes here, so the size decides.
pub fn lookup(dtype: DType) -> Option<ConstantPadFn> {
    match dtype.size()? {
        1 => Some(constant_pad::<1>),
        2 => Some(constant_pad::<2>),
        4 => Some(constant_pad::<4>),
        8 => Some(constant_pad::<8>),
        16 => Some(constant_pad::<16>),
        _ => None,
    }
}

/// Every dtype that [`lookup`] finds.
pub fn rows() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| lookup(dtype).is_some())
}

unsafe fn constant_pad<const SIZE: usize>(
    isa: Isa,
    par: &dyn Parallel,
    args: &ConstantPadArgs<'_>,
) -> Result<()> {
    let Some(plan) = Plan::new(args, SIZE)? else {
        return Ok(());
    };
    let pattern = Pattern::new(&args.value, SIZE);
    let copied = plan.copied();
    let streaming = sink::streams(plan.bytes, copied);
    // Long rows are prefetched as they are copied.
    let ahead = if copied < FAR_BYTES || plan.row.copied > AHEAD { 0 } else { AHEAD };
    let (src, dst) = (Shared::new(args.src.cast_mut()), Shared::new(args.dst));
    for_ranges(par, plan.bytes, 2, PIECE, |bytes| {
        let src = src.get().cast_const();
        // SAFETY: the range is within the destination and no other task has it.
        unsafe {
            let to = dst.get().add(bytes.start);
            sink::write(isa, streaming, to, Padded { plan: &plan, pattern: &pattern, src, bytes, ahead });
        }
        Ok(())
    })
}

/// One dimension: its sizes on both sides and the part that is copied.
#[derive(Clone, Copy, Debug)]
struct Axis {
    src: usize,
    dst: usize,
    src_start: usize,
    dst_start: usize,
    copied: usize,
}

impl Axis {
    const ONE: Axis = Axis { src: 1, dst: 1, src_start: 0, dst_start: 0, copied: 1 };

    /// `None` for a size that is negative or overflows.
    fn new(src: i64, before: i64, after: i64) -> Option<Axis> {
        let end = before.checked_add(src)?;
        let dst = end.checked_add(after)?;
        let dst_start = before.clamp(0, dst.max(0));
        let copied = end.clamp(dst_start, dst.max(dst_start)) - dst_start;
        // Where nothing is copied, its start may lie as far outside as the paddings are large.
        let src_start = if copied == 0 { 0 } else { (dst_start - before).max(0) };
        Some(Axis {
            src: usize::try_from(src).ok()?,
            dst: usize::try_from(dst).ok()?,
            src_start: src_start as usize,
            dst_start: dst_start as usize,
            copied: copied as usize,
        })
    }

    /// This axis in units that are `n` times as small.
    fn scaled(self, n: usize) -> Axis {
        let Axis { src, dst, src_start, dst_start, copied } = self;
        Axis {
            src: src * n,
            dst: dst * n,
            src_start: src_start * n,
            dst_start: dst_start * n,
            copied: copied * n,
        }
    }
}

/// A pad of a tensor that has elements: outer dimensions, rows, and the bytes of a row.
struct Plan {
    outer: [Axis; MAX_DIMS],
    num_outer: usize,
    rows: Axis,
    row: Axis,
    /// Of the destination.
    bytes: usize,
}

impl Plan {
    /// `None` if the destination is empty.
    fn new(args: &ConstantPadArgs<'_>, size: usize) -> Result<Option<Plan>> {
        let &ConstantPadArgs { src_dims, before, after, .. } = args;
        let refused = |why| {
            Error::invalid(format!(
                "constant_pad of {src_dims:?} by {before:?} before and {after:?} after: {why}"
            ))
        };
        if src_dims.len() > MAX_DIMS || before.len() != src_dims.len() || after.len() != src_dims.len() {
            return Err(refused("there must be a padding before and after each of at most 8 dimensions"));
        }
        let mut axes = [Axis::ONE; MAX_DIMS];
        let mut num_axes = 0;
        let (mut src_bytes, mut dst_bytes) = (size, size);
        let (mut empty, mut border_only) = (false, false);
        for ((&src, &before), &after) in src_dims.iter().zip(before).zip(after) {
            let axis = Axis::new(src, before, after)
                .ok_or_else(|| refused("a dimension is negative or too large"))?;
            let grow = |bytes: usize, dim: usize| {
                let bytes = bytes.checked_mul(dim.max(1)).filter(|&bytes| bytes <= isize::MAX as usize);
                bytes.ok_or_else(|| refused("no address space holds that"))
            };
            src_bytes = grow(src_bytes, axis.src)?;
            dst_bytes = grow(dst_bytes, axis.dst)?;
            empty |= axis.dst == 0;
            border_only |= axis.copied == 0;
            if axis.src == axis.dst && axis.src_start == axis.dst_start && num_axes > 0 {
                axes[num_axes - 1] = axes[num_axes - 1].scaled(axis.dst);
            } else {
                axes[num_axes] = axis;
                num_axes += 1;
            }
        }
        if empty {
            return Ok(None);
        }
        if border_only {
            let row = Axis { dst: dst_bytes, copied: 0, ..Axis::ONE };
            let plan = Plan { outer: axes, num_outer: 0, rows: Axis::ONE, row, bytes: dst_bytes };
            return Ok(Some(plan));
        }
        let row = axes[num_axes.max(1) - 1].scaled(size);
        let (rows, num_outer) =
            if num_axes > 1 { (axes[num_axes - 2], num_axes - 2) } else { (Axis::ONE, 0) };
        Ok(Some(Plan { outer: axes, num_outer, rows, row, bytes: dst_bytes }))
    }

    fn outer(&self) -> &[Axis] {
        &self.outer[..self.num_outer]
    }

    /// Bytes that are copied.
    fn copied(&self) -> usize {
        self.outer().iter().chain([&self.rows, &self.row]).map(|axis| axis.copied).product()
    }
}

/// Counts through the planes of a destination, the outer indices of which are those of the copied part or not.
struct Planes<'a> {
    axes: &'a [Axis],
    index: [usize; MAX_DIMS],
}

impl Planes<'_> {
    fn at(axes: &[Axis], mut plane: usize) -> Planes<'_> {
        let mut index = [0; MAX_DIMS];
        for (index, axis) in index.iter_mut().zip(axes).rev() {
            *index = plane % axis.dst;
            plane /= axis.dst;
        }
        Planes { axes, index }
    }

    fn advance(&mut self) {
        for (index, axis) in self.index.iter_mut().zip(self.axes).rev() {
            *index += 1;
            if *index < axis.dst {
                return;
            }
            *index = 0;
        }
    }

    /// The source's plane that this one is made of.
    fn source(&self) -> Option<usize> {
        self.index.iter().zip(self.axes).try_fold(0, |plane, (&index, axis)| {
            let i = index.wrapping_sub(axis.dst_start);
            (i < axis.copied).then(|| plane * axis.src + axis.src_start + i)
        })
    }
}

/// A range of the destination's bytes.
struct Padded<'a> {
    plan: &'a Plan,
    pattern: &'a Pattern,
    src: *const u8,
    bytes: Range<usize>,
    ahead: usize,
}

impl Producer for Padded<'_> {
    #[inline(always)]
    unsafe fn run<S: Sink>(self, sink: &mut S) {
        let Padded { plan, pattern, src, bytes, ahead } = self;
        let Plan { rows, row, .. } = *plan;
        let plane_bytes = rows.dst * row.dst;
        let mut planes = Planes::at(plan.outer(), bytes.start / plane_bytes);
        let (mut r, mut col) = (bytes.start % plane_bytes / row.dst, bytes.start % row.dst);
        let mut left = bytes.len();
        let row_end = row.dst_start + row.copied;
        // Border bytes that are due: those after a row and before the next are written at once.
        let mut border = 0;
        while left > 0 {
            let copied = match planes.source() {
                Some(plane) => {
                    // SAFETY: a plane of the source, as this one of the destination lies within the copied part.
                    let first =
                        unsafe { src.add((plane * rows.src + rows.src_start) * row.src + row.src_start) };
                    Some(first)
                }
                None => None,
            };
            while r < rows.dst && left > 0 {
                let from = r.wrapping_sub(rows.dst_start);
                if let Some(first) = copied
                    && from < rows.copied
                    && row.copied > 0
                    && col == 0
                    && left >= row.dst
                {
                    // Whole rows, whose borders are alike.
                    let whole = (rows.copied - from).min(left / row.dst);
                    border += row.dst_start;
                    for from in from..from + whole {
                        // SAFETY: `from` is a copied row.
                        unsafe {
                            let at = first.add(from * row.src);
                            if ahead > 0 {
                                prefetch(at.wrapping_add(ahead), row.copied);
                            }
                            sink.fill(pattern, border);
                            sink.put(at, row.copied);
                        }
                        border = row.dst - row.copied;
                    }
                    border -= row.dst_start;
                    left -= whole * row.dst;
                    r += whole;
                    continue;
                }
                let until = row.dst.min(col + left);
                match copied {
                    Some(first) if from < rows.copied => {
                        let (start, end) = (row.dst_start.clamp(col, until), row_end.clamp(col, until));
                        border += start - col;
                        if start < end {
                            // SAFETY: `from` is a copied row, and `start` a copied byte of it, up to `end`.
                            unsafe {
                                let at = first.add(from * row.src + (start - row.dst_start));
                                if ahead > 0 {
                                    prefetch(at.wrapping_add(ahead), end - start);
                                }
                                sink.fill(pattern, border);
                                sink.put(at, end - start);
                            }
                            border = 0;
                        }
                        border += until - end;
                    }
                    _ => border += until - col,
                }
                left -= until - col;
                col = 0;
                r += 1;
            }
            r = 0;
            planes.advance();
        }
        // SAFETY: the border up to the end of the range.
        unsafe { sink.fill(pattern, border) };
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

    fn check(par: &dyn Parallel, src_dims: &[i64], before: &[i64], after: &[i64], dtype: DType) {
        let size = dtype.size().unwrap();
        let count: i64 = src_dims.iter().product();
        let src = Rng::new().bytes(count as usize * size);
        // As an integer of any dtype, a byte's own value is what the kernel is given.
        let mut value = [0; 16];
        value[0] = 0x5b;
        let as_int = match size {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            8 => DType::U64,
            _ => DType::COMPLEX128,
        };
        if size == 16 {
            value[..8].copy_from_slice(&91f64.to_ne_bytes());
        }
        let want = Launch::new("constant_pad")
            .dtype("data", as_int)
            .dims("src_dims", src_dims)
            .dims("padding_before", before)
            .dims("padding_after", after)
            .scalar("value", 0x5bi64)
            .read("src", View::new(as_int, &src))
            .run()
            .map(|outputs| outputs.get("dst").unwrap().bytes.clone());
        let mut src = Buffer::of(&src, size);
        everywhere(|isa| {
            let mut dst = Buffer::poisoned(want.as_ref().map_or(0, Vec::len), size);
            let args = ConstantPadArgs { src_dims, before, after, value, src: src.ptr(), dst: dst.ptr() };
            // SAFETY: both sides have their elements.
            let got = unsafe { lookup(dtype).unwrap()(isa, par, &args) };
            let bytes = dst.into_bytes();
            match &want {
                Ok(want) => {
                    assert!(
                        got.is_ok() && bytes == *want,
                        "{src_dims:?} {before:?} {after:?} {dtype} {isa} {got:?}"
                    )
                }
                Err(e) => assert_eq!(got.unwrap_err().code(), e.code(), "{src_dims:?} {before:?} {after:?}"),
            }
        });
    }

    #[test]
    fn every_dtype_pads_and_crops() {
        assert_eq!(rows().count(), 15);
        for dtype in rows() {
            check(&Serial, &[], &[], &[], dtype);
            check(&Serial, &[5], &[2], &[3], dtype);
            check(&Serial, &[3, 4, 5], &[1, 0, 2], &[0, 2, 1], dtype);
            check(&Serial, &[3, 4, 5], &[-1, 2, -2], &[1, -3, 0], dtype);
            check(&Serial, &[2, 3, 1, 4], &[0, 1, 0, 0], &[0, 1, 0, 0], dtype);
            check(&Serial, &[4, 6], &[0, 0], &[0, 0], dtype);
        }
    }

    #[test]
    fn whole_source_cropped_or_empty() {
        for (dims, before, after) in [
            (&[3i64, 2][..], &[-5, 0][..], &[4, 0][..]),
            (&[3, 2], &[5, 1], &[-6, 0]),
            (&[0, 2], &[2, 1], &[1, 1]),
            (&[3, 0], &[1, 1], &[1, -1]),
            (&[3, 2], &[-3, 0], &[0, 0]),
            (&[3, 2], &[-2, 0], &[-2, 0]),
            (&[2, 2], &[0, -1], &[0, -2]),
            // Two paddings that all but cancel, before a dimension that becomes part of theirs.
            (&[3, 4], &[-(i64::MAX / 2), 0], &[i64::MAX / 2 - 1, 0]),
            (&[3, 4], &[i64::MAX / 2, 0], &[1 - i64::MAX / 2, 0]),
        ] {
            check(&Serial, dims, before, after, DType::I32);
        }
    }

    #[test]
    fn large_ones_on_several_threads() {
        for dtype in [DType::U8, DType::F16, DType::F32, DType::COMPLEX128] {
            check(&Threads(3), &[13, 56, 61], &[0, 1, 1], &[0, 1, 1], dtype);
            check(&Threads(3), &[26, 112, 61], &[1, 0, 2], &[0, 1, -3], dtype);
            check(&Threads(3), &[150_001], &[70_000], &[3], dtype);
            check(&Threads(3), &[300, 301], &[40, 29], &[7, 64], dtype);
            check(&Threads(2), &[2, 3], &[300, 200], &[100, 50], dtype);
            check(&Threads(3), &[50, 3, 700], &[2, -1, 0], &[1, 2, 0], dtype);
        }
    }

    #[test]
    fn bad_shapes_are_refused() {
        let (nine, huge) = ([1; 9], i64::MAX);
        for (src_dims, before, after) in [
            (&[3i64][..], &[-2i64][..], &[-2i64][..]),
            (&[3], &[huge], &[0]),
            (&[3], &[huge - 3], &[1]),
            (&[3], &[i64::MIN], &[i64::MIN]),
            (&[-1], &[2], &[0]),
            (&[3, 1], &[0], &[0, 0]),
            (&[3], &[0], &[0, 0]),
            (&nine, &nine, &nine),
            (&[1 << 40, 0], &[0, 1], &[0, 1 << 40]),
            (&[1, 1, 0], &[huge - 1, huge - 1, 0], &[0, 0, 0]),
        ] {
            let (src, dst) = (std::ptr::null(), std::ptr::null_mut());
            let args = ConstantPadArgs { src_dims, before, after, value: [0; 16], src, dst };
            // SAFETY: refused before anything is read.
            let e = unsafe { lookup(DType::F32).unwrap()(Isa::BASELINE, &Serial, &args) }.unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument, "{src_dims:?} {before:?} {after:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn any_rank(
            dims in prop::collection::vec((0i64..6, -4i64..4, -4i64..4), 0..=8)
                .prop_filter("small", |dims| dims.iter().map(|(d, b, a)| (d + b + a).max(*d).max(1)).product::<i64>() < 5000),
            dtype in 0usize..15,
        ) {
            let [src, before, after] = [0, 1, 2].map(|i| {
                dims.iter().map(|&(d, b, a)| [d, b, a][i]).collect::<Vec<_>>()
            });
            check(&Serial, &src, &before, &after, DType::ALL[dtype]);
        }
    }
}
