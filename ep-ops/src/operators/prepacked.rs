//! Products by a matrix that many of them have, such as the weights of a layer.

use super::matmul::{Operand, Sizes, dense, stored};
use super::{launch, shape};
use crate::{Ops, Spec, Tensor};
use ep_core::primitive as p;
use ep_core::primitive::Transpose;
use ep_core::{Code, DType, Error, Result, Scalar};
use ep_registry::{NoMemory, Packed, Primitive};

/// The second factor of many products, in the form that its device reads fastest; made by [`Ops::prepack`].
///
/// Where the device gains by it, a copy that is packed once, which products then need not do; the tensor that it was made of may
/// go. Elsewhere that tensor itself, so that it must not be written as long as products are to be by what it held.
#[derive(Debug)]
pub struct Prepacked {
    spec: Spec,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Packed(Packed, Primitive<p::Matmul>),
    Plain {
        matrix: Tensor,
        /// Bytes of a copy that is dense.
        copied: u64,
    },
}

impl Prepacked {
    /// Dtype and shape of the matrix, `[k, n]`.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Whether the device has packed it; else it is read as it was.
    pub fn is_packed(&self) -> bool {
        matches!(self.form, Form::Packed(..))
    }

    /// Bytes that it takes on the device besides those of the tensor that it was made of; 0 where that is read as it is.
    pub fn packed_bytes(&self) -> u64 {
        match &self.form {
            Form::Packed(packed, _) => packed.bytes(),
            Form::Plain { copied, .. } => *copied,
        }
    }
}

impl Ops<'_> {
    /// Brings a matrix `[k, n]` into the form that products by it are fastest with: for weights that do not change. A transposed
    /// view, of weights that are stored as `[n, k]`, need not be copied before. Where [`Prepacked::packed_bytes`] is 0, the tensor is
    /// kept and read as it is, so that it must not be written.
    ///
    /// ```no_run
    /// # fn main() -> ep_core::Result<()> {
    /// # let runtime = ep_registry::Runtime::from_config("ep.toml")?;
    /// # let ops = ep_ops::Ops::new(&runtime, "cpu")?;
    /// # let (weight, batches) = (ops.zeros(ep_core::DType::BF16, &[4096, 1024])?, Vec::<ep_ops::Tensor>::new());
    /// let weight = ops.prepack(&weight.t()?)?;
    /// for x in &batches {
    ///     let y = ops.matmul_prepacked(x, &weight)?;
    /// #   let _ = y;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a tensor that is no matrix, of bool, or on another device; `OutOfMemory`; the device's.
    pub fn prepack(&self, b: &Tensor) -> Result<Prepacked> {
        if b.rank() != 2 || b.dtype() == DType::BOOL {
            return Err(Error::invalid(format!(
                "{}: what is prepacked is a matrix of two dimensions, and not of bool",
                b.spec()
            )));
        }
        self.check_devices("prepack", &[b])?;
        let spec = b.spec().clone();
        let form = launch::or_dense(|| self.form(b, stored(self, b)?), || self.form(b, dense(self, b)?));
        let form = match form {
            // Whether there are such products at all is said by the first of them.
            Err(e) if e.code() == Code::Unsupported => {
                tracing::debug!("{spec} is not packed: {}", e.message());
                Form::Plain { matrix: b.alias(), copied: 0 }
            }
            form => form.map_err(|e| e.context(format!("prepack of {spec}")))?,
        };
        Ok(Prepacked { spec, form })
    }

    /// What becomes of a matrix that was made dense, as it is stored.
    fn form(&self, b: &Tensor, (dense, transpose): Operand) -> Result<Form> {
        let desc = p::MatmulDesc::new(Transpose::NONE, transpose, b.dtype());
        let primitive = self.primitive::<p::Matmul>(desc)?;
        let (k, n) = (b.shape()[0], b.shape()[1]);
        let (m, alpha, beta) = (1, Scalar::None, Scalar::None);
        let read = dense.read()?;
        let call = p::MatmulCall { m, n, k, alpha, beta, a: NoMemory, b: read.view()?, c: NoMemory };
        let packed = primitive.prepack(self.stream(), call)?;
        drop(read);
        Ok(match packed {
            Some(packed) => Form::Packed(packed, primitive),
            None if dense.shares_storage(b) => Form::Plain { matrix: b.alias(), copied: 0 },
            // Which products need not make again. Only what is stored as it shows is copied.
            None => {
                Form::Plain { copied: dense.numel() as u64 * dense.dtype().bytes_for_bounds(), matrix: dense }
            }
        })
    }

    /// As [`Ops::matmul`], by a matrix that was [prepacked](Ops::prepack): `[.., k]` times `[k, n]` is `[.., n]`.
    ///
    /// # Errors
    /// `InvalidArgument` for dtypes that differ, single elements, sizes that do not meet, and a matrix that was prepacked on
    /// another device.
    pub fn matmul_prepacked(&self, a: &Tensor, b: &Prepacked) -> Result<Tensor> {
        let (packed, primitive) = match &b.form {
            Form::Packed(packed, primitive) => (packed, primitive),
            Form::Plain { matrix, .. } => return self.matmul(a, matrix),
        };
        let sizes = Sizes::new(a.spec(), &b.spec).map_err(|e| e.context("matmul by a prepacked matrix"))?;
        if packed.device() != self.device() {
            return Err(Error::invalid(format!(
                "the matrix was prepacked on {} of this or another runtime, and {} is to multiply by it; prepack it there",
                packed.device().name(),
                self.device().name()
            )));
        }
        let to = shape::output(a.dtype(), sizes.output())?;
        let a = launch::dense(self, a)?;
        let (n, k) = (b.spec.shape[1], b.spec.shape[0]);
        // What is empty is not packed.
        let m = a.numel() / k;
        let (alpha, beta) = (Scalar::None, Scalar::None);
        launch::output(self, &to, |c| {
            let a = a.read()?;
            let call = p::MatmulCall { m, n, k, alpha, beta, a: a.view()?, b: packed, c };
            primitive.launch(self.stream(), call)
        })
    }
}
