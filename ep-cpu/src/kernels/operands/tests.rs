use super::*;
use crate::kernels::check::Buffer;
use crate::kernels::stream::{self, Ahead};
use crate::kernels::testing::Rng;

/// Writes the elements of both operands one after the other.
#[derive(Clone, Copy)]
struct Pairs {
    size: usize,
    isa: Isa,
    repeats: bool,
}

impl Pairs {
    /// # Safety
    /// As [`Compute::compute`], with sources of elements so many bytes apart.
    unsafe fn write(&self, src: [*const u8; 2], steps: [usize; 2], dst: *mut u8, n: usize) {
        for i in 0..n {
            for k in 0..2 {
                let (from, to) =
                    (src[k].wrapping_add(i * steps[k]), dst.wrapping_add((2 * i + k) * self.size));
                // SAFETY: the caller's promise.
                unsafe { ptr::copy_nonoverlapping(from, to, self.size) };
            }
        }
    }
}

impl Compute<2> for Pairs {
    fn dst_size(&self) -> usize {
        2 * self.size
    }

    fn isa(&self) -> Isa {
        self.isa
    }

    fn streams(&self) -> bool {
        false
    }

    unsafe fn compute(&self, src: [*const u8; 2], dst: *mut u8, Run { n, .. }: Run) {
        // SAFETY: the caller's promise.
        unsafe { self.write(src, [self.size; 2], dst, n) };
    }

    fn repeats(&self) -> bool {
        self.repeats
    }

    unsafe fn compute_repeated(&self, src: &[*const u8; 2], one: usize, dst: *mut u8, rows: Rows<2>) {
        assert!(self.repeats);
        let mut steps = [self.size; 2];
        steps[one] = 0;
        for row in 0..rows.rows {
            let from = from_fn(|k| src[k].wrapping_add(row * rows.steps[k] * self.size));
            // SAFETY: the caller's promise.
            unsafe {
                self.write(from, steps, dst.wrapping_add(2 * row * rows.inner * self.size), rows.inner)
            };
        }
    }
}

struct Case {
    shapes: [Vec<i64>; 2],
    size: usize,
    streaming: bool,
    repeats: bool,
    /// Where the range begins and ends, in parts of 1000 of all elements.
    part: (usize, usize),
    /// Bytes that the output is off a line, in elements.
    shift: usize,
}

fn check(case: &Case, rng: &mut Rng) {
    let Case { shapes, size, streaming, repeats, part, shift } = case;
    let (size, dst_size) = (*size, 2 * *size);
    let plan = Plan::new([&shapes[0][..], &shapes[1]]).unwrap();
    let count = plan.count();
    let sources = shapes.each_ref().map(|s| rng.bytes(s.iter().product::<i64>() as usize * size));
    let mut buffers = sources.each_ref().map(|s| Buffer::of(s, size));
    let [a, b] = &mut buffers;
    let src = [a.ptr().cast_const(), b.ptr().cast_const()];
    let range = count * part.0 / 1000..count * part.1 / 1000;
    let mut dst = Buffer::poisoned((count + shift) * dst_size, dst_size);
    let out = dst.ptr().wrapping_add(shift * dst_size);

    let operands = Operands::broadcast(&plan, size, src, ptr::null());
    let mut room = Buffers::new();
    // SAFETY: the operands have their shapes' elements, and the output `count`.
    unsafe {
        let levels = Isa::available();
        let isa = levels[rng.next() as usize % levels.len()];
        let pairs = Pairs { size, isa, repeats: *repeats };
        let reader = operands.reader(pairs, &mut room, *streaming, range.len());
        if *streaming {
            let ahead: Vec<Ahead> = operands.dense_sources().map(|start| Ahead { start, size }).collect();
            stream::blocks(isa, &reader, out, dst_size, range.clone(), &ahead);
        } else {
            let mut cursor = reader.cursor(range.start, 0);
            // In pieces, so that cursors have to continue.
            let mut at = range.start;
            while at < range.end {
                let n = (1 + rng.next() as usize % 3000).min(range.end - at);
                reader.compute(&mut cursor, Run::cached(n), out.add(at * dst_size));
                at += n;
            }
        }
    }

    let got = dst.into_bytes();
    let rank = shapes[0].len().max(shapes[1].len());
    let dim = |s: &[i64], axis: usize| (axis + s.len()).checked_sub(rank).map_or(1, |i| s[i] as usize);
    let full: Vec<usize> = (0..rank).map(|i| dim(&shapes[0], i).max(dim(&shapes[1], i))).collect();
    let offset = |s: &[i64], flat: usize| {
        let (mut rest, mut offset, mut stride) = (flat, 0, 1);
        for axis in (0..rank).rev() {
            let index = rest % full[axis];
            rest /= full[axis];
            if dim(s, axis) != 1 {
                offset += index * stride;
                stride *= dim(s, axis);
            }
        }
        offset
    };
    for flat in 0..count {
        for k in 0..2 {
            let at = (shift + flat) * dst_size + k * size;
            let got = &got[at..at + size];
            if range.contains(&flat) {
                let from = offset(&shapes[k], flat) * size;
                assert!(
                    got == &sources[k][from..from + size],
                    "{shapes:?} {size} {streaming} [{flat}] of {k}"
                );
            } else {
                assert!(got.iter().all(|&b| b == 0xa5), "{shapes:?} {size} [{flat}] is outside {range:?}");
            }
        }
    }
}

#[test]
fn every_way_of_repeating() {
    let mut rng = Rng::new();
    let list: [(&[i64], &[i64]); 26] = [
        (&[20_000], &[20_000]),
        (&[20_000], &[]),
        (&[50, 300], &[300]),
        (&[3, 5000], &[5000]),
        (&[50, 300], &[50, 1]),
        (&[900, 8], &[900, 1]),
        (&[400, 40], &[400, 1]),
        (&[300, 16], &[300, 1]),
        (&[9, 2000, 15], &[2000, 1]),
        (&[7, 300, 50], &[300, 1]),
        (&[900, 8], &[8]),
        (&[60, 1, 8], &[60, 9, 8]),
        (&[60, 1, 40], &[60, 9, 1]),
        (&[7, 5, 40], &[7, 1, 40]),
        (&[4, 3, 1100], &[4, 1, 1100]),
        (&[3, 40, 257], &[3, 1, 257]),
        (&[5, 40, 128], &[5, 1, 128]),
        (&[2, 9, 1, 130], &[2, 1, 31, 130]),
        (&[7, 5, 200], &[7, 1, 200]),
        (&[3, 30, 1], &[3, 1, 200]),
        (&[90, 1], &[1, 130]),
        (&[500, 2, 3, 4], &[500, 1, 3, 1]),
        (&[2, 3, 1, 5, 1, 7], &[3, 4, 1, 6, 1]),
        (&[300, 1], &[17]),
        (&[1], &[1]),
        (&[40, 2, 33, 3], &[2, 1, 3]),
    ];
    for (a, b) in list {
        for size in [1, 2, 4, 8, 16] {
            for (streaming, repeats) in [(false, false), (false, true), (true, false), (true, true)] {
                let ends = [rng.next() as usize % 500, 500 + rng.next() as usize % 501];
                let part = if rng.next().is_multiple_of(3) { (0, 1000) } else { (ends[0], ends[1]) };
                let mut shapes = [a.to_vec(), b.to_vec()];
                if rng.next().is_multiple_of(2) {
                    shapes.reverse();
                }
                let shift = rng.next() as usize % 9;
                check(&Case { shapes, size: size.min(8), streaming, repeats, part, shift }, &mut rng);
            }
        }
    }
}

#[test]
fn random_shapes() {
    let mut rng = Rng::new();
    for _ in 0..150 {
        let mut shapes = [vec![], vec![]];
        let mut count = 1;
        for _ in 0..rng.next() % 6 {
            let most = if rng.next().is_multiple_of(5) { 200 } else { 6 };
            let dim = 1 + (rng.next() % most) as i64;
            if count * dim > 60_000 {
                break;
            }
            count *= dim;
            let keep = rng.next();
            for (k, shape) in shapes.iter_mut().enumerate() {
                shape.push(if keep >> k & 3 == 0 { 1 } else { dim });
            }
        }
        let size = 1 << (rng.next() % 4);
        let streaming = rng.next().is_multiple_of(2);
        let (repeats, shift) = (rng.next().is_multiple_of(2), rng.next() as usize % 5);
        check(&Case { shapes, size, streaming, repeats, part: (0, 1000), shift }, &mut rng);
    }
}
