//! Plain loops: what a few elements cost where nothing is around the loop. Not a peer that anyone is judged by; how much a
//! launch adds is shown in nanoseconds.
//!
//! They are what one would write in Rust, compiled for the CPU that is found, with sizes that are known only when they run.

use super::{Peer, Task, Tensor, Work};
use ep_core::DType;
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use std::hint::black_box;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// The name under which times are recorded.
pub const NAME: &str = "loop";

/// All loops.
pub struct Plain;

impl Peer for Plain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prepare(&self, task: &Task) -> Result<Box<dyn Work + '_>, String> {
        let of = |t: &Tensor, dtype| t.dtype == dtype;
        let (inputs, out) = (&task.inputs[..], &task.output);
        let all = |dtype| inputs.iter().all(|x| of(x, dtype)) && of(out, dtype);
        let f32s = all(DType::F32);
        let rows = |t: &Tensor| t.dims.last().map_or(1, |&n| n as usize);
        let body = match (task.call, inputs) {
            ("add", [a, b]) if f32s && a.dims == b.dims => Body::Add(read(a), read(b), write(out)),
            ("exp", [x]) if f32s => Body::Exp(read(x), write(out)),
            ("relu", [x]) if f32s => Body::Relu(read(x), write(out)),
            ("copy", [x]) if f32s => Body::Copy(read(x), write(out)),
            ("fill", []) if f32s => Body::Fill(write(out)),
            ("cast", [x]) if of(x, DType::F32) && of(out, DType::F16) => Body::ToHalf(read(x), write(out)),
            ("softmax", [x]) if f32s => Body::Softmax(read(x), write(out), rows(x)),
            ("permute", [x]) if f32s && task.ints == [1, 0] => Body::Transpose(read(x), write(out), rows(x)),
            ("gather", [at, x]) if of(x, DType::F32) && of(at, DType::I64) && task.ints == [0] => {
                Body::Rows(read(x), read(at), write(out), rows(x))
            }
            ("matmul", [a, b]) if task.ints == [0, 0] && out.dims.len() == 2 && f32s => {
                Body::Product(read(a), read(b), write(out), rows(a))
            }
            ("matmul", [a, b]) if task.ints == [0, 0] && out.dims.len() == 2 && all(DType::BF16) => {
                let sums = vec![0.0; rows(out)];
                Body::ProductOfHalves(read(a), read(b), write(out), rows(a), sums)
            }
            (call, _) => return Err(format!("no loop for {call} of these dtypes")),
        };
        Ok(Box::new(Loop { body }))
    }
}

/// The elements of an operand, which outlive the work.
fn read<T>(t: &Tensor) -> &'static [T] {
    // SAFETY: the memory lives as long as the work, has been written, and only the work's own calls write meanwhile.
    unsafe { std::slice::from_raw_parts(with_exposed_provenance(t.address as usize), t.count()) }
}

/// Where a result goes: not a slice, as others write there between the work's calls.
#[derive(Clone, Copy)]
struct To<T>(*mut T, usize);

impl<T> To<T> {
    /// # Safety
    /// Nobody else reads or writes it meanwhile.
    #[inline(always)]
    unsafe fn all<'a>(self) -> &'a mut [T] {
        // SAFETY: memory that the operand owns, and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

fn write<T>(t: &Tensor) -> To<T> {
    To(with_exposed_provenance_mut(t.address as usize), t.count())
}

type Of<T> = &'static [T];

/// A loop and its operands; of matrices and rows also how long a row is.
enum Body {
    Add(Of<f32>, Of<f32>, To<f32>),
    Exp(Of<f32>, To<f32>),
    Relu(Of<f32>, To<f32>),
    Copy(Of<f32>, To<f32>),
    Fill(To<f32>),
    ToHalf(Of<f32>, To<f16>),
    Softmax(Of<f32>, To<f32>, usize),
    Transpose(Of<f32>, To<f32>, usize),
    Rows(Of<f32>, Of<i64>, To<f32>, usize),
    Product(Of<f32>, Of<f32>, To<f32>, usize),
    ProductOfHalves(Of<bf16>, Of<bf16>, To<bf16>, usize, Vec<f32>),
}

struct Loop {
    body: Body,
}

impl Work for Loop {
    fn run(&mut self, times: usize) -> Result<(), String> {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let has_avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            let has_avx512 =
                has_avx512 && is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512dq");
            if has_avx2 && has_avx512 {
                // SAFETY: the CPU has these.
                unsafe { avx512(&mut self.body, times) };
                return Ok(());
            }
            if has_avx2 {
                // SAFETY: the CPU has these.
                unsafe { avx2(&mut self.body, times) };
                return Ok(());
            }
        }
        repeat(&mut self.body, times);
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
fn avx512(body: &mut Body, times: usize) {
    repeat(body, times);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(body: &mut Body, times: usize) {
    repeat(body, times);
}

#[inline(always)]
fn repeat(body: &mut Body, times: usize) {
    for _ in 0..times {
        // Opaque each time, or all but one would be left out.
        once(black_box(&mut *body));
    }
}

#[inline(always)]
fn once(body: &mut Body) {
    // SAFETY: results are the work's while it runs, and no other operand lies there.
    unsafe {
        match body {
            Body::Add(a, b, y) => y.all().iter_mut().zip(*a).zip(*b).for_each(|((y, a), b)| *y = a + b),
            Body::Exp(x, y) => y.all().iter_mut().zip(*x).for_each(|(y, x)| *y = x.exp()),
            Body::Relu(x, y) => {
                y.all().iter_mut().zip(*x).for_each(|(y, &x)| *y = if x <= 0.0 { 0.0 } else { x });
            }
            Body::Copy(x, y) => y.all().copy_from_slice(x),
            Body::Fill(y) => y.all().fill(1.5),
            Body::ToHalf(x, y) => y.all().convert_from_f32_slice(x),
            Body::Softmax(x, y, cols) => softmax(x, y.all(), *cols),
            Body::Transpose(x, y, cols) => transpose(x, y.all(), *cols),
            Body::Rows(x, at, y, cols) => {
                for (y, &row) in y.all().chunks_exact_mut(*cols).zip(*at) {
                    y.copy_from_slice(&x[row as usize * *cols..][..*cols]);
                }
            }
            Body::Product(a, b, y, depth) => {
                let cols = b.len() / *depth;
                for (y, a) in y.all().chunks_exact_mut(cols).zip(a.chunks_exact(*depth)) {
                    y.fill(0.0);
                    for (a, b) in a.iter().zip(b.chunks_exact(cols)) {
                        y.iter_mut().zip(b).for_each(|(y, b)| *y += a * b);
                    }
                }
            }
            Body::ProductOfHalves(a, b, y, depth, sums) => {
                let cols = b.len() / *depth;
                for (y, a) in y.all().chunks_exact_mut(cols).zip(a.chunks_exact(*depth)) {
                    sums.fill(0.0);
                    for (a, b) in a.iter().zip(b.chunks_exact(cols)) {
                        sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a.to_f32() * b.to_f32());
                    }
                    y.convert_from_f32_slice(sums);
                }
            }
        }
    }
}

#[inline(always)]
fn softmax(x: &[f32], y: &mut [f32], cols: usize) {
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
        let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for (y, x) in y.iter_mut().zip(x) {
            *y = (x - most).exp();
            sum += *y;
        }
        y.iter_mut().for_each(|y| *y /= sum);
    }
}

#[inline(always)]
fn transpose(x: &[f32], y: &mut [f32], cols: usize) {
    let rows = x.len() / cols;
    for (j, y) in y.chunks_exact_mut(rows).enumerate() {
        for (i, y) in y.iter_mut().enumerate() {
            *y = x[i * cols + j];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_benches::row::{Group, Row};
    use ep_benches::table::table;

    /// Operands of zeros, and the memory that they lie in.
    fn task(row: &Row) -> (Task, Vec<Vec<u128>>) {
        let mut memory = Vec::new();
        let mut tensor = |dtype: DType, dims: &[i64]| {
            let mut tensor = Tensor { address: 0, dtype, dims: dims.to_vec() };
            memory.push(vec![0u128; tensor.count().div_ceil(16 / dtype.size().unwrap()) + 1]);
            tensor.address = memory.last_mut().unwrap().as_mut_ptr().expose_provenance() as u64;
            tensor
        };
        let inputs = row.inputs.iter().map(|x| tensor(x.dtype, &x.dims)).collect();
        let output = tensor(row.output.dtype, &row.output.dims);
        (Task { call: row.peer.name, ints: row.peer.ints.clone(), inputs, output }, memory)
    }

    #[test]
    fn every_small_row_has_a_loop() {
        let small: Vec<Row> = table().into_iter().filter(|row| row.group == Group::Small).collect();
        assert!(small.len() > 20);
        for row in &small {
            let (task, memory) = task(row);
            let mut work = Plain.prepare(&task).unwrap_or_else(|e| panic!("{}: {e}", row.id()));
            work.run(1).unwrap();
            drop(memory);
        }
    }
}
