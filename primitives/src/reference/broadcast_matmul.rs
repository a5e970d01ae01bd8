//! `broadcast_matmul`: `c = alpha * op(a) * op(b) + beta * c` over batches that broadcast; where c's batch is
//! smaller, products are summed into it. Exact sums, rounded once; integers wrap.

use super::launch::{Launch, Outputs};
use super::math::Wide;
use super::number::{Data, Number, View, format_of, int_range};
use super::shape::{broadcast, count, ravel, unravel};
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let [a, b, c] = [launch.get_dims("a_dims")?, launch.get_dims("b_dims")?, launch.get_dims("c_dims")?];
    if [&a, &b, &c].iter().any(|dims| dims.len() < 2) {
        return Err(launch.invalid("matrices have at least two dimensions"));
    }
    let (a_batch, a_matrix) = a.split_at(a.len() - 2);
    let (b_batch, b_matrix) = b.split_at(b.len() - 2);
    let (c_batch, c_matrix) = c.split_at(c.len() - 2);
    let [trans_a, trans_b] = transposes(launch)?;
    let (m, k) = if trans_a { (a_matrix[1], a_matrix[0]) } else { (a_matrix[0], a_matrix[1]) };
    let (k_of_b, n) = if trans_b { (b_matrix[1], b_matrix[0]) } else { (b_matrix[0], b_matrix[1]) };
    if k != k_of_b || c_matrix != [m, n] {
        return Err(launch.invalid(format!("{m}x{k} times {k_of_b}x{n} into {c_matrix:?}")));
    }
    Batches { m, n, k, a: a_batch, b: b_batch, c: c_batch }.product(launch)
}

/// Whether each factor is stored transposed.
fn transposes(launch: &Launch<'_>) -> Result<[bool; 2]> {
    let transposed = |name| Ok(launch.get_selector(name)? == "transpose");
    Ok([transposed("transpose_a")?, transposed("transpose_b")?])
}

/// Sizes of the matrices, and the batches that each operand has of them.
pub(super) struct Batches<'a> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: &'a [usize],
    pub(super) b: &'a [usize],
    pub(super) c: &'a [usize],
}

impl Batches<'_> {
    /// The new content of `c`.
    pub(super) fn product(&self, launch: &Launch<'_>) -> Result<Outputs> {
        let dtype = launch.get_dtype("data")?;
        if dtype == DType::BOOL {
            return Err(launch.unsupported(dtype));
        }
        let (alpha, beta) = (factor(launch, "alpha", 1, dtype)?, factor(launch, "beta", 0, dtype)?);
        let batch = broadcast(launch, &[self.a, self.b])?;
        let rank = batch.len().max(self.c.len());
        let batch = [&vec![1; rank - batch.len()], &batch[..]].concat();
        let c = batch[rank - self.c.len()..].iter().zip(self.c);
        if c.clone().any(|(all, own)| own != all && *own != 1) {
            return Err(launch.invalid(format!("products of batch {batch:?} do not sum into {:?}", self.c)));
        }
        let elements = |batch: &[usize], rows, cols| count(launch, &[batch, &[rows, cols]].concat());
        let size = elements(self.c, self.m, self.n)?;
        let c = if beta.truth() { Some(launch.get_read("c", dtype, size)?) } else { None };
        let old = |i: usize| c.map(|c| c.get(i));
        if !alpha.truth() {
            let zero = Sum::new(dtype);
            return Ok(Outputs::one(
                "c",
                Data::new(dtype, (0..size).map(|i| zero.finish(alpha, old(i), beta))),
            ));
        }
        let a = launch.get_read("a", dtype, elements(self.a, self.m, self.k)?)?;
        let b = launch.get_read("b", dtype, elements(self.b, self.k, self.n)?)?;
        let trans = transposes(launch)?;
        let mut sums = vec![Sum::new(dtype); size];
        // Nothing is added over no depth, however many products there are.
        for position in 0..if size == 0 || self.k == 0 { 0 } else { count(launch, &batch)? } {
            let index = unravel(position, &batch);
            let start = |batch: &[usize], matrix: usize| ravel(&index, batch) * matrix;
            let a = Matrix {
                data: a,
                start: start(self.a, self.m * self.k),
                stride: [self.k, self.m],
                trans: trans[0],
            };
            let b = Matrix {
                data: b,
                start: start(self.b, self.k * self.n),
                stride: [self.n, self.k],
                trans: trans[1],
            };
            let c = start(self.c, self.m * self.n);
            for (i, j) in (0..self.m).flat_map(|i| (0..self.n).map(move |j| (i, j))) {
                let sum = &mut sums[c + i * self.n + j];
                (0..self.k).for_each(|p| sum.add(a.get(i, p), b.get(p, j)));
            }
        }
        let finished = sums.iter().enumerate().map(|(i, sum)| sum.finish(alpha, old(i), beta));
        Ok(Outputs::one("c", Data::new(dtype, finished)))
    }
}

/// A factor in the numbers of the dtype.
fn factor(launch: &Launch<'_>, name: &str, default: i128, dtype: DType) -> Result<Number> {
    let given = launch.get_scalar(name).unwrap_or(Number::Int(default));
    let whole = given.re().is_finite() && given.re().fract() == 0.0;
    let held = match given {
        Number::Real(x) | Number::Complex(x, _) if dtype.is_int() => Number::Int(x as i128),
        Number::Bool(x) => Number::Int(x.into()),
        other => other,
    };
    let in_range = || {
        let (least, most) = int_range(dtype);
        whole && (least..=most).contains(&held.int())
    };
    if dtype.is_int() && !in_range() || !dtype.is_complex() && given.im() != 0.0 {
        return Err(launch.invalid(format!("{dtype} cannot hold `{name}`, {given:?}")));
    }
    Ok(held)
}

/// A matrix in a batch. `stride` is the length of a row as stored, plain and transposed.
struct Matrix<'a> {
    data: View<'a>,
    start: usize,
    stride: [usize; 2],
    trans: bool,
}

impl Matrix<'_> {
    fn get(&self, row: usize, col: usize) -> Number {
        if !self.trans {
            return self.data.get(self.start + row * self.stride[0] + col);
        }
        match self.data.get(self.start + col * self.stride[1] + row) {
            Number::Complex(re, im) => Number::Complex(re, -im),
            other => other,
        }
    }
}

/// A sum of products in one kind of number.
#[derive(Clone, Copy)]
enum Sum {
    Int(i128),
    Real(Wide, DType),
    Complex(Wide, Wide, DType),
}

impl Sum {
    fn new(dtype: DType) -> Sum {
        match dtype {
            _ if dtype.is_int() => Sum::Int(0),
            _ if dtype.is_complex() => Sum::Complex(Wide::ZERO, Wide::ZERO, dtype),
            _ => Sum::Real(Wide::ZERO, dtype),
        }
    }

    fn add(&mut self, x: Number, y: Number) {
        match self {
            Sum::Int(sum) => *sum = sum.wrapping_add(x.int().wrapping_mul(y.int())),
            Sum::Real(sum, _) => *sum = *sum + x.wide() * y.wide(),
            Sum::Complex(re, im, _) => {
                let [a, b, c, d] = [x.re(), x.im(), y.re(), y.im()].map(Wide::from);
                (*re, *im) = (*re + (a * c - b * d), *im + (a * d + b * c));
            }
        }
    }

    /// `alpha * self + beta * old`, without what is multiplied by zero.
    fn finish(self, alpha: Number, old: Option<Number>, beta: Number) -> Number {
        let scaled = match self {
            _ if !alpha.truth() => match self {
                Sum::Int(_) => Sum::Int(0),
                Sum::Real(_, dtype) | Sum::Complex(_, _, dtype) => Sum::new(dtype),
            },
            Sum::Int(sum) => Sum::Int(sum.wrapping_mul(alpha.int())),
            Sum::Real(sum, dtype) => Sum::Real(sum * alpha.wide(), dtype),
            Sum::Complex(re, im, dtype) => {
                let (a, b) = (Wide::from(alpha.re()), Wide::from(alpha.im()));
                Sum::Complex(re * a - im * b, re * b + im * a, dtype)
            }
        };
        let mut total = scaled;
        if let Some(old) = old {
            total.add(beta, old);
        }
        match total {
            Sum::Int(sum) => Number::Int(sum),
            Sum::Real(sum, dtype) => Number::Real(sum.to_format(format_of(dtype))),
            Sum::Complex(re, im, dtype) => {
                Number::Complex(re.to_format(format_of(dtype)), im.to_format(format_of(dtype)))
            }
        }
    }
}
