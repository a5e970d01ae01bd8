//! Descriptors and arguments as bytes, read by their schema.

use super::{ArgKind, DescKind, Operand, Schema};
use crate::abi::EpScalar;
use crate::hob::{FactKind, Facts, Value};
use crate::op::OperandUse;
use crate::{DType, Error, Result, Scalar};
use std::borrow::Cow;

/// Largest descriptor or argument struct.
pub const MAX_STRUCT: usize = 4096;

/// What a request is looked up by: selector values and dtypes, in the schema's order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// One value for each selector.
    pub selectors: Vec<u32>,
    /// One dtype for each dtype field.
    pub dtypes: Vec<DType>,
}

fn read<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    // A field beyond the end is one that the writer does not know: zero, which means its default.
    bytes.get(offset..offset + N).map_or([0; N], |b| b.try_into().expect("N bytes"))
}

fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(read(bytes, offset))
}

fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(read(bytes, offset))
}

impl Schema {
    /// The key of a descriptor.
    ///
    /// # Errors
    /// `InvalidArgument` for a selector value without a name, no dtype, or an impossible alignment.
    pub fn key(&self, desc: &[u8]) -> Result<Key> {
        let alignment = read_u64(desc, 8);
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(Error::invalid(format!(
                "{}: alignment {alignment} is not a power of two",
                self.name
            )));
        }
        let mut key = Key { selectors: Vec::new(), dtypes: Vec::new() };
        for f in &self.desc {
            match &f.kind {
                DescKind::Selector(choices) => {
                    let v = read_u32(desc, f.offset);
                    if v as usize >= choices.len() {
                        return Err(Error::invalid(format!(
                            "{}: selector `{}` is {v}; it has the values 0 to {}",
                            self.name,
                            f.name,
                            choices.len() - 1
                        )));
                    }
                    key.selectors.push(v);
                }
                DescKind::DType => {
                    let d = DType(read_u32(desc, f.offset));
                    if d == DType::INVALID {
                        return Err(Error::invalid(format!("{}: dtype `{}` is not set", self.name, f.name)));
                    }
                    key.dtypes.push(d);
                }
                DescKind::Attr(_) | DescKind::Limit(_) => {}
            }
        }
        Ok(key)
    }

    /// The name of the first field that `desc` sets and a peer who sees the op as `view` does not know. A new
    /// field may lie in what used to be padding, so the struct's size does not tell.
    pub fn unknown_to(&self, desc: &[u8], view: &Schema) -> Option<&str> {
        let set = |from: usize, len: usize| desc.iter().skip(from).take(len).any(|b| *b != 0);
        let size = |k: &DescKind| if matches!(k, DescKind::Selector(_) | DescKind::DType) { 4 } else { 8 };
        let field = self.desc.iter().skip(view.desc.len()).find(|f| set(f.offset, size(&f.kind)));
        let beyond = || set(view.desc_size, usize::MAX).then_some("(an unnamed field)");
        field.map(|f| f.name.as_str()).or_else(beyond)
    }
}

/// The facts of a request: its descriptor, and the device's attributes.
pub struct DescFacts<'a> {
    /// The op.
    pub schema: &'a Schema,
    /// The descriptor.
    pub desc: &'a [u8],
    /// The device's attributes by name.
    pub device: &'a [(String, Value<'static>)],
}

impl Facts for DescFacts<'_> {
    fn fact(&self, kind: FactKind, name: &str) -> Option<Value<'_>> {
        if kind == FactKind::Device {
            return self.device.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        }
        if (kind, name) == (FactKind::Limit, "alignment") {
            return Some(Value::Int(read_u64(self.desc, 8).into()));
        }
        let f = self.schema.desc_field(name)?;
        Some(match (kind, &f.kind) {
            (FactKind::Selector, DescKind::Selector(choices)) => {
                Value::Text(Cow::Borrowed(choices.get(read_u32(self.desc, f.offset) as usize)?))
            }
            (FactKind::DType, DescKind::DType) => {
                Value::Text(DType(read_u32(self.desc, f.offset)).to_string().into())
            }
            (FactKind::Attr, DescKind::Attr(_)) => {
                Value::Float(f64::from_bits(read_u64(self.desc, f.offset)))
            }
            (FactKind::Limit, DescKind::Limit(_)) => match read_u64(self.desc, f.offset) {
                0 => Value::Unbounded,
                n => Value::Int(n.into()),
            },
            _ => return None,
        })
    }
}

/// The facts of a launch: its arguments.
pub struct ArgsFacts<'a> {
    schema: &'a Schema,
    args: &'a [u8],
}

impl<'a> ArgsFacts<'a> {
    /// Facts from an argument struct.
    ///
    /// # Safety
    /// Each dims pointer in `args` is null or readable for as many values as its length field says.
    pub unsafe fn new(schema: &'a Schema, args: &'a [u8]) -> Self {
        ArgsFacts { schema, args }
    }

    /// A size argument by index.
    pub fn size(&self, index: usize) -> i64 {
        read_u64(self.args, self.schema.args[index].offset) as i64
    }

    /// A scalar argument by index.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed scalar.
    pub fn scalar(&self, index: usize) -> Result<Scalar> {
        let at = self.schema.args[index].offset;
        let raw = EpScalar {
            kind: read_u32(self.args, at),
            reserved: read_u32(self.args, at + 4),
            re: read_u64(self.args, at + 8),
            im: read_u64(self.args, at + 16),
        };
        Scalar::try_from(raw)
    }

    /// A dims or ints argument by index.
    ///
    /// # Errors
    /// `InvalidArgument` for an impossible rank or a null pointer.
    pub fn dims(&self, index: usize) -> Result<&'a [i64]> {
        let f = &self.schema.args[index];
        let (ArgKind::Dims { length } | ArgKind::Ints { length }) = f.kind else {
            return Err(Error::invalid(format!("`{}` is not a dims argument", f.name)));
        };
        let ptr = std::ptr::with_exposed_provenance(read_u64(self.args, f.offset) as usize);
        let len = self.size(length);
        // SAFETY: as the maker of `self` promised; both check null, alignment and rank.
        unsafe {
            match f.kind {
                ArgKind::Dims { .. } => crate::op::dims(&f.name, ptr, len),
                _ => crate::op::ints(&f.name, ptr, len),
            }
        }
    }
}

impl Schema {
    /// What a launch does with each operand, as [`crate::op::Op::uses`] tells it for ops that are types. The
    /// addresses are 0.
    ///
    /// # Errors
    /// `InvalidArgument` for arguments that do not fit the schema.
    pub fn uses(&self, desc: &[u8], args: &ArgsFacts<'_>) -> Result<Vec<OperandUse>> {
        let use_of = |x: &Operand| {
            let scalar = x.scalar.map(|s| args.scalar(s)).transpose()?;
            let zero = |s: Scalar| s.as_f64() == 0.0 && s.im() == 0.0;
            let (reads, present) = match (x.writes, scalar) {
                (true, Some(s)) => (x.reads && !zero(s), true),
                (false, Some(s)) => (x.reads, s == Scalar::None),
                (_, None) => (x.reads, true),
            };
            let count = x.count.amount(args)?;
            let keeps = x.covers.as_ref().map(|c| Ok(c.amount(args)? < count)).transpose()?;
            let dtype = x.dtype.map(|d| DType(read_u32(desc, self.desc[d].offset)));
            let reads = reads || keeps == Some(true);
            let operand = OperandUse::new(0, dtype, count, reads, x.writes, present);
            Ok(if x.optional { operand.or_none() } else { operand })
        };
        let mut uses = self.operands.iter().map(use_of).collect::<Result<Vec<_>>>()?;
        if let Some(length) = self.list_length() {
            let each = uses.pop().expect("the list is the last operand");
            crate::op::addresses(&self.args[length].name, std::ptr::null(), args.size(length))?;
            uses.extend(std::iter::repeat_n(each, args.size(length) as usize));
        }
        Ok(uses)
    }
}

impl Facts for ArgsFacts<'_> {
    fn fact(&self, kind: FactKind, name: &str) -> Option<Value<'_>> {
        let i = self.schema.args.iter().position(|a| a.name == name)?;
        match (kind, self.schema.args[i].kind) {
            (FactKind::Arg, ArgKind::Size) => Some(Value::Int(self.size(i).max(0).into())),
            (FactKind::Arg, ArgKind::Dims { .. } | ArgKind::Ints { .. }) => {
                self.dims(i).ok().map(|d| Value::Dims(d.into()))
            }
            (FactKind::Prod, ArgKind::Dims { .. }) => {
                Some(Value::Int(crate::op::prod(self.dims(i).ok()?).into()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::hob::{FactKind, Facts, Value};
    use crate::op::{Growable, Op};
    use crate::primitive::*;
    use crate::schema::{ArgsFacts, DescFacts, DescField, DescKind, core_schema};
    use crate::{DType, Scalar};

    fn bytes<T: Growable>(value: &T) -> &[u8] {
        // SAFETY: `Growable` structs have no padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
    }

    #[test]
    fn a_field_in_former_padding_is_unknown_to_an_older_peer() {
        let old = core_schema("batch_matmul").unwrap();
        let mut new = old.clone();
        let kind = DescKind::Selector(vec!["off".into(), "on".into()]);
        // The descriptor's size stays what it was.
        new.desc.push(DescField { name: "mode".into(), doc: String::new(), kind, offset: 28 });
        assert_eq!(new.conflict(old), None);
        let mut desc = vec![0; new.desc_size];
        assert_eq!(new.unknown_to(&desc, old), None);
        desc[28] = 1;
        assert_eq!((new.unknown_to(&desc, old), new.unknown_to(&desc, &new)), (Some("mode"), None));
        desc[28] = 0;
        desc.extend([0, 3]);
        assert_eq!(new.unknown_to(&desc, old), Some("(an unnamed field)"));
    }

    /// Bytes and operations of a launch, by the schema and by the generated code.
    fn cost<O: Op>(desc: &O::Desc, args: &O::Args) -> (u64, u64) {
        // SAFETY: the callers' dims live during the call.
        let (uses, facts) = unsafe {
            O::check(desc, args).unwrap();
            (O::uses(desc, args), ArgsFacts::new(O::schema(), bytes(args)))
        };
        assert_eq!(O::schema().uses(bytes(desc), &facts).unwrap(), uses.as_ref(), "{}", O::NAME);
        (O::schema().bytes(bytes(desc), &facts).unwrap(), O::schema().flops(&facts).unwrap())
    }

    #[test]
    fn bytes_and_flops_come_from_the_schema() {
        use DType as D;
        let (none, two) = (Scalar::None, Scalar::F64(2.0));
        let is_nan = ElementwiseUnaryDesc::new(UnaryOp::IS_NAN, D::F64, D::BOOL);
        assert_eq!(cost::<ElementwiseUnary>(&is_nan, &ElementwiseUnaryArgs::new(7, 0, 0)), (7 * 9, 7));
        let copy = MemcpyDesc::new(MemcpyKind::AUTO);
        assert_eq!(cost::<Memcpy>(&copy, &MemcpyArgs::new(10, 0, 0)), (20, 0));
        assert_eq!(cost::<Memset>(&MemsetDesc::new(), &MemsetArgs::new(10, two, 0)), (10, 0));
        assert_eq!(cost::<Fill>(&FillDesc::new(D::COMPLEX128), &FillArgs::new(3, two, 0)), (48, 0));
        assert_eq!(cost::<Cast>(&CastDesc::new(D::I16, D::F32), &CastArgs::new(5, 0, 0)), (30, 0));
        let permute = PermuteArgs::new(&[2, 3], &[1, 0], 0, 0);
        assert_eq!(cost::<Permute>(&PermuteDesc::new(D::U16), &permute), (24, 0));
        let softmax = SoftmaxDesc::new(D::F16, D::F32);
        assert_eq!(cost::<Softmax>(&softmax, &SoftmaxArgs::new(3, 5, 1, 0, 0)), (15 * 6, 75));
        let log = LogSoftmaxDesc::new(D::F64, D::F64);
        assert_eq!(cost::<LogSoftmax>(&log, &LogSoftmaxArgs::new(0, 5, 1, 0, 0)), (0, 0));
        // c is read only where beta is not 0.
        let matmul = MatmulDesc::new(Transpose::NONE, Transpose::TRANSPOSE, D::F32);
        let args = |beta| MatmulArgs::new(2, 3, 4, none, beta, 0, 0, 0);
        assert_eq!(cost::<Matmul>(&matmul, &args(none)), (4 * (8 + 12 + 6), 48));
        assert_eq!(cost::<Matmul>(&matmul, &args(two)), (4 * (8 + 12 + 2 * 6), 48));
        let batch = BatchMatmulDesc::new(Transpose::NONE, Transpose::NONE, D::BF16);
        let args = BatchMatmulArgs::new(10, 2, 3, 4, none, Scalar::F64(0.0), 0, 0, 0);
        assert_eq!(cost::<BatchMatmul>(&batch, &args), (2 * 10 * (8 + 12 + 6), 480));
        // A scalar stands in for memory.
        let binary = BroadcastElementwiseBinaryDesc::new(BinaryOp::LESS_THAN, D::F32, D::BOOL);
        let args = BroadcastElementwiseBinaryArgs::new(&[4, 1], &[3], none, none, 0, 0, 0);
        assert_eq!(cost::<BroadcastElementwiseBinary>(&binary, &args), (4 * (4 + 3) + 12, 12));
        let args = BroadcastElementwiseBinaryArgs::new(&[4], &[], none, two, 0, 0, 0);
        assert_eq!(cost::<BroadcastElementwiseBinary>(&binary, &args), (4 * 4 + 4, 4));
    }

    #[test]
    fn the_schema_and_the_generated_code_count_alike() {
        let (a, b) = ([2, 1, 3], [4, 3]);
        let args = BroadcastElementwiseBinaryArgs::new(&a, &b, Scalar::None, Scalar::None, 0, 0, 0);
        let desc = BroadcastElementwiseBinaryDesc::new(BinaryOp::ADD, DType::F64, DType::F64);
        // SAFETY: the dims live in this function.
        let (uses, facts) = unsafe {
            BroadcastElementwiseBinary::check(&desc, &args).unwrap();
            let schema = BroadcastElementwiseBinary::schema();
            (BroadcastElementwiseBinary::uses(&desc, &args), ArgsFacts::new(schema, bytes(&args)))
        };
        for (u, x) in uses.iter().zip(&BroadcastElementwiseBinary::schema().operands) {
            assert_eq!(x.count.amount(&facts), Ok(u.bytes / 8), "{}", x.name);
        }
        assert_eq!(uses[2].bytes, 24 * 8);
    }

    #[test]
    fn keys_facts_and_unknown_fields() {
        let schema = Softmax::schema();
        let desc = SoftmaxDesc::new(DType::F16, DType::F32).with_max_cols(64);
        let key = schema.key(bytes(&desc)).unwrap();
        assert_eq!(key.dtypes, [DType::F16, DType::F32]);
        let facts = DescFacts { schema, desc: bytes(&desc), device: &[] };
        assert_eq!(facts.fact(FactKind::Limit, "cols"), Some(Value::Int(64)));
        assert_eq!(facts.fact(FactKind::DType, "dst"), Some(Value::Text("f32".into())));
        assert_eq!(facts.fact(FactKind::Limit, "rows"), None);
        let unlimited = SoftmaxDesc::new(DType::F16, DType::F32);
        let facts = DescFacts { schema, desc: bytes(&unlimited), device: &[] };
        assert_eq!(facts.fact(FactKind::Limit, "cols"), Some(Value::Unbounded));

        let mut old = schema.clone();
        old.desc.truncate(2);
        old.desc_size = 24;
        assert_eq!(schema.unknown_to(bytes(&desc), &old), Some("cols"));
        assert_eq!(schema.unknown_to(bytes(&desc), schema), None);
        assert_eq!(schema.unknown_to(bytes(&unlimited), &old), None);
        assert!(schema.key(bytes(&SoftmaxDesc::new(DType::F16, DType::INVALID))).is_err());
        assert!(schema.key(bytes(&desc.with_alignment(48))).is_err());
    }
}
