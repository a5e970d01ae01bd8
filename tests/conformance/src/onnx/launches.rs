//! The launches that operators are made of.

use super::machine::{Launch, Machine, Mapped, Value, count};
use ep_core::{DType, Error, Scalar};
use primitives::reference::Number;

/// The shape of the NumPy broadcast of two shapes.
///
/// # Errors
/// When there is none.
pub fn broadcast(a: &[i64], b: &[i64]) -> Mapped<Vec<i64>> {
    let rank = a.len().max(b.len());
    let at = |dims: &[i64], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    let both = (0..rank).map(|i| match (at(a, i), at(b, i)) {
        (x, y) if x == y => Ok(x),
        (1, y) => Ok(y),
        (x, 1) => Ok(x),
        _ => Err(Error::invalid(format!("{a:?} and {b:?} do not broadcast")).into()),
    });
    both.collect()
}

/// Strides of a contiguous tensor.
pub fn strides(dims: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    strides
}

impl Machine<'_> {
    /// A function of each element, with the dtype of the source.
    pub fn unary(&mut self, op: &str, x: &Value) -> Mapped<Value> {
        self.unary_with(op, x, x.dtype, [0.0; 2])
    }

    /// A function of each element with parameters.
    pub fn unary_with(&mut self, op: &str, x: &Value, dst: DType, [a, b]: [f64; 2]) -> Mapped<Value> {
        Launch::new("elementwise_unary")
            .select("op", op)
            .dtype("src", x.dtype)
            .dtype("dst", dst)
            .attr("attr0", a)
            .attr("attr1", b)
            .sizes(&[("count", x.count())])
            .read("src", x)
            .make(self, "dst", dst, &x.shape)
    }

    /// A test of each element.
    pub fn test(&mut self, op: &str, x: &Value) -> Mapped<Value> {
        self.unary_with(op, x, DType::BOOL, [0.0; 2])
    }

    /// Another dtype; the same value if it has that already.
    pub fn cast(&mut self, x: &Value, dtype: DType) -> Mapped<Value> {
        if x.dtype == dtype { Ok(x.clone()) } else { self.cast_always(x, dtype) }
    }

    /// Another dtype, or the same by a launch.
    pub fn cast_always(&mut self, x: &Value, dtype: DType) -> Mapped<Value> {
        Launch::new("cast")
            .dtype("src", x.dtype)
            .dtype("dst", dtype)
            .sizes(&[("count", x.count())])
            .read("src", x)
            .make(self, "dst", dtype, &x.shape)
    }

    fn pair(&mut self, op: &str, a: &Value, b: &Value, dst: DType) -> Mapped<Value> {
        if a.dtype != b.dtype {
            return Err(Error::invalid(format!("`{op}` of {} and {}", a.dtype, b.dtype)).into());
        }
        let shape = broadcast(&a.shape, &b.shape)?;
        Launch::new("broadcast_elementwise_binary")
            .select("op", op)
            .dtype("src", a.dtype)
            .dtype("dst", dst)
            .list("src0_dims", &a.shape)
            .list("src1_dims", &b.shape)
            .read("src0", a)
            .read("src1", b)
            .make(self, "dst", dst, &shape)
    }

    /// A function of pairs of elements, with the dtype of the sources.
    pub fn binary(&mut self, op: &str, a: &Value, b: &Value) -> Mapped<Value> {
        self.pair(op, a, b, a.dtype)
    }

    /// A comparison, or a logical function, of pairs of elements.
    pub fn compare(&mut self, op: &str, a: &Value, b: &Value) -> Mapped<Value> {
        self.pair(op, a, b, DType::BOOL)
    }

    fn with_scalar(&mut self, op: &str, a: &Value, scalar: Scalar, dst: DType) -> Mapped<Value> {
        Launch::new("broadcast_elementwise_binary")
            .select("op", op)
            .dtype("src", a.dtype)
            .dtype("dst", dst)
            .list("src0_dims", &a.shape)
            .list("src1_dims", &[])
            .scalar("scalar1", scalar)
            .read("src0", a)
            .make(self, "dst", dst, &a.shape)
    }

    /// A function of each element and a number.
    pub fn binary_scalar(&mut self, op: &str, a: &Value, scalar: impl Into<Scalar>) -> Mapped<Value> {
        self.with_scalar(op, a, scalar.into(), a.dtype)
    }

    /// A comparison of each element with a number.
    pub fn compare_scalar(&mut self, op: &str, a: &Value, scalar: impl Into<Scalar>) -> Mapped<Value> {
        self.with_scalar(op, a, scalar.into(), DType::BOOL)
    }

    /// A choice between two values.
    pub fn choose(&mut self, cond: &Value, x: &Value, y: &Value) -> Mapped<Value> {
        let shape = broadcast(&cond.shape, &broadcast(&x.shape, &y.shape)?)?;
        Launch::new("where")
            .dtype("cond", cond.dtype)
            .dtype("data", x.dtype)
            .list("cond_dims", &cond.shape)
            .list("x_dims", &x.shape)
            .list("y_dims", &y.shape)
            .read("cond", cond)
            .read("x", x)
            .read("y", y)
            .make(self, "dst", x.dtype, &shape)
    }

    /// One value everywhere.
    pub fn fill(&mut self, dtype: DType, shape: &[i64], value: impl Into<Scalar>) -> Mapped<Value> {
        Launch::new("fill")
            .dtype("data", dtype)
            .sizes(&[("count", count(shape))])
            .scalar("value", value.into())
            .make(self, "dst", dtype, shape)
    }

    /// An arithmetic sequence.
    pub fn sequence(&mut self, dtype: DType, count: i64, start: Scalar, step: Scalar) -> Mapped<Value> {
        Launch::new("arange")
            .dtype("data", dtype)
            .sizes(&[("count", count)])
            .scalar("start", start)
            .scalar("step", step)
            .make(self, "dst", dtype, &[count])
    }

    /// The bytes of a value, as elements of a dtype of the same size in a shape of as many.
    pub fn copy(&mut self, x: &Value, dtype: DType, shape: &[i64]) -> Mapped<Value> {
        let bytes = x.count() * x.dtype.bytes_for_bounds() as i64;
        if bytes != count(shape) * dtype.bytes_for_bounds() as i64 {
            return Err(Error::invalid(format!("{:?} copied into {shape:?}", x.shape)).into());
        }
        Launch::new("memcpy")
            .select("kind", "device_to_device")
            .sizes(&[("bytes", bytes)])
            .read("src", x)
            .make(self, "dst", dtype, shape)
    }

    /// Dimensions in another order.
    pub fn permute(&mut self, x: &Value, permutation: &[usize]) -> Mapped<Value> {
        let shape: Vec<i64> = permutation.iter().map(|p| x.shape[*p]).collect();
        let order: Vec<i64> = permutation.iter().map(|p| *p as i64).collect();
        Launch::new("permute")
            .dtype("data", x.dtype)
            .list("src_dims", &x.shape)
            .list("permutation", &order)
            .read("src", x)
            .make(self, "dst", x.dtype, &shape)
    }

    /// An axis moved to the end; the value itself where it is there.
    pub fn axis_last(&mut self, x: &Value, axis: usize) -> Mapped<Value> {
        let mut order: Vec<usize> = (0..x.rank()).filter(|i| *i != axis).collect();
        if axis + 1 == x.rank() {
            return Ok(x.clone());
        }
        order.push(axis);
        self.permute(x, &order)
    }

    /// The last axis moved to a place; the inverse of [`Machine::axis_last`].
    pub fn axis_back(&mut self, x: &Value, axis: usize) -> Mapped<Value> {
        if axis + 1 == x.rank() {
            return Ok(x.clone());
        }
        let mut order: Vec<usize> = (0..x.rank() - 1).collect();
        order.insert(axis, x.rank() - 1);
        self.permute(x, &order)
    }

    /// A view of a value, by strides and an offset, as a value of its own.
    pub fn strided(&mut self, x: &Value, dims: &[i64], steps: &[i64], offset: i64) -> Mapped<Value> {
        Launch::new("strided_copy")
            .dtype("src", x.dtype)
            .dtype("dst", x.dtype)
            .list("dims", dims)
            .list("src_strides", steps)
            .list("dst_strides", &strides(dims))
            .sizes(&[("src_offset", offset), ("dst_offset", 0)])
            .read("src", x)
            .make(self, "dst", x.dtype, dims)
    }

    /// A value repeated to a larger shape.
    pub fn expand(&mut self, x: &Value, shape: &[i64]) -> Mapped<Value> {
        Launch::new("broadcast_elementwise_unary")
            .select("op", "identity")
            .dtype("src", x.dtype)
            .dtype("dst", x.dtype)
            .list("src_dims", &x.shape)
            .list("src_strides", &strides(&x.shape))
            .list("dst_dims", shape)
            .list("dst_strides", &strides(shape))
            .read("src", x)
            .make(self, "dst", x.dtype, shape)
    }

    /// The box of a shape that begins at a position.
    pub fn crop(&mut self, x: &Value, at: &[i64], shape: &[i64]) -> Mapped<Value> {
        Launch::new("copy_nd")
            .dtype("data", x.dtype)
            .list("dst_dims", shape)
            .list("dst_pos", &vec![0; shape.len()])
            .list("src_dims", &x.shape)
            .list("src_pos", at)
            .list("extent", shape)
            .read("src", x)
            .make(self, "dst", x.dtype, shape)
    }

    /// Values behind each other along an axis.
    pub fn concat(&mut self, values: &[&Value], axis: usize) -> Mapped<Value> {
        let Some(first) = values.first() else {
            return Err(Error::invalid("nothing to put together").into());
        };
        let mut shape = first.shape.clone();
        shape[axis] = values.iter().map(|v| v.shape[axis]).sum();
        let mut made: Option<Value> = None;
        let mut at = vec![0; shape.len()];
        for value in values {
            let launch = Launch::new("copy_nd")
                .dtype("data", value.dtype)
                .list("dst_dims", &shape)
                .list("dst_pos", &at)
                .list("src_dims", &value.shape)
                .list("src_pos", &vec![0; shape.len()])
                .list("extent", &value.shape)
                .read("src", value);
            match &mut made {
                None => made = Some(launch.make(self, "dst", first.dtype, &shape)?),
                Some(made) => launch.into(self, "dst", made)?,
            }
            at[axis] += value.shape[axis];
        }
        made.ok_or_else(|| Error::internal("nothing was put together").into())
    }

    /// Rows along an axis, by a value of indices of any shape; negative ones count from the end.
    pub fn gather(&mut self, x: &Value, axis: usize, indices: &Value) -> Mapped<Value> {
        let [outer, processed, inner] = x.around(axis);
        let mut shape = x.shape[..axis].to_vec();
        shape.extend(&indices.shape);
        shape.extend(&x.shape[axis + 1..]);
        Launch::new("gather")
            .select("mode", "wrap")
            .dtype("indices", indices.dtype)
            .dtype("data", x.dtype)
            .sizes(&[("outer", outer), ("processed", processed), ("inner", inner)])
            .sizes(&[("num_indices", indices.count()), ("offset", 0), ("size", 0)])
            .read("indices", indices)
            .read("src", x)
            .make(self, "dst", x.dtype, &shape)
    }

    /// Rows along an axis, by a list of indices.
    pub fn take(&mut self, x: &Value, axis: usize, indices: &[i64]) -> Mapped<Value> {
        let indices = self.integers(indices)?;
        self.gather(x, axis, &indices)
    }

    /// For each row of `x` along its last axis, the elements at its own indices, of shape `indices`.
    pub fn pick(&mut self, x: &Value, indices: &Value) -> Mapped<Value> {
        let (n, of_each) = (x.shape[x.rank() - 1], indices.shape[indices.rank() - 1]);
        let batch = count(&x.shape[..x.rank() - 1]);
        Launch::new("batch_gather")
            .select("mode", "wrap")
            .dtype("indices", indices.dtype)
            .dtype("data", x.dtype)
            .sizes(&[("batch", batch), ("outer", 1), ("processed", n), ("inner", 1)])
            .sizes(&[("num_indices", of_each), ("offset", 0), ("size", 0)])
            .read("indices", indices)
            .read("src", x)
            .make(self, "dst", x.dtype, &indices.shape)
    }

    /// `on` at the index of each row and `off` elsewhere, along a new last axis; an index outside gives only `off`.
    pub fn one_hot(
        &mut self,
        indices: &Value,
        depth: i64,
        dtype: DType,
        on: Scalar,
        off: Scalar,
    ) -> Mapped<Value> {
        let mut shape = indices.shape.clone();
        shape.push(depth);
        Launch::new("one_hot")
            .select("mode", "zero")
            .dtype("indices", indices.dtype)
            .dtype("data", dtype)
            .sizes(&[("num_indices", indices.count()), ("depth", depth), ("offset", 0), ("size", 0)])
            .scalar("on", on)
            .scalar("off", off)
            .read("indices", indices)
            .make(self, "dst", dtype, &shape)
    }

    /// Elements along one axis, or along several neighbours as one, combined; the axes are gone.
    pub fn reduce_axes(&mut self, op: &str, x: &Value, axes: &[usize], dst: DType) -> Mapped<Value> {
        let rest: Vec<usize> = (0..x.rank()).filter(|i| !axes.contains(i)).collect();
        let shape: Vec<i64> = rest.iter().map(|i| x.shape[*i]).collect();
        let together = axes.windows(2).all(|w| w[0] + 1 == w[1]);
        let (source, [outer, reduced, inner]) = match (axes, together) {
            ([], _) => (x.clone(), [x.count(), 1, 1]),
            ([first, ..], true) => {
                let end = first + axes.len();
                let parts = [&x.shape[..*first], &x.shape[*first..end], &x.shape[end..]];
                (x.clone(), parts.map(count))
            }
            _ => {
                let order: Vec<usize> = rest.iter().chain(axes).copied().collect();
                let sizes = [count(&shape), axes.iter().map(|a| x.shape[*a]).product(), 1];
                (self.permute(x, &order)?, sizes)
            }
        };
        Launch::new("reduce")
            .select("op", op)
            .dtype("src", x.dtype)
            .dtype("dst", dst)
            .sizes(&[("outer", outer), ("reduced", reduced), ("inner", inner)])
            .read("src", &source)
            .make(self, "dst", dst, &shape)
    }

    /// The product of matrices, with batches that broadcast, by the simplest primitive that does it.
    pub fn matmul(&mut self, a: &Value, b: &Value) -> Mapped<Value> {
        let ([.., m, k], [.., k2, n]) = (&a.shape[..], &b.shape[..]) else {
            return Err(Error::invalid(format!("a product of {:?} and {:?}", a.shape, b.shape)).into());
        };
        if k != k2 {
            return Err(Error::invalid(format!("a product of {:?} and {:?}", a.shape, b.shape)).into());
        }
        let batches = [&a.shape[..a.rank() - 2], &b.shape[..b.rank() - 2]];
        let mut shape = broadcast(batches[0], batches[1])?;
        shape.extend([*m, *n]);
        let sizes = [("m", *m), ("n", *n), ("k", *k)];
        let (op, extra) = match batches {
            [[], []] => ("matmul", None),
            [x, y] if x == y => ("batch_matmul", Some(("batch", count(x)))),
            _ => ("broadcast_matmul", None),
        };
        let launch = Launch::new(op).select("transpose_a", "none").select("transpose_b", "none");
        let launch = launch.dtype("data", a.dtype).read("a", a).read("b", b);
        let launch = match op {
            "broadcast_matmul" => {
                launch.list("a_dims", &a.shape).list("b_dims", &b.shape).list("c_dims", &shape)
            }
            _ => launch.sizes(&sizes).sizes(extra.as_slice()),
        };
        launch.make(self, "c", a.dtype, &shape)
    }

    /// The one element of a value.
    pub fn number(&mut self, x: &Value) -> Mapped<Scalar> {
        if x.count() != 1 {
            return Err(Error::invalid(format!("{:?} where one element is needed", x.shape)).into());
        }
        Ok(scalar(x.download()?.get(0)))
    }
}

/// A number as a scalar argument.
pub fn scalar(number: Number) -> Scalar {
    match number {
        Number::Bool(b) => Scalar::Bool(b),
        Number::Int(i) => i64::try_from(i).map_or(Scalar::U64(i as u64), Scalar::I64),
        Number::Real(x) => Scalar::F64(x),
        Number::Complex(re, im) => Scalar::Complex(re, im),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_from_the_end() {
        assert_eq!(broadcast(&[2, 1, 4], &[3, 1]).unwrap(), [2, 3, 4]);
        assert_eq!(broadcast(&[], &[0, 5]).unwrap(), [0, 5]);
        assert_eq!(broadcast(&[1], &[0]).unwrap(), [0]);
        assert!(broadcast(&[2], &[3]).is_err() && broadcast(&[0], &[2]).is_err());
    }

    #[test]
    fn strides_of_contiguous_tensors() {
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(strides(&[]), [0; 0]);
    }
}
