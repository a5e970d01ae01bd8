//! The golden files; `README.md` has their format.

use ep_core::{DType, Scalar};
use primitives::reference::Data;
use std::path::Path;

/// The golden launches of one op.
pub struct Golden {
    pub op: String,
    pub tensors: Vec<Data>,
    pub records: Vec<Record>,
}

/// One launch by names. Operands are indices of tensors.
#[derive(Debug, Default)]
pub struct Record {
    pub selectors: Vec<(String, String)>,
    pub dtypes: Vec<(String, DType)>,
    pub attrs: Vec<(String, f64)>,
    pub sizes: Vec<(String, i64)>,
    pub dims: Vec<(String, Vec<i64>)>,
    pub scalars: Vec<(String, Scalar)>,
    pub reads: Vec<(String, usize)>,
    pub writes: Vec<(String, usize)>,
    /// For some outputs, the size of what was added up, element by element.
    pub scales: Vec<(String, usize)>,
    /// The launch is refused with `InvalidArgument`.
    pub error: bool,
}

impl Record {
    /// The value of the first selector, if the op has any.
    pub fn function(&self) -> &str {
        self.selectors.first().map_or("", |(_, value)| value)
    }

    /// The launch in a line.
    pub fn label(&self, op: &str) -> String {
        let dtypes: Vec<_> = self.dtypes.iter().map(|(_, d)| d.to_string()).collect();
        let selectors: Vec<_> = self.selectors.iter().map(|(_, v)| v.as_str()).collect();
        let sizes = self.sizes.iter().map(|(name, size)| format!("{name} {size}"));
        let dims = self.dims.iter().map(|(name, dims)| format!("{name} {dims:?}"));
        let shape: Vec<_> = sizes.chain(dims).collect();
        format!("{op} {} {} ({})", selectors.join(" "), dtypes.join(" to "), shape.join(", "))
    }
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().unwrap()
    }

    fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn text(&mut self) -> String {
        let length = self.u8();
        String::from_utf8(self.take(length.into()).to_vec()).unwrap()
    }

    fn scalar(&mut self) -> Scalar {
        let (kind, re, im) = (self.u8(), self.u64(), self.u64());
        match kind {
            1 => Scalar::Bool(re != 0),
            2 => Scalar::I64(re as i64),
            3 => Scalar::U64(re),
            4 => Scalar::F64(f64::from_bits(re)),
            5 => Scalar::Complex(f64::from_bits(re), f64::from_bits(im)),
            other => panic!("a scalar of kind {other}"),
        }
    }

    fn record(&mut self) -> Record {
        let mut record = Record::default();
        for _ in 0..u16::from_le_bytes(self.array()) {
            let kind = self.u8();
            let name = self.text();
            match kind {
                0 => record.selectors.push((name, self.text())),
                1 => record.dtypes.push((name, DType(self.u32()))),
                2 => record.attrs.push((name, f64::from_bits(self.u64()))),
                3 => record.sizes.push((name, self.u64() as i64)),
                4 => {
                    let length = self.u8();
                    record.dims.push((name, (0..length).map(|_| self.u64() as i64).collect()));
                }
                5 => record.scalars.push((name, self.scalar())),
                6 => record.reads.push((name, self.u32() as usize)),
                7 => record.writes.push((name, self.u32() as usize)),
                8 => record.scales.push((name, self.u32() as usize)),
                9 => record.error = true,
                other => panic!("a field of kind {other}"),
            }
        }
        record
    }
}

/// Reads the file of an op.
pub fn read(op: &str) -> Golden {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/data").join(op).with_extension("bin");
    let content = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let packed =
        content.strip_prefix(b"EPGOLD01").unwrap_or_else(|| panic!("{}: no golden file", path.display()));
    let unpacked = miniz_oxide::inflate::decompress_to_vec_zlib(packed);
    let unpacked = unpacked.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut bytes = Bytes(&unpacked);
    let (tensors, records) = (bytes.u32(), bytes.u32());
    let tensor = |bytes: &mut Bytes<'_>| {
        let dtype = DType(bytes.u32());
        let length = bytes.u64() as usize;
        Data { dtype, bytes: native(dtype, bytes.take(length)) }
    };
    let tensors = (0..tensors).map(|_| tensor(&mut bytes)).collect();
    let records = (0..records).map(|_| bytes.record()).collect();
    assert!(bytes.0.is_empty(), "{} has bytes behind its end", path.display());
    Golden { op: op.to_owned(), tensors, records }
}

/// Elements as this machine stores them.
fn native(dtype: DType, little: &[u8]) -> Vec<u8> {
    let mut bytes = little.to_vec();
    if cfg!(target_endian = "big") {
        let part = dtype.size().unwrap() / if dtype.is_complex() { 2 } else { 1 };
        bytes.chunks_mut(part).for_each(<[u8]>::reverse);
    }
    bytes
}
