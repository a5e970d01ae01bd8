//! Matrix products, and sums that are products.

use super::{Family, Operator, Rule, one};
use crate::onnx::machine::{Launch, Machine, Mapped, Value};
use Rule::Launches;
use ep_core::{DType, Scalar};

pub(super) const RULES: Family = &[
    ("CumSum", Launches(cum_sum)),
    ("Einsum", Launches(einsum)),
    ("Gemm", Launches(gemm)),
    ("MatMul", Launches(|on, o| one(matmul(on, o.input(0)?, o.input(1)?)))),
    ("MatMulInteger", Launches(matmul_integer)),
];

/// As NumPy: a vector is a row on the left, a column on the right, and that dimension is gone afterwards.
pub(super) fn matmul(on: &mut Machine<'_>, a: &Value, b: &Value) -> Mapped<Value> {
    let (row, column) = (a.rank() == 1, b.rank() == 1);
    let a = if row { a.shaped(&[1, a.count()])? } else { a.clone() };
    let b = if column { b.shaped(&[b.count(), 1])? } else { b.clone() };
    let product = on.matmul(&a, &b)?;
    let mut shape = product.shape.clone();
    if column {
        shape.pop();
    }
    if row {
        shape.remove(shape.len() - 1 - usize::from(!column));
    }
    product.shaped(&shape)
}

/// The addend is expanded to the result's shape first, where the product is added to it.
fn gemm(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (a, b) = (o.input(0)?, o.input(1)?);
    let [ta, tb] = ["transA", "transB"].map(|name| o.int(name, 0) != 0);
    let ([rows, columns], [rows_b, columns_b]) = (&a.shape[..], &b.shape[..]) else {
        return o.not_mapped("other than matrices");
    };
    let (m, k) = if ta { (*columns, *rows) } else { (*rows, *columns) };
    let n = if tb { *rows_b } else { *columns_b };
    let name = |t| if t { "transpose" } else { "none" };
    let launch = Launch::new("matmul")
        .select("transpose_a", name(ta))
        .select("transpose_b", name(tb))
        .dtype("data", a.dtype)
        .sizes(&[("m", m), ("n", n), ("k", k)])
        .scalar("alpha", Scalar::F64(o.float("alpha", 1.0)?))
        .read("a", a)
        .read("b", b);
    let Some(addend) = o.optional(2) else { return one(launch.make(on, "c", a.dtype, &[m, n])) };
    let mut c = on.expand(addend, &[m, n])?;
    launch.scalar("beta", Scalar::F64(o.float("beta", 1.0)?)).into(on, "c", &mut c)?;
    one(Ok(c))
}

/// In 32-bit integers, less the zero points, which are scalars or one for each row of a and column of b.
fn matmul_integer(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let mut operands = Vec::new();
    for (i, rows) in [(0, true), (1, false)] {
        let mut x = on.cast(o.input(i)?, DType::I32)?;
        if let Some(zero) = o.optional(i + 2) {
            let zero = on.cast(zero, DType::I32)?;
            let zero = if rows && zero.rank() == 1 { zero.shaped(&[zero.count(), 1])? } else { zero };
            x = on.binary("sub", &x, &zero)?;
        }
        operands.push(x);
    }
    one(matmul(on, &operands[0], &operands[1]))
}

/// A product with a triangle of ones: element j of a row is the sum of those on one side of it.
fn cum_sum(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let axis = x.axis(on.number(o.input(1)?)?.as_f64() as i64)?;
    let n = x.shape[axis];
    let op = match (o.int("reverse", 0) != 0, o.int("exclusive", 0) != 0) {
        (false, false) => "less_equal",
        (false, true) => "less_than",
        (true, false) => "greater_equal",
        (true, true) => "greater_than",
    };
    let to = on.sequence(DType::I64, n, Scalar::I64(0), Scalar::I64(1))?;
    let triangle = on.compare(op, &to.shaped(&[n, 1])?, &to)?;
    let triangle = on.cast(&triangle, x.dtype)?;
    let rows = on.axis_last(x, axis)?;
    let sums = on.matmul(&rows.shaped(&[x.count() / n.max(1), n])?, &triangle)?;
    one(on.axis_back(&sums.shaped(&rows.shape)?, axis))
}

/// The labels of an equation's operands and of its result, without an ellipsis: that stands for labels of its own.
struct Equation {
    operands: Vec<Vec<char>>,
    result: Vec<char>,
}

impl Equation {
    /// `None` where the ranks do not fit.
    fn parse(text: &str, ranks: &[usize]) -> Option<Equation> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (&*text, None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != ranks.len() {
            return None;
        }
        let mut operands = Vec::new();
        let mut most = 0;
        for (term, rank) in terms.iter().zip(ranks) {
            let letters = term.replace("...", "").chars().count();
            let more = rank.checked_sub(letters)?;
            if more > 0 && !term.contains("...") {
                return None;
            }
            most = most.max(more);
            operands.push(Self::labels(term, more));
        }
        let result = match right {
            Some(right) => Self::labels(right, most),
            None => {
                // In the order of the alphabet: what is there once.
                let all: Vec<char> = operands.iter().flatten().copied().collect();
                let once = |c: &&char| c.is_ascii_digit() || all.iter().filter(|x| x == c).count() == 1;
                let mut result: Vec<char> = all.iter().filter(once).copied().collect();
                result.sort_unstable();
                result.dedup();
                result
            }
        };
        Some(Equation { operands, result })
    }

    /// An ellipsis is digits, the last one being 9: so those of different lengths are aligned at their ends.
    fn labels(term: &str, ellipsis: usize) -> Vec<char> {
        let digits: String = ('0'..='9').skip(10 - ellipsis.min(10)).collect();
        term.replace("...", &digits).chars().collect()
    }
}

/// One operand: a permutation and a sum. Two: a product of matrices, with what both and the result have as batches.
fn einsum(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let values = o.all();
    let ranks: Vec<usize> = values.iter().map(|v| v.rank()).collect();
    let Some(equation) = Equation::parse(o.text("equation", ""), &ranks) else {
        return o.not_mapped("an equation that does not fit the operands");
    };
    let twice = |labels: &[char]| (1..labels.len()).any(|i| labels[i..].contains(&labels[i - 1]));
    if equation.operands.iter().any(|l| twice(l)) {
        return o.not_mapped("a diagonal");
    }
    match (&values[..], &equation.operands[..]) {
        ([x], [labels]) => one(summed_to(on, x, labels, &equation.result)),
        ([a, b], [of_a, of_b]) => one(contracted(on, (a, of_a), (b, of_b), &equation.result)),
        _ => o.not_mapped("more than two operands"),
    }
}

/// A sum over the labels that are not wanted, in the order of those that are.
fn summed_to(on: &mut Machine<'_>, x: &Value, labels: &[char], wanted: &[char]) -> Mapped<Value> {
    let gone: Vec<usize> = (0..labels.len()).filter(|i| !wanted.contains(&labels[*i])).collect();
    let left: Vec<char> = labels.iter().filter(|c| wanted.contains(c)).copied().collect();
    let x = if gone.is_empty() { x.clone() } else { on.reduce_axes("sum", x, &gone, x.dtype)? };
    let order: Vec<usize> = wanted.iter().filter_map(|c| left.iter().position(|l| l == c)).collect();
    on.permute(&x, &order)
}

fn contracted(
    on: &mut Machine<'_>,
    (a, of_a): (&Value, &[char]),
    (b, of_b): (&Value, &[char]),
    result: &[char],
) -> Mapped<Value> {
    let both = |c: &&char| of_a.contains(c) && of_b.contains(c);
    let batch: Vec<char> = result.iter().filter(both).copied().collect();
    let summed: Vec<char> = of_a.iter().filter(both).filter(|c| !result.contains(c)).copied().collect();
    let own = |labels: &[char], other: &[char]| -> Vec<char> {
        labels.iter().filter(|c| !other.contains(c) && result.contains(c)).copied().collect()
    };
    let (rows, columns) = (own(of_a, of_b), own(of_b, of_a));
    let size = |labels: &[char]| -> i64 {
        let of = |c: &char| {
            let in_a = of_a.iter().position(|x| x == c).map(|i| a.shape[i]);
            in_a.or_else(|| of_b.iter().position(|x| x == c).map(|i| b.shape[i])).unwrap_or(1)
        };
        labels.iter().map(of).product()
    };
    let sizes = [size(&batch), size(&rows), size(&summed), size(&columns)];
    let left = summed_to(on, a, of_a, &[&batch[..], &rows, &summed].concat())?;
    let right = summed_to(on, b, of_b, &[&batch[..], &summed, &columns].concat())?;
    let product = on.matmul(
        &left.shaped(&[sizes[0], sizes[1], sizes[2]])?,
        &right.shaped(&[sizes[0], sizes[2], sizes[3]])?,
    )?;
    let labels = [&batch[..], &rows, &columns].concat();
    let shape: Vec<i64> = labels.iter().map(|c| size(&[*c])).collect();
    summed_to(on, &product.shaped(&shape)?, &labels, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations_are_read() {
        let of = |text, ranks: &[usize]| {
            Equation::parse(text, ranks).map(|e| {
                let text = |l: &Vec<char>| l.iter().collect::<String>();
                (e.operands.iter().map(text).collect::<Vec<_>>().join(","), text(&e.result))
            })
        };
        let some = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(of("ij, jk -> ik", &[2, 2]), some("ij,jk", "ik"));
        assert_eq!(of("bij,bjk", &[3, 3]), some("bij,bjk", "ik"));
        assert_eq!(of("...ij,...jk->...ik", &[4, 3]), some("89ij,9jk", "89ik"));
        assert_eq!(of("ij,jk->ik", &[2, 3]), None);
        assert_eq!(of("ij->i", &[2, 2]), None);
    }
}
