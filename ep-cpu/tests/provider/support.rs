//! A runtime with the provider linked in, values of every dtype, and launches in both ways.

use ep_core::{DType, Result, Scalar};
use ep_cpu::provider::CpuProvider;
use ep_registry::config::ProviderConfig;
use ep_registry::{Buffer, Builder, Device, Request, Runtime, Stream};
use half::{bf16, f16};
use std::time::{SystemTime, UNIX_EPOCH};

/// A runtime of the CPU provider with options.
pub fn builder(options: &[(&str, &str)]) -> Builder {
    let mut settings = ProviderConfig::new("cpu", "");
    settings.options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Runtime::builder().threads(2).linked_with::<CpuProvider>(settings)
}

/// A runtime, its CPU and a stream.
pub struct Rig {
    pub runtime: Runtime,
    pub stream: Stream,
}

impl Rig {
    pub fn new() -> Rig {
        let runtime = builder(&[]).build().unwrap();
        let stream = runtime.device("cpu:0").unwrap().stream().unwrap();
        Rig { runtime, stream }
    }

    pub fn cpu(&self) -> &Device {
        self.runtime.device("cpu:0").unwrap()
    }

    /// A request with its selectors and dtypes.
    pub fn request(&self, op: &str, selectors: &[(&str, &str)], dtypes: &[(&str, DType)]) -> Request {
        let mut request = self.runtime.request(op).unwrap();
        for (name, value) in selectors {
            request = request.selector(name, value).unwrap();
        }
        for (role, dtype) in dtypes {
            request = request.dtype(role, &dtype.to_string()).unwrap();
        }
        request
    }

    pub fn upload(&self, dtype: DType, values: &[Num]) -> Buffer {
        self.upload_bytes(dtype, &encode_all(dtype, values))
    }

    pub fn upload_bytes(&self, dtype: DType, bytes: &[u8]) -> Buffer {
        if dtype == DType::BOOL {
            let bools: Vec<bool> = bytes.iter().map(|b| *b != 0).collect();
            return self.cpu().upload(&bools).unwrap();
        }
        self.cpu().upload(bytes).unwrap().reinterpret(dtype).unwrap()
    }

    /// What two launches, by types and by names, write to `count` elements. Each starts from other old content,
    /// of which the `GUARD` elements behind must be left; both must write the same.
    pub fn outputs(
        &self,
        dtype: DType,
        count: usize,
        typed: impl FnOnce(&mut Buffer) -> Result<()>,
        by_name: impl FnOnce(&mut Buffer) -> Result<()>,
    ) -> Vec<u8> {
        /// Elements behind the destination.
        const GUARD: usize = 3;
        let size = dtype.size().unwrap();
        let run = |old: u8, launch: &mut dyn FnMut(&mut Buffer) -> Result<()>| {
            let old = if dtype == DType::BOOL { old & 1 } else { old };
            let mut buffer = self.upload_bytes(dtype, &vec![old; (count + GUARD) * size]);
            launch(&mut buffer).unwrap();
            let bytes = bytes_of(buffer);
            assert!(bytes[count * size..].iter().all(|b| *b == old), "{dtype}: written behind the end");
            bytes[..count * size].to_vec()
        };
        let (mut typed, mut by_name) = (Some(typed), Some(by_name));
        let first = run(0xa5, &mut |buffer| typed.take().unwrap()(buffer));
        let second = run(0x5a, &mut |buffer| by_name.take().unwrap()(buffer));
        assert_eq!(first, second, "{dtype}: the launch by types and the one by names differ");
        first
    }
}

/// The content of a buffer.
pub fn bytes_of(buffer: Buffer) -> Vec<u8> {
    buffer.reinterpret(DType::U8).unwrap().download::<u8>().unwrap()
}

/// The value of an element, wide enough to compute with. Bool is an integer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Num {
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

impl Num {
    pub fn float(self) -> f64 {
        match self {
            Num::Int(i) => i as f64,
            Num::Float(f) | Num::Complex(f, _) => f,
        }
    }

    pub fn im(self) -> f64 {
        if let Num::Complex(_, im) = self { im } else { 0.0 }
    }

    pub fn is_zero(self) -> bool {
        self.float() == 0.0 && self.im() == 0.0
    }

    /// As a launch's argument.
    pub fn scalar(self) -> Scalar {
        match self {
            Num::Int(i) => u64::try_from(i).map_or(Scalar::I64(i as i64), Scalar::U64),
            Num::Float(f) => Scalar::F64(f),
            Num::Complex(re, im) => Scalar::Complex(re, im),
        }
    }
}

/// The bytes of an element: integers wrap, everything else is a conversion by `as` or `half`.
pub fn encode(dtype: DType, x: Num) -> Vec<u8> {
    macro_rules! int {
        ($t:ty) => {
            match x {
                Num::Int(i) => (i as $t).to_ne_bytes().to_vec(),
                other => (other.float() as $t).to_ne_bytes().to_vec(),
            }
        };
    }
    let f = x.float();
    match dtype {
        DType::BOOL => vec![u8::from(!x.is_zero())],
        DType::I8 => int!(i8),
        DType::U8 => int!(u8),
        DType::I16 => int!(i16),
        DType::U16 => int!(u16),
        DType::I32 => int!(i32),
        DType::U32 => int!(u32),
        DType::I64 => int!(i64),
        DType::U64 => int!(u64),
        DType::F16 => f16::from_f64(f).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(f).to_ne_bytes().to_vec(),
        DType::F32 => (f as f32).to_ne_bytes().to_vec(),
        DType::F64 => f.to_ne_bytes().to_vec(),
        DType::COMPLEX64 => [f as f32, x.im() as f32].map(f32::to_ne_bytes).concat(),
        DType::COMPLEX128 => [f, x.im()].map(f64::to_ne_bytes).concat(),
        other => panic!("{other}"),
    }
}

pub fn encode_all(dtype: DType, values: &[Num]) -> Vec<u8> {
    values.iter().flat_map(|x| encode(dtype, *x)).collect()
}

pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<Num> {
    macro_rules! each {
        ($t:ty, $x:ident => $value:expr) => {
            bytes
                .as_chunks::<{ size_of::<$t>() }>()
                .0
                .iter()
                .map(|b| {
                    let $x = <$t>::from_ne_bytes(*b);
                    $value
                })
                .collect()
        };
    }
    match dtype {
        DType::BOOL | DType::U8 => each!(u8, x => Num::Int(x.into())),
        DType::I8 => each!(i8, x => Num::Int(x.into())),
        DType::I16 => each!(i16, x => Num::Int(x.into())),
        DType::U16 => each!(u16, x => Num::Int(x.into())),
        DType::I32 => each!(i32, x => Num::Int(x.into())),
        DType::U32 => each!(u32, x => Num::Int(x.into())),
        DType::I64 => each!(i64, x => Num::Int(x.into())),
        DType::U64 => each!(u64, x => Num::Int(x.into())),
        DType::F16 => each!(f16, x => Num::Float(x.to_f64())),
        DType::BF16 => each!(bf16, x => Num::Float(x.to_f64())),
        DType::F32 => each!(f32, x => Num::Float(x.into())),
        DType::F64 => each!(f64, x => Num::Float(x)),
        DType::COMPLEX64 => pairs(&decode(DType::F32, bytes)),
        DType::COMPLEX128 => pairs(&decode(DType::F64, bytes)),
        other => panic!("{other}"),
    }
}

fn pairs(parts: &[Num]) -> Vec<Num> {
    parts.chunks(2).map(|p| Num::Complex(p[0].float(), p[1].float())).collect()
}

/// Checks elements against values that are rounded to the dtype first; NaN equals NaN. `tolerance` is relative
/// above 1 and absolute below.
pub fn check(what: &str, dtype: DType, got: &[u8], want: &[Num], tolerance: f64) {
    let got = decode(dtype, got);
    let want = decode(dtype, &encode_all(dtype, want));
    assert_eq!(got.len(), want.len(), "{what}");
    let near = |a: f64, b: f64| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * b.abs().max(1.0)
    };
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let same = match (g, w) {
            (Num::Int(g), Num::Int(w)) => g == w,
            _ => near(g.float(), w.float()) && near(g.im(), w.im()),
        };
        assert!(same, "{what}: element {i} is {g:?}, not {w:?}");
    }
}

/// Panics unless both have the same bits, but for NaNs: their signs are not promised. They may depend on what else is in the
/// vector, and vectors begin where the destination is aligned.
pub fn check_same(what: &str, dtype: DType, got: &[u8], want: &[u8]) {
    let (got, want) = (decode(dtype, got), decode(dtype, want));
    assert_eq!(got.len(), want.len(), "{what}");
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let same = match (g, w) {
            (Num::Int(g), Num::Int(w)) => g == w,
            _ => same(g.float(), w.float()) && same(g.im(), w.im()),
        };
        assert!(same, "{what}: element {i} is {g:?}, not {w:?}");
    }
}

/// A generator (SplitMix64) that prints its seed.
pub struct Random(u64);

impl Random {
    pub fn new() -> Random {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
        println!("seed {seed}");
        Random(seed)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    /// A small whole number of either sign.
    fn whole(&mut self) -> i128 {
        i128::from(self.below(19)) - 9
    }

    /// Small whole numbers that the dtype has.
    pub fn wholes(&mut self, dtype: DType, count: usize) -> Vec<Num> {
        let small = |r: &mut Random| {
            let x = r.whole();
            match dtype {
                d if d.is_complex() => Num::Complex(x as f64, r.whole() as f64),
                d if d.is_float() => Num::Float(x as f64),
                DType::BOOL => Num::Int(x & 1),
                _ => Num::Int(x),
            }
        };
        // Through the dtype and back: unsigned ones wrap.
        let values: Vec<_> = (0..count).map(|_| small(self)).collect();
        decode(dtype, &encode_all(dtype, &values))
    }

    /// Values that the dtype has exactly: quarters, and now and then an extreme one, an infinity or a NaN.
    pub fn values(&mut self, dtype: DType, count: usize) -> Vec<Num> {
        let mut values = self.wholes(dtype, count);
        let bits = dtype.bits().unwrap();
        for x in &mut values {
            let pick = self.below(8) as usize;
            *x = match *x {
                Num::Int(_) if dtype == DType::BOOL => continue,
                Num::Int(_) if pick == 0 => Num::Int(1 << (bits - 1)),
                Num::Int(i) => Num::Int(i),
                Num::Float(_) if pick < 4 => {
                    Num::Float([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0][pick])
                }
                Num::Float(f) => Num::Float(f / 4.0),
                Num::Complex(re, im) => Num::Complex(re / 4.0, im / 4.0),
            };
        }
        decode(dtype, &encode_all(dtype, &values))
    }
}
