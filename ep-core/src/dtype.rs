//! Element types.
//!
//! A [`DType`] is an integer that crosses the ABI, so it is a transparent newtype and not a Rust enum:
//! an unknown value is data to be checked, never undefined behaviour. Ids below [`DType::VENDOR_BASE`]
//! belong to the core and never change meaning; ids from there on are handed out by the host when a
//! provider registers a dtype of its own.

use std::fmt;

/// An element type. `0` is [`DType::INVALID`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct DType(pub u32);

struct Row {
    dtype: DType,
    name: &'static str,
    bits: u32,
    /// Bytes of an element, of a smaller one 1.
    bytes: u32,
    alignment: u32,
}

impl Row {
    const fn new(dtype: DType, name: &'static str, bits: u32) -> Row {
        let bytes = bits.div_ceil(8);
        // Of a complex number that of one part.
        let complex = dtype.0 == DType::COMPLEX64.0 || dtype.0 == DType::COMPLEX128.0;
        Row { dtype, name, bits, bytes, alignment: if complex { bytes / 2 } else { bytes } }
    }
}

macro_rules! dtypes {
    ($($konst:ident = $id:literal, $name:literal, $bits:literal, $doc:literal;)*) => {
        impl DType {
            $(#[doc = $doc] pub const $konst: DType = DType($id);)*
        }
        const TABLE: &[Row] = &[$(Row::new(DType::$konst, $name, $bits)),*];
    };
}

dtypes! {
    BOOL = 1, "bool", 8, "One byte, 0 or 1; any other value is invalid data.";
    I8 = 2, "i8", 8, "8-bit two's complement integer.";
    U8 = 3, "u8", 8, "8-bit unsigned integer.";
    I16 = 4, "i16", 16, "16-bit two's complement integer.";
    U16 = 5, "u16", 16, "16-bit unsigned integer.";
    I32 = 6, "i32", 32, "32-bit two's complement integer.";
    U32 = 7, "u32", 32, "32-bit unsigned integer.";
    I64 = 8, "i64", 64, "64-bit two's complement integer.";
    U64 = 9, "u64", 64, "64-bit unsigned integer.";
    F16 = 10, "f16", 16, "IEEE 754 binary16.";
    BF16 = 11, "bf16", 16, "The upper half of an IEEE 754 binary32.";
    F32 = 12, "f32", 32, "IEEE 754 binary32.";
    F64 = 13, "f64", 64, "IEEE 754 binary64.";
    COMPLEX64 = 14, "complex64", 64, "Two `f32`: real, imaginary.";
    COMPLEX128 = 15, "complex128", 128, "Two `f64`: real, imaginary.";
    F8E4M3 = 16, "f8e4m3", 8, "8-bit float, 4 exponent and 3 mantissa bits.";
    F8E5M2 = 17, "f8e5m2", 8, "8-bit float, 5 exponent and 2 mantissa bits.";
    I4 = 18, "i4", 4, "4-bit two's complement integer, two to a byte.";
    U4 = 19, "u4", 4, "4-bit unsigned integer, two to a byte.";
}

impl DType {
    /// No dtype.
    pub const INVALID: DType = DType(0);
    /// The first id of provider-defined dtypes.
    pub const VENDOR_BASE: u32 = 0x1_0000;
    /// The 15 dtypes that primitives are defined over.
    pub const ALL: [DType; 15] = [
        DType::BOOL,
        DType::I8,
        DType::U8,
        DType::I16,
        DType::U16,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::COMPLEX64,
        DType::COMPLEX128,
    ];
    /// The 13 dtypes that are not complex.
    pub const REAL: &'static [DType] = Self::ALL.split_at(13).0;
    /// The floating-point dtypes: f16, bf16, f32, f64.
    pub const FLOAT: &'static [DType] = Self::ALL.split_at(13).0.split_at(9).1;
    /// The integer dtypes, bool excluded.
    pub const INT: &'static [DType] = Self::ALL.split_at(9).0.split_at(1).1;
    /// complex64 and complex128.
    pub const COMPLEX: &'static [DType] = Self::ALL.split_at(13).1;

    #[inline]
    fn row(self) -> Option<&'static Row> {
        TABLE.get((self.0 as usize).wrapping_sub(1))
    }

    /// Whether this id is one of the core's.
    pub fn is_core(self) -> bool {
        self.row().is_some()
    }

    /// The core name, such as `"f32"`; `None` for provider-defined and unknown ids.
    pub fn name(self) -> Option<&'static str> {
        self.row().map(|r| r.name)
    }

    /// Bits of one element; `None` for provider-defined and unknown ids.
    pub fn bits(self) -> Option<u32> {
        self.row().map(|r| r.bits)
    }

    /// Bytes of one element of a core dtype; `None` where elements are smaller than a byte or unknown.
    #[inline]
    pub fn size(self) -> Option<usize> {
        self.bits().filter(|b| b % 8 == 0).map(|b| b as usize / 8)
    }

    /// Alignment of one element in bytes: its size, for complex dtypes that of one part, for vendor dtypes
    /// what they were registered with.
    #[inline]
    pub fn alignment(self) -> usize {
        match self.row() {
            Some(row) => row.alignment as usize,
            None => vendor::alignment(self),
        }
    }

    /// Bytes of one element where an upper bound is wanted: sub-byte dtypes count as 1, unknown ones as 16.
    #[inline]
    pub fn bytes_for_bounds(self) -> u64 {
        match self.row() {
            Some(row) => u64::from(row.bytes),
            None => vendor::bytes_for_bounds(self),
        }
    }

    /// The least bytes that `count` elements take: those smaller than a byte packed. 0 for an unknown dtype.
    #[inline]
    pub fn packed_bytes(self, count: u64) -> u64 {
        let bits = self.bits().or_else(|| vendor::with(self, |v| v.bits)).unwrap_or(0);
        if bits.is_multiple_of(8) {
            return count.saturating_mul(u64::from(bits / 8));
        }
        count.saturating_mul(u64::from(bits)) / 8
    }

    /// Parses a core name (`"f32"`, `"complex64"`, ...); for vendor dtypes too, see [`DType::by_name`]. The error
    /// names the known ones.
    pub fn parse(name: &str) -> Result<DType, UnknownDType> {
        TABLE.iter().find(|r| r.name == name).map(|r| r.dtype).ok_or_else(|| UnknownDType(name.to_owned()))
    }

    /// The dtype of this name: one of the core, or one that a provider loaded in this process has registered.
    ///
    /// # Errors
    /// `NotFound` with the known names.
    pub fn by_name(name: &str) -> crate::Result<DType> {
        if let Some(known) = vendor::by_name(name) {
            return Ok(known.dtype);
        }
        DType::parse(name).map_err(|unknown| {
            let vendors = match vendor::names().join(", ") {
                names if names.is_empty() => "no loaded provider adds others".to_owned(),
                names => format!("loaded providers add {names}"),
            };
            crate::Error::not_found(format!("{unknown}; {vendors}"))
        })
    }

    /// f16, bf16, f32 or f64.
    pub fn is_float(self) -> bool {
        Self::FLOAT.contains(&self)
    }

    /// A signed or unsigned integer; bool is none.
    pub fn is_int(self) -> bool {
        Self::INT.contains(&self)
    }

    /// complex64 or complex128.
    pub fn is_complex(self) -> bool {
        Self::COMPLEX.contains(&self)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None if *self == DType::INVALID => f.pad("invalid"),
            None => match vendor::get(*self) {
                Some(v) => f.pad(&v.name),
                None => write!(f, "dtype#{}", self.0),
            },
        }
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Dtypes outside the core list, as this side of the boundary knows them.
///
/// The host hands out ids (`intern_dtype`); each loaded library keeps a copy of what it asked for, because
/// statics are not shared between libraries.
pub mod vendor {
    use super::DType;
    use crate::{Error, Result};
    use std::sync::RwLock;

    /// A dtype of a vendor.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct VendorDType {
        /// Its id in this process.
        pub dtype: DType,
        /// `vendor.name`.
        pub name: String,
        /// Bits of one element.
        pub bits: u32,
        /// Alignment in bytes.
        pub alignment: u32,
    }

    static KNOWN: RwLock<Vec<VendorDType>> = RwLock::new(Vec::new());

    fn known<R>(f: impl FnOnce(&mut Vec<VendorDType>) -> R) -> R {
        f(&mut KNOWN.write().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// The vendor dtype with this id, if it is known here.
    pub fn get(dtype: DType) -> Option<VendorDType> {
        with(dtype, VendorDType::clone)
    }

    /// Something about the vendor dtype with this id. Launches ask; they allocate nothing.
    pub(super) fn with<R>(dtype: DType, f: impl FnOnce(&VendorDType) -> R) -> Option<R> {
        KNOWN
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .iter()
            .find(|v| v.dtype == dtype)
            .map(f)
    }

    /// As [`DType::alignment`]; apart, so that launches of core dtypes are short.
    #[cold]
    pub(super) fn alignment(dtype: DType) -> usize {
        with(dtype, |v| v.alignment as usize).unwrap_or(1)
    }

    /// As [`DType::bytes_for_bounds`].
    #[cold]
    pub(super) fn bytes_for_bounds(dtype: DType) -> u64 {
        with(dtype, |v| u64::from(v.bits.div_ceil(8))).unwrap_or(16)
    }

    /// The vendor dtype with this name, if it is known here.
    pub fn by_name(name: &str) -> Option<VendorDType> {
        let list = KNOWN.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        list.iter().find(|v| v.name == name).cloned()
    }

    /// The names of the vendor dtypes that are known here, in order of registration.
    pub fn names() -> Vec<String> {
        let list = KNOWN.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        list.iter().map(|v| v.name.clone()).collect()
    }

    /// Remembers a dtype that the host has given an id (providers), or gives it the next one (`None`, hosts).
    ///
    /// # Errors
    /// `InvalidArgument` for a bad name, size or alignment, or when the name is known with other ones.
    pub fn intern(id: Option<DType>, name: &str, bits: u32, alignment: u32) -> Result<DType> {
        let valid_name = name.split_once('.').is_some_and(|(v, n)| !v.is_empty() && !n.is_empty());
        if !valid_name || bits == 0 || bits > 4096 || !alignment.is_power_of_two() || alignment > 4096 {
            return Err(Error::invalid(format!(
                "dtype `{name}` with {bits} bits, alignment {alignment}: the name is `vendor.name`, bits are 1 to \
                 4096, the alignment is a power of two up to 4096"
            )));
        }
        known(|list| {
            if let Some(v) = list.iter().find(|v| v.name == name) {
                if (v.bits, v.alignment) == (bits, alignment) && id.is_none_or(|id| id == v.dtype) {
                    return Ok(v.dtype);
                }
                return Err(Error::invalid(format!(
                    "dtype `{name}` is already known with {} bits, alignment {}, id {}",
                    v.bits, v.alignment, v.dtype.0
                )));
            }
            if let Some(v) = list.iter().find(|v| Some(v.dtype) == id) {
                // Two hosts in one process that do not share their lists.
                return Err(Error::invalid(format!(
                    "dtype `{name}` has the id {}, which is `{}` here; load the provider from one host only",
                    v.dtype.0, v.name
                )));
            }
            let dtype = id.unwrap_or(DType(DType::VENDOR_BASE + list.len() as u32));
            list.push(VendorDType { dtype, name: name.to_owned(), bits, alignment });
            Ok(dtype)
        })
    }
}

/// A dtype name that the core does not define.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownDType(pub String);

/// What other programs call dtypes: first the core's name, then theirs, in lower case and without `_`.
const ALIASES: &[(&str, &[&str])] = &[
    ("bool", &["boolean", "b8", "i1"]),
    ("i8", &["int8", "s8"]),
    ("u8", &["uint8", "byte"]),
    ("i16", &["int16", "s16", "short"]),
    ("u16", &["uint16", "ushort"]),
    ("i32", &["int32", "s32", "int"]),
    ("u32", &["uint32", "uint"]),
    ("i64", &["int64", "s64", "long"]),
    ("u64", &["uint64", "ulong"]),
    ("f16", &["float16", "fp16", "half"]),
    ("bf16", &["bfloat16", "bfloat"]),
    ("f32", &["float32", "fp32", "float", "single"]),
    ("f64", &["float64", "fp64", "double"]),
    ("complex64", &["c64", "cfloat", "complex"]),
    ("complex128", &["c128", "cdouble"]),
    ("f8e4m3", &["float8e4m3", "fp8e4m3"]),
    ("f8e5m2", &["float8e5m2", "fp8e5m2"]),
    ("i4", &["int4", "s4"]),
    ("u4", &["uint4"]),
];

impl UnknownDType {
    /// The core's name for what was probably meant: `f16` for `fp16`, `half` or `F16`.
    pub fn meant(&self) -> Option<&'static str> {
        let name = self.0.to_lowercase().replace(['_', '-'], "");
        let prefixes = ["torch.", "numpy.", "np.", "jnp.", "tf."];
        let name = prefixes.iter().find_map(|p| name.strip_prefix(p)).unwrap_or(&name);
        ALIASES.iter().find(|(core, others)| *core == name || others.contains(&name)).map(|(core, _)| *core)
    }
}

impl fmt::Display for UnknownDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meant() {
            Some(meant) => {
                write!(f, "unknown dtype `{}`: did you mean `{meant}`? The core dtypes are ", self.0)?
            }
            None => write!(f, "unknown dtype `{}`; the core dtypes are ", self.0)?,
        }
        for (i, r) in TABLE.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, r.name)?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownDType {}

/// A Rust type that is the in-memory form of one dtype.
///
/// # Safety
/// `DTYPE.size()` equals `size_of::<Self>()`, there is no padding, and every bit pattern is a valid `Self`
/// unless [`Element::validate`] rejects it.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The dtype of this type.
    const DTYPE: DType;

    /// Whether `bytes` hold valid elements. Only `bool` can fail.
    fn validate(bytes: &[u8]) -> bool {
        let _ = bytes;
        true
    }
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => {
        // SAFETY: each type is plain data of exactly the dtype's size, and all its bit patterns are valid.
        $(unsafe impl Element for $t { const DTYPE: DType = DType::$d; })*
    };
}
element!(i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    half::f16 => F16, half::bf16 => BF16, f32 => F32, f64 => F64);

/// A complex number in memory: real part, imaginary part. For moving data; it has no arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex<T> {
    /// The real part.
    pub re: T,
    /// The imaginary part.
    pub im: T,
}

// SAFETY: two f32 without padding, the size of the dtype; all bit patterns are valid.
unsafe impl Element for Complex<f32> {
    const DTYPE: DType = DType::COMPLEX64;
}

// SAFETY: two f64 without padding, the size of the dtype; all bit patterns are valid.
unsafe impl Element for Complex<f64> {
    const DTYPE: DType = DType::COMPLEX128;
}

// SAFETY: one byte; `validate` rejects everything but 0 and 1.
unsafe impl Element for bool {
    const DTYPE: DType = DType::BOOL;
    fn validate(bytes: &[u8]) -> bool {
        bytes.iter().all(|&b| b <= 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_dtypes_are_interned_by_name() {
        let id = vendor::intern(None, "acme.test8", 8, 1).unwrap();
        assert_eq!(vendor::intern(None, "acme.test8", 8, 1), Ok(id));
        assert!(vendor::intern(None, "acme.test8", 16, 2).is_err());
        assert!(vendor::intern(Some(id), "acme.other", 8, 1).is_err());
        assert!(vendor::intern(None, "noprefix", 8, 1).is_err());
        assert!(vendor::intern(None, "a.b", 8, 3).is_err());
        assert_eq!(
            (DType::by_name("acme.test8"), DType::by_name("f64"), vendor::names()),
            (Ok(id), Ok(DType::F64), vec!["acme.test8".to_owned()])
        );
        let error = DType::by_name("acme.test9").unwrap_err();
        assert!(
            error.code() == crate::Code::NotFound && error.message().ends_with("add acme.test8"),
            "{error}"
        );
        assert_eq!((id.to_string().as_str(), id.bytes_for_bounds(), id.alignment()), ("acme.test8", 1, 1));
    }

    #[test]
    fn names_of_other_programs_are_understood_and_not_accepted() {
        let meant = |name: &str| DType::parse(name).unwrap_err().meant();
        for (name, core) in [
            ("fp16", "f16"),
            ("half", "f16"),
            ("float32", "f32"),
            ("float", "f32"),
            ("Double", "f64"),
            ("torch.bfloat16", "bf16"),
            ("INT8", "i8"),
            ("F32", "f32"),
            ("c64", "complex64"),
            ("float8_e4m3", "f8e4m3"),
        ] {
            assert_eq!(meant(name), Some(core), "{name}");
            let error = DType::by_name(name).unwrap_err();
            let hint = format!("unknown dtype `{name}`: did you mean `{core}`? The core dtypes are bool, ");
            assert!(error.message().starts_with(&hint), "{error}");
        }
        for name in ["", "f33", "acme.fp16", "tensor"] {
            assert_eq!(meant(name), None, "{name}");
            assert!(!DType::by_name(name).unwrap_err().message().contains("did you mean"));
        }
        let mut known = std::collections::HashSet::new();
        for (core, others) in ALIASES {
            assert!(DType::parse(core).is_ok(), "{core}");
            assert!(others.iter().all(|o| DType::parse(o).is_err() && known.insert(*o)), "{others:?}");
        }
    }

    #[test]
    fn elements_have_the_size_of_their_dtype() {
        fn check<T: Element>() {
            assert_eq!(T::DTYPE.size(), Some(size_of::<T>()));
            assert!(T::DTYPE.alignment() >= align_of::<T>());
        }
        check::<bool>();
        check::<i64>();
        check::<half::bf16>();
        check::<Complex<f32>>();
        check::<Complex<f64>>();
        assert!(!bool::validate(&[0, 2]));
    }

    #[test]
    fn table_is_indexed_by_id() {
        for (i, r) in TABLE.iter().enumerate() {
            assert_eq!(r.dtype.0 as usize, i + 1);
            assert_eq!(DType::parse(r.name), Ok(r.dtype));
        }
        assert_eq!(DType(0).name(), None);
        assert_eq!(DType(999).name(), None);
        assert_eq!(DType::FLOAT, [DType::F16, DType::BF16, DType::F32, DType::F64]);
        assert_eq!(DType::INT.len(), 8);
        assert_eq!(DType::I4.size(), None);
        let packed = [DType::I4, DType::F32, DType(999)].map(|d| d.packed_bytes(7));
        assert_eq!(packed, [3, 28, 0]);
    }
}
