//! One small launch of every op.

use crate::launch::Launch;
use ep_core::DType;

const F: DType = DType::F32;

/// `[outer, processed, inner]` and its indices.
const GATHER: [&str; 4] = ["outer", "processed", "inner", "num_indices"];
const ROWS: [&str; 3] = ["rows", "cols", "inner"];
const MATRIX: [&str; 3] = ["m", "n", "k"];

fn indexed(op: &'static str) -> Launch {
    Launch::of(op).selector("mode", "error").dtype("indices", DType::I32)
}

fn unary(op: &'static str) -> Launch {
    Launch::of(op).selector("op", "negative").dtype("src", F).dtype("dst", F)
}

fn product(op: &'static str) -> Launch {
    let launch = Launch::of(op).selector("transpose_a", "none").selector("transpose_b", "none");
    launch.dtype("data", F)
}

fn of_rows(op: &'static str) -> Launch {
    Launch::of(op).dtype("src", F).dtype("dst", F)
}

/// Every op of the core, with `n` rows (or so) of `m` elements.
pub fn all(n: i64, m: i64) -> Vec<Launch> {
    let norm = |op| Launch::of(op).dtype("data", F).dtype("stats", F).attr("epsilon", 1e-5);
    let dims = [n, m];
    vec![
        Launch::of("add").dtype("data", F).sizes(["count"], [n * m]).arity(3),
        Launch::of("arange").dtype("data", F).sizes(["count"], [n * m]),
        Launch::of("arg_reduce")
            .selector("op", "argmax")
            .dtype("src", F)
            .dtype("dst", DType::I64)
            .sizes(["outer", "reduced", "inner"], [n, m, 2]),
        indexed("batch_gather").dtype("data", F).sizes(["batch"], [2]).sizes(GATHER, [1, n, m, n]),
        product("batch_matmul").sizes(["batch"], [2]).sizes(MATRIX, [n, m, 3]),
        Launch::of("broadcast_elementwise_binary")
            .selector("op", "add")
            .dtype("src", F)
            .dtype("dst", F)
            .list("src0_dims", &dims)
            .list("src1_dims", &dims),
        unary("broadcast_elementwise_unary")
            .list("src_dims", &dims)
            .list("src_strides", &[m, 1])
            .list("dst_dims", &dims)
            .list("dst_strides", &[m, 1]),
        product("broadcast_matmul")
            .list("a_dims", &[2, n, 3])
            .list("b_dims", &[3, m])
            .list("c_dims", &[2, n, m]),
        Launch::of("cast").dtype("src", F).dtype("dst", DType::I32).sizes(["count"], [n * m]),
        Launch::of("constant_pad")
            .dtype("data", F)
            .list("src_dims", &dims)
            .list("padding_before", &[0, 1])
            .list("padding_after", &[0, 1]),
        Launch::of("copy_nd")
            .dtype("data", F)
            .list("dst_dims", &dims)
            .list("dst_pos", &[0, 0])
            .list("src_dims", &dims)
            .list("src_pos", &[0, 0])
            .list("extent", &dims),
        unary("elementwise_unary").sizes(["count"], [n * m]),
        Launch::of("fill").dtype("data", F).sizes(["count"], [n * m]).scalar("value", 2.5),
        indexed("gather").dtype("data", F).sizes(GATHER, [2, n, m, n]),
        norm("layer_norm").sizes(["rows", "cols"], dims),
        of_rows("log_softmax").sizes(ROWS, [n, m, 1]),
        of_rows("log_softmax_backward").sizes(ROWS, [n, m, 1]),
        product("matmul").sizes(MATRIX, [n, m, 3]),
        Launch::of("memcpy").selector("kind", "auto").sizes(["bytes"], [4 * n * m]),
        Launch::of("memset").sizes(["bytes"], [4 * n * m]).scalar("value", 7i64),
        indexed("one_hot").dtype("data", F).sizes(["num_indices", "depth"], dims),
        Launch::of("permute").dtype("data", F).list("src_dims", &dims).list("permutation", &[1, 0]),
        Launch::of("reduce")
            .selector("op", "sum")
            .dtype("src", F)
            .dtype("dst", F)
            .sizes(["outer", "reduced", "inner"], [n, m, 2]),
        norm("rms_norm").sizes(["rows", "cols"], dims),
        indexed("scatter_add").dtype("data", F).sizes(GATHER, [2, n, m, n]),
        of_rows("softmax").sizes(ROWS, [n, m, 1]),
        of_rows("softmax_backward").sizes(ROWS, [n, m, 1]),
        Launch::of("strided_copy")
            .dtype("src", F)
            .dtype("dst", F)
            .list("dims", &dims)
            .list("src_strides", &[1, n])
            .list("dst_strides", &[m, 1]),
        Launch::of("tensor_fill").dtype("data", F).sizes(["count"], [n * m]),
        Launch::of("where")
            .dtype("cond", DType::I32)
            .dtype("data", F)
            .list("cond_dims", &dims)
            .list("x_dims", &dims)
            .list("y_dims", &dims),
    ]
}

#[test]
fn every_op_of_the_core_is_there() {
    let ops: Vec<_> = all(3, 4).iter().map(|l| l.op.to_owned()).collect();
    let mut core: Vec<_> = ep_core::schema::core_schemas().map(|s| s.name.clone()).collect();
    core.sort();
    assert_eq!(ops, core);
}
