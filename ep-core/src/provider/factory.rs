//! Factories and kernels.

use super::table::{self, FactoryObject};
use super::{Device, Provider};
use crate::abi::{EP_FACTORY_CAPTURABLE, EpFactoryInfo, EpOpSchema, EpStr, RegistrarTable, take};
use crate::hob::{Encoded, Expr};
use crate::op::Op;
use crate::schema::DescField;
use crate::{DType, Error, Result};
use std::collections::HashSet;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Mutex;

/// A primitive, ready to be launched. Immutable: launches on different streams may run at once.
pub trait Kernel<O: Op, D: Device>: Send + Sync + 'static {
    /// Queues the work on `stream`, or does it where streams are inline. Sizes, limits, nulls and alignment
    /// have been checked; nothing in `args` may be kept after the call.
    ///
    /// # Safety
    /// The memory that [`Op::uses`] tells for `args` is valid until the work is done, and nobody else writes
    /// what it reads or touches what it writes in that time. `workspace`, where it is not 0, is `workspace_bytes` of memory
    /// of the device that nobody else uses in that time.
    ///
    /// # Errors
    /// What cannot be launched.
    unsafe fn launch(&self, stream: &D::Stream, args: &O::Args) -> Result<()>;

    /// Bytes of workspace that a launch with these arguments wants.
    ///
    /// # Errors
    /// For arguments that cannot be launched.
    fn workspace_size(&self, args: &O::Args) -> Result<u64> {
        let _ = args;
        Ok(0)
    }

    /// Whether [`Kernel::packing`] has something to tell, on devices with [`Device::PREPACKS`].
    const PACKS: bool = false;

    /// The form in which the kernel reads an operand fastest where many launches read it, for launches with these sizes;
    /// `None` where that is the form that it has. Operands are numbered as in the op's schema; it is asked for such as are read
    /// and not written, and for no lists. Addresses in `args` mean nothing here.
    ///
    /// # Safety
    /// Sizes and limits in `args` have been checked, and its dims are readable.
    ///
    /// # Errors
    /// For arguments that cannot be launched.
    unsafe fn packing(&self, operand: usize, args: &O::Args) -> Result<Option<Packing>> {
        let _ = (operand, args);
        Ok(None)
    }

    /// Queues bringing the operand, whose address in `args` has been checked, into the form that [`Kernel::packing`] told,
    /// at `packed`, a multiple of 64 whatever alignment the descriptor promises of operands.
    ///
    /// # Safety
    /// The operand is readable, and [`Packing::bytes`] at `packed` are memory of the device that nobody else touches, until
    /// the work is done. Other addresses in `args` mean nothing.
    ///
    /// # Errors
    /// What cannot be launched.
    unsafe fn pack(&self, stream: &D::Stream, operand: usize, args: &O::Args, packed: u64) -> Result<()> {
        let _ = (stream, operand, args, packed);
        Err(Error::internal(format!("{}: a kernel tells of a packed form that it does not make", O::NAME)))
    }

    /// As [`Kernel::launch`], with the operand in its packed form at `packed`; its address in `args` means nothing. The
    /// arguments have the same [`Packing`] as those that it was packed with.
    ///
    /// # Safety
    /// As [`Kernel::launch`] for the other operands; what was packed there is not written until the work is done.
    ///
    /// # Errors
    /// What cannot be launched.
    unsafe fn launch_packed(
        &self,
        stream: &D::Stream,
        operand: usize,
        packed: u64,
        args: &O::Args,
    ) -> Result<()> {
        let _ = (stream, operand, packed, args);
        Err(Error::internal(format!("{}: a kernel tells of a packed form that it does not read", O::NAME)))
    }

    /// What was chosen (an algorithm, an instruction set), for people.
    fn describe(&self) -> &str {
        ""
    }
}

/// A packed form of an operand; see [`Kernel::packing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Bytes that it takes; not 0.
    pub bytes: u64,
    /// The shape of the operand, and what else of the arguments the form depends on. Launches whose arguments give others
    /// are refused.
    pub sizes: [i64; 4],
}

/// A registration: which requests, and how to build the kernel.
pub struct Factory<O: Op, D, F> {
    name: String,
    build: F,
    selectors: Vec<Vec<u32>>,
    dtypes: Vec<Vec<DType>>,
    predicate: Option<Expr>,
    hint: Option<Expr>,
    priority: i32,
    capturable: bool,
    marker: PhantomData<fn(&D) -> O>,
}

impl<O: Op, D: Device, K: Kernel<O, D>, F> Factory<O, D, F>
where
    F: Fn(&D, &O::Desc) -> Result<K> + Send + Sync + 'static,
{
    /// A factory that builds kernels with `build`. Its name is unique in the provider, such as `softmax.rows`.
    pub fn new(name: impl Into<String>, build: F) -> Self {
        Factory {
            name: name.into(),
            build,
            selectors: Vec::new(),
            dtypes: Vec::new(),
            predicate: None,
            hint: None,
            priority: 0,
            capturable: false,
            marker: PhantomData,
        }
    }

    /// The selector values it is for: one row for each combination, in the schema's order. Needed for ops
    /// that have selectors. Every row goes with every row of [`Factory::dtypes`].
    #[must_use]
    pub fn selectors<R: IntoIterator<Item = u32>>(mut self, rows: impl IntoIterator<Item = R>) -> Self {
        self.selectors = rows.into_iter().map(|r| r.into_iter().collect()).collect();
        self
    }

    /// The dtypes it is for: one row for each combination, in the schema's order.
    #[must_use]
    pub fn dtypes<R: IntoIterator<Item = DType>>(mut self, rows: impl IntoIterator<Item = R>) -> Self {
        self.dtypes = rows.into_iter().map(|r| r.into_iter().collect()).collect();
        self
    }

    /// A further condition; see [`crate::hob`].
    #[must_use]
    pub fn when(mut self, predicate: Expr) -> Self {
        self.predicate = Some(predicate);
        self
    }

    /// Ranks factories that match with equal priority: the larger number wins. Never decides validity.
    #[must_use]
    pub fn hint(mut self, hint: Expr) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Higher is preferred; 0 unless said.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Its launches may be recorded into a graph.
    #[must_use]
    pub fn capturable(mut self) -> Self {
        self.capturable = true;
        self
    }
}

/// Every row has a value for each of these fields.
fn check_rows<'s, T: Debug>(
    what: &str,
    rows: &[Vec<T>],
    fields: impl Iterator<Item = &'s DescField>,
) -> Result<()> {
    let names: Vec<_> = fields.map(|f| f.name.as_str()).collect();
    let Some((i, row)) = rows.iter().enumerate().find(|(_, row)| row.len() != names.len()) else {
        return Ok(());
    };
    let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Err(Error::invalid(format!(
        "row {i} has {} {what} values, {row:?}; one each is needed for what the op has: {has}",
        row.len()
    )))
}

/// Where a provider puts what it can do.
pub struct Registrar<'a, P: Provider> {
    table: RegistrarTable,
    device_kind: String,
    known: HashSet<&'static str>,
    factories: &'a Mutex<Vec<Box<dyn FactoryObject>>>,
    marker: PhantomData<fn(P)>,
}

impl<'a, P: Provider> Registrar<'a, P> {
    pub(super) fn new(table: RegistrarTable, factories: &'a Mutex<Vec<Box<dyn FactoryObject>>>) -> Self {
        Registrar { table, device_kind: String::new(), known: HashSet::new(), factories, marker: PhantomData }
    }

    /// The device kind that the factories added from here on are for. Needed before the first one.
    pub fn device_kind(&mut self, kind: &str) -> &mut Self {
        self.device_kind = kind.to_owned();
        self
    }

    /// Makes a vendor op known before its factories are added. Core ops need no such call.
    ///
    /// # Errors
    /// The host's: an invalid schema, or one that conflicts with the op that it knows by this name.
    ///
    /// # Safety
    /// Each pointer in `schema`, and in what it points to, is null or readable for as many entries as the count beside it
    /// says, during the call; texts are readable for their length.
    ///
    /// ```compile_fail,E0133
    /// use ep_core::abi::EpOpSchema;
    /// use ep_core::provider::{Provider, Registrar};
    ///
    /// fn register<P: Provider>(registrar: &mut Registrar<'_, P>) -> ep_core::Result<()> {
    ///     registrar.add_schema(&EpOpSchema::EMPTY)
    /// }
    /// ```
    pub unsafe fn add_schema(&mut self, schema: &EpOpSchema) -> Result<()> {
        // SAFETY: the context belongs to the table; the schema as the caller promises.
        unsafe { take((self.table.add_schema)(self.table.context, schema)) }
    }

    /// Registers a factory.
    ///
    /// # Errors
    /// Rows that are not as long as the op has selectors or dtypes. The host's: a name in a predicate that neither the
    /// op nor the device has, a row that stands twice, a name that is taken.
    pub fn add<O: Op, K, F>(&mut self, factory: Factory<O, P::Device, F>) -> Result<()>
    where
        K: Kernel<O, P::Device>,
        F: Fn(&P::Device, &O::Desc) -> Result<K> + Send + Sync + 'static,
    {
        if self.known.insert(O::NAME) {
            // SAFETY: an op's own schema is static and valid (`Op`).
            unsafe { self.add_schema(O::raw_schema()) }?;
        }
        // The host reads as many values as rows of the right length have.
        let schema = O::schema();
        let wrong = |e: Error| e.context(format!("factory `{}` of op `{}`", factory.name, O::NAME));
        check_rows("selector", &factory.selectors, schema.selectors().map(|(f, _)| f)).map_err(wrong)?;
        check_rows("dtype", &factory.dtypes, schema.dtypes()).map_err(wrong)?;
        let selectors: Vec<u32> = factory.selectors.iter().flatten().copied().collect();
        let dtypes: Vec<u32> = factory.dtypes.iter().flatten().map(|d| d.0).collect();
        let predicate = Encoded::new(factory.predicate.as_ref());
        let hint = Encoded::new(factory.hint.as_ref());
        let object = table::factory_object::<P, O, K, F>(factory.build);
        let info = EpFactoryInfo {
            op: EpStr::new(O::NAME),
            name: EpStr::new(&factory.name),
            schema_version: O::VERSION,
            priority: factory.priority,
            flags: if factory.capturable { EP_FACTORY_CAPTURABLE.into() } else { 0 },
            device_kind: EpStr::new(&self.device_kind),
            selectors: selectors.as_ptr(),
            num_selector_rows: factory.selectors.len() as u64,
            dtypes: dtypes.as_ptr(),
            num_dtype_rows: factory.dtypes.len() as u64,
            predicate: predicate.nodes().as_ptr(),
            num_predicate: predicate.nodes().len() as u64,
            hint: hint.nodes().as_ptr(),
            num_hint: hint.nodes().len() as u64,
            context: object.context(),
            primitive: table::primitive_table::<P, O, K>(),
            create: Some(table::create_primitive::<P, O, K, F>),
            ..EpFactoryInfo::EMPTY
        };
        self.factories.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(object);
        // SAFETY: the context belongs to the table; everything in `info` outlives the call, and what the host
        // keeps (context, functions) lives until the provider is destroyed.
        unsafe { take((self.table.add_factory)(self.table.context, &info)) }
    }
}
