//! The references against the goldens: to the bit, but for the few points where the rounding hangs on bits that
//! the references do not have. There they may be one unit in the last place off.

use crate::compare::{Limit, compare};
use crate::reader::{self, Golden, Record};
use ep_core::Code;
use primitives::reference::Launch;

/// A launch of the reference as a record has it.
pub fn launch<'a>(golden: &'a Golden, record: &'a Record) -> Launch<'a> {
    let mut launch = Launch::new(&golden.op);
    for (name, value) in &record.selectors {
        launch = launch.selector(name, value);
    }
    for (role, dtype) in &record.dtypes {
        launch = launch.dtype(role, *dtype);
    }
    for (name, value) in &record.attrs {
        launch = launch.attr(name, *value);
    }
    for (name, value) in &record.sizes {
        launch = launch.size(name, *value);
    }
    for (name, value) in &record.dims {
        launch = launch.dims(name, value);
    }
    for (name, value) in &record.scalars {
        launch = launch.scalar(name, *value);
    }
    for (name, tensor) in &record.reads {
        launch = launch.read(name, golden.tensors[*tensor].view());
    }
    launch
}

/// Zeros whose sign no contract fixes.
fn any_zero(record: &Record) -> bool {
    ["max", "min"].contains(&record.function()) || record.function().contains("backward")
}

/// At most one element in so many may be off.
const ONE_IN: usize = 500;

fn check(op: &str) {
    let golden = reader::read(op);
    let mut wrong = Vec::new();
    let mut elements = 0;
    for record in &golden.records {
        let label = record.label(op);
        let outputs = match launch(&golden, record).run() {
            Ok(outputs) if !record.error => outputs,
            Err(e) if record.error => {
                assert_eq!(e.code(), Code::InvalidArgument, "{label}: {e}");
                continue;
            }
            Ok(_) => panic!("{label}: this is refused"),
            Err(e) => panic!("{label}: {e}"),
        };
        for (name, want) in &record.writes {
            let want = &golden.tensors[*want];
            let got = outputs.get(name).unwrap();
            let limit = Limit { any_zero: any_zero(record), ..Limit::EXACT };
            assert_eq!(got.view().len(), want.view().len(), "{label}: length of `{name}`");
            let (misses, _) = compare(got, want, None, limit);
            let open = misses.iter().filter(|m| m.steps == 1.0).count();
            let tolerated = if open * ONE_IN <= want.view().len() { 1.0 } else { 0.0 };
            for miss in misses.iter().filter(|m| m.steps > tolerated).take(5) {
                let read = |(name, t): &(String, usize)| {
                    let x = golden.tensors[*t].view();
                    (x.len() == want.view().len()).then(|| format!("{name} {:?}", x.get(miss.index)))
                };
                let of: Vec<_> = record.reads.iter().filter_map(read).collect();
                let (got, want, index) = (miss.got, miss.want, miss.index);
                wrong.push(format!(
                    "{label} `{name}`[{index}] of {}: {got:?}, golden {want:?}",
                    of.join(", ")
                ));
            }
            elements += want.view().len();
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(elements > 0);
}

/// A test for each op, whose name ends in `_` where it is a keyword.
macro_rules! references {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name).trim_end_matches('_')); })*
    };
}

references! {
    add arange arg_reduce batch_gather batch_matmul broadcast_elementwise_binary broadcast_elementwise_unary
    broadcast_matmul cast constant_pad copy_nd elementwise_unary fill gather layer_norm log_softmax
    log_softmax_backward matmul memcpy memset one_hot permute reduce rms_norm scatter_add softmax softmax_backward
    strided_copy tensor_fill where_
}
