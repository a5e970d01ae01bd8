//! What is launched on large operands, and what each element of the result has to be.

use crate::operands::{Copier, settled};
use crate::row::Row;
use ep_core::{DType, Error, Result};
use ep_registry::{Buffer, Device, Stream};
use half::f16;
use serde_json::{Value, json};
use std::cell::Cell;

/// The source repeats so many elements, a prime number: what is off by a power of 2 does not fit.
const PERIOD: u64 = 1_048_573;
/// What the destination holds before.
pub(super) const BEFORE: u8 = 0x5b;
/// Columns of rows: an odd number, and one of the family of softmax.
const COLS: u64 = 4099;
const ROW: u64 = 1000;

/// The value of an element of the destination.
pub(super) type Expect<'a> = Box<dyn Fn(u64) -> f64 + 'a>;

/// A launch, and what it has to come to.
pub(super) struct Check<'a> {
    pub(super) row: Row,
    pub(super) count: u64,
    pub(super) inputs: Vec<u64>,
    pub(super) expect: Expect<'a>,
    /// What results may be off by: a part of themselves, and a constant.
    pub(super) within: [f64; 2],
}

/// The operands that all launches share.
pub(super) struct Operands<'a> {
    n: u64,
    pattern: Vec<u8>,
    /// `n` bytes of the pattern.
    x: u64,
    /// Half as many numbers of f16: the bytes of the pattern, over 32.
    h: u64,
    /// A row of the far source, and a class, for each of so many picks.
    picks: u64,
    classes: u64,
    /// Three rows of four.
    few: u64,
    memory: Vec<Buffer>,
    device: &'a Device,
}

impl<'a> Operands<'a> {
    pub(super) fn new(device: &'a Device, stream: &Stream, copier: &Copier, n: u64) -> Result<Operands<'a>> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let pattern: Vec<u8> = (0..PERIOD).map(|_| next()).collect();
        let halves: Vec<u8> =
            pattern.iter().flat_map(|b| f16::from_f64(f64::from(*b as i8) / 32.0).to_le_bytes()).collect();
        let rows = n / COLS;
        let picks: Vec<i32> = (0..rows).map(|k| pick(k, rows) as i32).collect();
        let classes: Vec<i32> = (0..rows).map(|k| pick(k, COLS) as i32).collect();
        let mut own =
            Operands { n, pattern, x: 0, h: 0, picks: 0, classes: 0, few: 0, memory: Vec::new(), device };
        let bytes = std::mem::take(&mut own.pattern);
        own.x = own.repeated(stream, copier, &bytes)?;
        own.h = own.repeated(stream, copier, &halves)?;
        own.pattern = bytes;
        own.picks = own.keep(device.upload(&picks)?);
        own.classes = own.keep(device.upload(&classes)?);
        own.few = own.keep(device.upload(&FEW)?);
        Ok(own)
    }

    fn keep(&mut self, buffer: Buffer) -> u64 {
        let address = buffer.address();
        self.memory.push(buffer);
        address
    }

    /// `n` bytes that repeat these.
    fn repeated(&mut self, stream: &Stream, copier: &Copier, bytes: &[u8]) -> Result<u64> {
        let first = self.device.upload(bytes)?;
        let address = self.keep(self.device.alloc(DType::U8, self.n as usize)?);
        let mut done = self.n.min(bytes.len() as u64);
        // SAFETY: inside the buffers, which are apart and live until `settled` has waited.
        settled(stream, || unsafe {
            copier.queue(stream, first.address(), address, done)?;
            while done < self.n {
                let more = done.min(self.n - done);
                copier.queue(stream, address, address + done, more)?;
                done += more;
            }
            Ok(address)
        })
    }

    /// An element of the source of bytes, which are taken as i8.
    fn at(&self, i: u64) -> i8 {
        self.pattern[(i % PERIOD) as usize] as i8
    }

    /// An element of the source of f16.
    fn half(&self, i: u64) -> f64 {
        f64::from(self.at(i)) / 32.0
    }
}

/// Rows that `scatter_add` adds to.
const FEW: [i32; 3] = [2, 0, 2];

/// Some number below `most`.
fn pick(k: u64, most: u64) -> u64 {
    (k * 7919 + 13) % most
}

/// A row for the provider: what a launch has and is not in `asked` is empty.
pub(super) fn row(op: &str, name: &str, inputs: &[&str], output: [&str; 2], asked: Value) -> Result<Row> {
    let tensor = |name: &str, dtype: &str| json!({"name": name, "dtype": dtype, "dims": [], "content": "normal", "shared": true});
    let mut all = json!({
        "group": "large", "op": name, "dtype": output[1], "shape": "", "primitive": op, "selectors": {}, "roles": {},
        "attrs": {}, "limits": {}, "sizes": {}, "dims": {}, "scalars": {}, "shift": 0, "bytes": 0, "flops": 0,
        "inputs": inputs.iter().map(|name| tensor(name, "u8")).collect::<Vec<_>>(),
        "output": tensor(output[0], output[1]),
    });
    if let (Some(all), Value::Object(asked)) = (all.as_object_mut(), asked) {
        all.extend(asked);
    }
    serde_json::from_value(all).map_err(|e| Error::internal(format!("row {name}: {e}")))
}

/// Launches that compute exactly.
fn exact<'a>(row: Row, count: u64, inputs: &[u64], expect: impl Fn(u64) -> f64 + 'a) -> Check<'a> {
    Check { row, count, inputs: inputs.to_vec(), expect: Box::new(expect), within: [0.0; 2] }
}

fn maps<'a>(o: &'a Operands<'_>) -> Result<Vec<Check<'a>>> {
    let (n, x) = (o.n, o.x);
    let i8s = json!({"src": "i8", "dst": "i8"});
    let (rows, lines) = (n / COLS, n / 3001);
    let wrapped = |i: i32| f64::from(i as i8);
    Ok(vec![
        exact(
            row(
                "elementwise_unary",
                "abs",
                &["src"],
                ["dst", "i8"],
                json!({"selectors": {"op": "abs"}, "roles": i8s, "sizes": {"count": n}}),
            )?,
            n,
            &[x],
            |i| f64::from(o.at(i).wrapping_abs()),
        ),
        exact(
            row(
                "elementwise_unary",
                "negative",
                &["src"],
                ["dst", "f16"],
                json!({"selectors": {"op": "negative"}, "roles": {"src": "f16", "dst": "f16"}, "sizes": {"count": n / 2}}),
            )?,
            n / 2,
            &[o.h],
            |i| -o.half(i),
        ),
        exact(
            row(
                "cast",
                "cast",
                &["src"],
                ["dst", "bool"],
                json!({"roles": {"src": "i8", "dst": "bool"}, "sizes": {"count": n}}),
            )?,
            n,
            &[x],
            |i| f64::from(u8::from(o.at(i) != 0)),
        ),
        exact(
            row(
                "cast",
                "cast to f16",
                &["src"],
                ["dst", "f16"],
                json!({"roles": {"src": "i8", "dst": "f16"}, "sizes": {"count": n / 2}}),
            )?,
            n / 2,
            &[x],
            |i| f64::from(o.at(i)),
        ),
        exact(
            row(
                "broadcast_elementwise_unary",
                "strided abs",
                &["src"],
                ["dst", "i8"],
                json!({"selectors": {"op": "abs"}, "roles": i8s, "dims": {"src_dims": [lines, 1], "src_strides": [1, 1], "dst_dims": [lines, 3001], "dst_strides": [3001, 1]}}),
            )?,
            lines * 3001,
            &[x],
            |i| f64::from(o.at(i / 3001).wrapping_abs()),
        ),
        exact(
            row(
                "broadcast_elementwise_binary",
                "add a row",
                &["src0", "src1"],
                ["dst", "i8"],
                json!({"selectors": {"op": "add"}, "roles": i8s, "dims": {"src0_dims": [rows, COLS], "src1_dims": [COLS]}}),
            )?,
            rows * COLS,
            &[x, x],
            move |i| wrapped(i32::from(o.at(i)) + i32::from(o.at(i % COLS))),
        ),
        exact(
            row(
                "add",
                "add",
                &["srcs"; 3],
                ["dst", "i8"],
                json!({"roles": {"data": "i8"}, "sizes": {"count": n - 2}}),
            )?,
            n - 2,
            &[x, x + 1, x + 2],
            move |i| wrapped((0..3).map(|k| i32::from(o.at(i + k))).sum()),
        ),
        exact(
            row(
                "where",
                "where",
                &["cond", "x", "y"],
                ["dst", "i8"],
                json!({"roles": {"cond": "i8", "data": "i8"}, "dims": {"cond_dims": [n - 1], "x_dims": [1], "y_dims": [n - 1]}}),
            )?,
            n - 1,
            &[x, x, x + 1],
            |i| f64::from(if o.at(i) != 0 { o.at(0) } else { o.at(i + 1) }),
        ),
    ])
}

fn movers<'a>(o: &'a Operands<'_>) -> Result<Vec<Check<'a>>> {
    let (n, x) = (o.n, o.x);
    let data = json!({"data": "i8"});
    let at = |i: u64| f64::from(o.at(i));
    let mut all = vec![
        exact(
            row(
                "memset",
                "memset",
                &[],
                ["dst", "u8"],
                json!({"sizes": {"bytes": n}, "scalars": {"value": 7.0}}),
            )?,
            n,
            &[],
            |_| 7.0,
        ),
        exact(
            row(
                "fill",
                "fill",
                &[],
                ["dst", "i8"],
                json!({"roles": data, "sizes": {"count": n}, "scalars": {"value": 7.0}}),
            )?,
            n,
            &[],
            |_| 7.0,
        ),
        exact(
            row(
                "arange",
                "arange",
                &[],
                ["dst", "i8"],
                json!({"roles": data, "sizes": {"count": n}, "scalars": {"start": 5.0}}),
            )?,
            n,
            &[],
            |i| f64::from((i + 5) as i8),
        ),
        exact(
            row(
                "memcpy",
                "memcpy",
                &["src"],
                ["dst", "i8"],
                json!({"selectors": {"kind": "device_to_device"}, "sizes": {"bytes": n}}),
            )?,
            n,
            &[x],
            at,
        ),
        exact(
            row(
                "strided_copy",
                "strided copy",
                &["src"],
                ["dst", "i8"],
                json!({"roles": {"src": "i8", "dst": "i8"}, "dims": {"dims": [n / 2], "src_strides": [2], "dst_strides": [1]}}),
            )?,
            n / 2,
            &[x],
            move |i| at(2 * i),
        ),
    ];
    let lines = n / 33;
    all.push(exact(
        row("copy_nd", "copy_nd", &["src"], ["dst", "i8"],
            json!({"roles": data, "dims": {"dst_dims": [lines, 29], "dst_pos": [0, 0], "src_dims": [lines, 33], "src_pos": [0, 1], "extent": [lines, 29]}}))?,
        lines * 29,
        &[x],
        move |i| at(i / 29 * 33 + 1 + i % 29),
    ));
    let rows = n / COLS - 1;
    all.push(exact(
        row("constant_pad", "pad", &["src"], ["dst", "i8"],
            json!({"roles": data, "dims": {"src_dims": [rows, COLS - 6], "padding_before": [1, 3], "padding_after": [0, 3]}, "scalars": {"value": 7.0}}))?,
        (rows + 1) * COLS,
        &[x],
        move |i| match (i / COLS, i % COLS) {
            (0, _) | (_, 0..3) => 7.0,
            (_, c) if c >= COLS - 3 => 7.0,
            (r, c) => at((r - 1) * (COLS - 6) + c - 3),
        },
    ));
    let a = n.isqrt();
    let b = n / a;
    let thin = n / 35;
    let plane = n / 3 / 16 * 16;
    // The source's shape, the permutation, and the element of the source behind each of the destination.
    type Turn<'a> = (&'a str, Vec<u64>, Vec<u64>, Box<dyn Fn(u64) -> u64>);
    let runs = |m: u64, width: u64| -> Box<dyn Fn(u64) -> u64> {
        Box::new(move |i| (i / width % 2 * m + i / width / 2) * width + i % width)
    };
    let turns: [Turn<'_>; 6] = [
        ("transpose", vec![a, b], vec![1, 0], Box::new(move |i| i % a * b + i / a)),
        (
            "small dimensions",
            vec![thin, 5, 7],
            vec![2, 1, 0],
            Box::new(move |i| (i % thin * 5 + i / thin % 5) * 7 + i / (5 * thin)),
        ),
        ("interleave", vec![3, plane], vec![1, 0], Box::new(move |i| i % 3 * plane + i / 3)),
        ("take apart", vec![plane, 3], vec![1, 0], Box::new(move |i| i % plane * 3 + i / plane)),
        ("runs of 17", vec![2, n / 34, 17], vec![1, 0, 2], runs(n / 34, 17)),
        ("runs of 3", vec![2, n / 6, 3], vec![1, 0, 2], runs(n / 6, 3)),
    ];
    for (name, dims, order, source) in turns {
        let asked = json!({"roles": data, "dims": {"src_dims": dims, "permutation": order}});
        let asked = row("permute", &format!("permute: {name}"), &["src"], ["dst", "i8"], asked)?;
        all.push(exact(asked, dims.iter().product(), &[x], move |i| at(source(i))));
    }
    Ok(all)
}

fn by_indices<'a>(o: &'a Operands<'_>) -> Result<Vec<Check<'a>>> {
    let (n, x) = (o.n, o.x);
    let (rows, part) = (n / COLS, n / 4);
    let roles = json!({"indices": "i32", "data": "i8"});
    let mode = json!({"mode": "wrap"});
    Ok(vec![
        exact(
            row(
                "gather",
                "gather",
                &["indices", "src"],
                ["dst", "i8"],
                json!({"selectors": mode, "roles": roles, "sizes": {"outer": 1, "processed": rows, "inner": COLS, "num_indices": rows}}),
            )?,
            rows * COLS,
            &[o.picks, x],
            move |i| f64::from(o.at(pick(i / COLS, rows) * COLS + i % COLS)),
        ),
        exact(
            row(
                "scatter_add",
                "scatter_add",
                &["indices", "src"],
                ["dst", "i8"],
                json!({"selectors": mode, "roles": roles, "sizes": {"outer": 1, "processed": 4, "inner": part, "num_indices": 3}}),
            )?,
            4 * part,
            &[o.few, x],
            move |i| {
                let added = (0..3).filter(|k| u64::from(FEW[*k as usize].unsigned_abs()) == i / part);
                f64::from(added.fold(BEFORE as i8, |sum, k| sum.wrapping_add(o.at(k * part + i % part))))
            },
        ),
        exact(
            row(
                "scatter_add",
                "scatter_add of one row",
                &["indices", "src"],
                ["dst", "i8"],
                json!({"selectors": mode, "roles": roles, "sizes": {"outer": 1, "processed": 1, "inner": n, "num_indices": 1}}),
            )?,
            n,
            &[o.few + 4, x],
            move |i| f64::from((BEFORE as i8).wrapping_add(o.at(i))),
        ),
        exact(
            row(
                "one_hot",
                "one_hot",
                &["indices"],
                ["dst", "i8"],
                json!({"selectors": mode, "roles": roles, "sizes": {"num_indices": rows, "depth": COLS}}),
            )?,
            rows * COLS,
            &[o.classes],
            |i| f64::from(u8::from(pick(i / COLS, COLS) == i % COLS)),
        ),
    ])
}

fn reductions<'a>(o: &'a Operands<'_>) -> Result<Vec<Check<'a>>> {
    let (n, x) = (o.n, o.x);
    let (short, third) = (n / 129, n / 3);
    let places =
        |outer: u64, reduced: u64, inner: u64| json!({"outer": outer, "reduced": reduced, "inner": inner});
    let roles = json!({"src": "i8", "dst": "i8"});
    let most =
        |row: u64| (0..129).map(move |k| row * 129 + k).max_by_key(|i| (o.at(*i), std::cmp::Reverse(*i)));
    Ok(vec![
        exact(
            row(
                "reduce",
                "reduce rows",
                &["src"],
                ["dst", "i8"],
                json!({"selectors": {"op": "max"}, "roles": roles, "sizes": places(short, 129, 1)}),
            )?,
            short,
            &[x],
            move |i| most(i).map_or(f64::NAN, |at| f64::from(o.at(at))),
        ),
        exact(
            row(
                "reduce",
                "reduce columns",
                &["src"],
                ["dst", "i8"],
                json!({"selectors": {"op": "max"}, "roles": roles, "sizes": places(1, 3, third)}),
            )?,
            third,
            &[x],
            move |i| (0..3).map(|k| f64::from(o.at(k * third + i))).fold(f64::NEG_INFINITY, f64::max),
        ),
        exact(
            row(
                "arg_reduce",
                "arg_reduce rows",
                &["src"],
                ["dst", "i64"],
                json!({"selectors": {"op": "argmax"}, "roles": {"src": "i8", "dst": "i64"}, "sizes": places(short, 129, 1)}),
            )?,
            short,
            &[x],
            move |i| most(i).map_or(f64::NAN, |at| (at % 129) as f64),
        ),
    ])
}

/// A function of a row that is computed once for neighbours.
fn of_row<T: Copy + 'static>(compute: impl Fn(u64) -> T) -> impl Fn(u64) -> T {
    let known: Cell<Option<(u64, T)>> = Cell::new(None);
    move |row| match known.get() {
        Some((at, value)) if at == row => value,
        _ => {
            let value = compute(row);
            known.set(Some((row, value)));
            value
        }
    }
}

fn rows<'a>(o: &'a Operands<'_>) -> Result<Vec<Check<'a>>> {
    let lines = o.n / 2 / ROW;
    let count = lines * ROW;
    let roles = json!({"src": "f16", "dst": "f16"});
    let stats = json!({"data": "f16", "stats": "f32"});
    let sizes = json!({"rows": lines, "cols": ROW});
    let sum =
        |of: fn(f64) -> f64| of_row(move |row| (0..ROW).map(|c| of(o.half(row * ROW + c))).sum::<f64>());
    let near = |row, inputs: &[u64], within, expect: Expect<'a>| Check {
        row,
        count,
        inputs: inputs.to_vec(),
        expect,
        within,
    };
    let (exps, squares, sums) = (sum(f64::exp), sum(|x| x * x), sum(|x| x));
    let more_squares = sum(|x| x * x);
    let log_exps = sum(f64::exp);
    let norm = json!({"roles": stats, "attrs": {"epsilon": 1e-5}, "sizes": sizes});
    let family = json!({"roles": roles, "sizes": sizes});
    let inner = 509;
    let blocks = o.n / 2 / (100 * inner);
    let column = move |i: u64, c: u64| i / (100 * inner) * 100 * inner + c * inner + i % inner;
    let strided = json!({"roles": roles, "sizes": {"rows": blocks, "cols": 100, "inner": inner}});
    Ok(vec![
        near(
            row("softmax", "softmax", &["src"], ["dst", "f16"], family.clone())?,
            &[o.h],
            [2e-3, 1e-6],
            Box::new(move |i| o.half(i).exp() / exps(i / ROW)),
        ),
        near(
            row("log_softmax", "log_softmax", &["src"], ["dst", "f16"], family.clone())?,
            &[o.h],
            [2e-3, 1e-3],
            Box::new(move |i| o.half(i) - log_exps(i / ROW).ln()),
        ),
        near(
            row("softmax_backward", "softmax_backward", &["y", "dy"], ["dx", "f16"], family)?,
            &[o.h, o.h],
            [2e-3, 1e-2],
            Box::new(move |i| o.half(i) * (o.half(i) - squares(i / ROW))),
        ),
        Check {
            count: blocks * 100 * inner,
            ..near(
                row("softmax", "softmax of columns", &["src"], ["dst", "f16"], strided)?,
                &[o.h],
                [2e-3, 1e-6],
                Box::new(move |i| {
                    o.half(i).exp() / (0..100).map(|c| o.half(column(i, c)).exp()).sum::<f64>()
                }),
            )
        },
        near(
            row("layer_norm", "layer_norm", &["src", "gamma", "beta"], ["dst", "f16"], norm.clone())?,
            &[o.h; 3],
            [2e-3, 1e-2],
            Box::new(move |i| {
                let mean = sums(i / ROW) / ROW as f64;
                let variance = more_squares(i / ROW) / ROW as f64 - mean * mean;
                (o.half(i) - mean) / (variance + 1e-5).sqrt() * o.half(i % ROW) + o.half(i % ROW)
            }),
        ),
        near(
            row("rms_norm", "rms_norm", &["src", "weight"], ["dst", "f16"], norm)?,
            &[o.h; 2],
            [2e-3, 1e-2],
            {
                let squares = sum(|x| x * x);
                Box::new(move |i| o.half(i) / (squares(i / ROW) / ROW as f64 + 1e-5).sqrt() * o.half(i % ROW))
            },
        ),
    ])
}

/// A product with more columns than cuBLASLt counts rightly.
fn products<'a>(o: &'a Operands<'_>) -> Result<Vec<Check<'a>>> {
    let columns = o.n / 4;
    let asked = json!({"roles": {"data": "f16"}, "sizes": {"m": 1, "n": columns, "k": 2}});
    Ok(vec![Check {
        row: row("matmul", "matmul", &["a", "b"], ["c", "f16"], asked)?,
        count: columns,
        inputs: vec![o.h, o.h],
        expect: Box::new(move |i| o.half(0) * o.half(i) + o.half(1) * o.half(columns + i)),
        within: [1e-3, 1e-4],
    }])
}

/// All launches, in order.
pub(super) fn all<'a>(o: &'a Operands<'_>) -> Result<Vec<Check<'a>>> {
    let mut all = maps(o)?;
    for more in [movers, by_indices, reductions, rows, products] {
        all.extend(more(o)?);
    }
    Ok(all)
}
