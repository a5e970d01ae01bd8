//! Reads safetensors files: eight bytes with the length of a JSON header, the header, the data.
//!
//! Nothing in a file is believed: every length, offset and shape is checked before it is used.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// The largest header that is read, as in the format's own library.
const MAX_HEADER: u64 = 100_000_000;

/// What is wrong with a file, without its name.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem(String);

impl Problem {
    /// A problem that a reader of the tensors found; follows the file's name in a message.
    pub fn new(text: impl Into<String>) -> Problem {
        Problem(text.into())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn problem<T>(text: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::new(text))
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// A number that is stored in little-endian order.
pub trait Number: Sized {
    /// The format's name of the dtype.
    const NAME: &'static str;
    /// Bytes of one.
    const SIZE: usize;
    /// Reads one from [`Number::SIZE`] bytes.
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($t:ty => $name:literal),*) => {
        $(impl Number for $t {
            const NAME: &'static str = $name;
            const SIZE: usize = size_of::<$t>();
            fn read(bytes: &[u8]) -> $t {
                <$t>::from_le_bytes(bytes.try_into().expect("the caller cuts SIZE bytes"))
            }
        })*
    };
}
numbers!(f32 => "F32", i64 => "I64", u8 => "U8");

/// The tensors of a file.
pub struct Tensors<'a> {
    entries: BTreeMap<String, Entry>,
    data: &'a [u8],
}

impl<'a> Tensors<'a> {
    /// Reads the header and checks that every tensor lies inside the file.
    pub fn parse(file: &'a [u8]) -> Result<Tensors<'a>, Problem> {
        let Some((length, rest)) = file.split_first_chunk::<8>() else {
            return problem(format!("is {} bytes long; a safetensors file has at least 8", file.len()));
        };
        let length = u64::from_le_bytes(*length);
        if length > MAX_HEADER || length > rest.len() as u64 {
            return problem(format!(
                "says that its header has {length} bytes, and {} follow; it is no safetensors file, or was cut",
                rest.len()
            ));
        }
        let (header, data) = rest.split_at(length as usize);
        let raw: BTreeMap<String, serde_json::Value> = match serde_json::from_slice(header) {
            Ok(raw) => raw,
            Err(e) => return problem(format!("has a header that is no JSON object: {e}")),
        };
        let mut entries = BTreeMap::new();
        for (name, value) in raw {
            if name == "__metadata__" {
                continue;
            }
            let entry = match Entry::deserialize(value) {
                Ok(entry) => entry,
                Err(e) => return problem(format!("describes tensor `{name}` wrongly: {e}")),
            };
            let [begin, end] = entry.data_offsets;
            if begin > end || end > data.len() as u64 {
                return problem(format!("puts tensor `{name}` at bytes {begin}..{end} of {}", data.len()));
            }
            entries.insert(name, entry);
        }
        Ok(Tensors { entries, data })
    }

    /// A tensor of rank `N`: its shape and its elements.
    pub fn get<T: Number, const N: usize>(&self, name: &str) -> Result<([usize; N], Vec<T>), Problem> {
        let Some(entry) = self.entries.get(name) else {
            let names: Vec<_> = self.entries.keys().map(String::as_str).collect();
            return problem(format!("has no tensor `{name}`; it has {}", names.join(", ")));
        };
        if entry.dtype != T::NAME || entry.shape.len() != N {
            return problem(format!(
                "holds `{name}` as {} {:?}; needed is {} of rank {N}",
                entry.dtype,
                entry.shape,
                T::NAME
            ));
        }
        let bytes = entry.shape.iter().try_fold(T::SIZE as u64, |n, d| n.checked_mul(*d));
        let [begin, end] = entry.data_offsets;
        if bytes != Some(end - begin) {
            return problem(format!(
                "holds `{name}` as {} {:?} in {} bytes, which do not fit together",
                entry.dtype,
                entry.shape,
                end - begin
            ));
        }
        // All sizes are at most the length of `data` from here on, or belong to an empty tensor.
        let mut shape = [0; N];
        for (to, from) in shape.iter_mut().zip(&entry.shape) {
            let Ok(size) = usize::try_from(*from) else {
                return problem(format!("holds `{name}` with the impossible shape {:?}", entry.shape));
            };
            *to = size;
        }
        let bytes = &self.data[begin as usize..end as usize];
        Ok((shape, bytes.chunks_exact(T::SIZE).map(T::read).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    }

    fn whole() -> Vec<u8> {
        let header = r#"{"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,1],"data_offsets":[1,9]}}"#;
        let mut data = vec![7];
        data.extend((-1.5f32).to_le_bytes());
        data.extend(f32::NEG_INFINITY.to_le_bytes());
        file(header, &data)
    }

    fn error<T>(result: Result<T, Problem>) -> String {
        result.err().expect("must fail").to_string()
    }

    #[test]
    fn a_good_file() {
        let bytes = whole();
        let tensors = Tensors::parse(&bytes).unwrap();
        assert_eq!(tensors.get::<f32, 2>("x"), Ok(([2, 1], vec![-1.5, f32::NEG_INFINITY])));
        assert!(error(tensors.get::<f32, 2>("y")).contains("no tensor `y`; it has x"));
        assert!(error(tensors.get::<i64, 2>("x")).contains("needed is I64"));
        assert!(error(tensors.get::<f32, 1>("x")).contains("rank 1"));
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error() {
        let bytes = whole();
        for length in 0..bytes.len() {
            assert!(Tensors::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn no_changed_byte_panics() {
        let bytes = whole();
        for at in 0..bytes.len() {
            for value in [0, 1, b'0', b'9', b'-', b'"', b'{', 0x7f, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                if let Ok(tensors) = Tensors::parse(&bytes) {
                    let read = tensors.get::<f32, 2>("x");
                    assert!(read.is_err() || read.is_ok_and(|(shape, x)| shape[0] * shape[1] == x.len()));
                }
            }
        }
    }

    #[test]
    fn hostile_headers() {
        let cases = [
            (r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}}"#, "bytes 0..16 of 8"),
            (r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, "bytes 8..0 of 8"),
            (r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[-1,8]}}"#, "`x` wrongly"),
            (r#"{"x":{"dtype":"F32","shape":[2]}}"#, "`x` wrongly"),
            (r#"{"x":{"dtype":"F32","shape":"big","data_offsets":[0,8]}}"#, "`x` wrongly"),
            (r#"{"x":3}"#, "`x` wrongly"),
            ("[1]", "no JSON object"),
            ("{", "no JSON object"),
        ];
        for (header, expected) in cases {
            let text = error(Tensors::parse(&file(header, &[0; 8])));
            assert!(text.contains(expected), "{header}: {text}");
        }
        // 2^62 * 4 elements wrap to 0 bytes if nobody watches.
        let big = format!(r#"{{"x":{{"dtype":"F32","shape":[{},4],"data_offsets":[0,0]}}}}"#, 1u64 << 62);
        let bytes = file(&big, &[]);
        assert!(error(Tensors::parse(&bytes).unwrap().get::<f32, 2>("x")).contains("do not fit together"));
        let deep = "[".repeat(1 << 20);
        assert!(error(Tensors::parse(&file(&deep, &[]))).contains("no JSON object"));
        let lying = [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat();
        assert!(error(Tensors::parse(&lying)).contains("18446744073709551615"));
    }
}
