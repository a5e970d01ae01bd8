//! Attributes as JSON has them.

use ep_core::primitive::{ArgReduceOp, BinaryOp, IndexMode, ReduceOp, UnaryOp};
use ep_core::{DType, Scalar};
use ep_ops::MemoryFormat;
use ep_ops::operators::Window;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// A dtype by its name.
#[derive(Clone, Copy)]
pub(super) struct Dtype(pub(super) DType);

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Dtype, D::Error> {
        let name = String::deserialize(from)?;
        DType::by_name(&name).map(Dtype).map_err(|e| D::Error::custom(e.message()))
    }
}

/// A value of an enum by its name.
#[derive(Clone, Copy)]
pub(super) struct Choice<T>(pub(super) T);

/// An enum whose values have names.
pub(super) trait Enum: Sized {
    const NAMES: &'static [&'static str];
    fn at(index: u32) -> Self;
}

macro_rules! enums {
    ($($name:ident)*) => {
        $(impl Enum for $name {
            const NAMES: &'static [&'static str] = $name::NAMES;
            fn at(index: u32) -> $name {
                $name(index)
            }
        })*
    };
}

enums!(ArgReduceOp BinaryOp IndexMode ReduceOp UnaryOp);

impl<'de, T: Enum> Deserialize<'de> for Choice<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Choice<T>, D::Error> {
        let name = String::deserialize(from)?;
        match T::NAMES.iter().position(|known| *known == name) {
            Some(index) => Ok(Choice(T::at(index as u32))),
            None => Err(D::Error::custom(format!("`{name}` is none of {}", T::NAMES.join(", ")))),
        }
    }
}

/// A number: of JSON, `true` or `false`, a text for what JSON has no number for (`"nan"`, `"inf"`, `"-inf"`), or the two parts of a complex one.
#[derive(Clone, Copy, Default)]
pub(super) struct Number(pub(super) Scalar);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Number, D::Error> {
        use serde_json::Value;
        let value = Value::deserialize(from)?;
        let float = |value: &Value| match value {
            Value::Number(n) => n.as_f64(),
            Value::String(text) => match text.as_str() {
                "nan" => Some(f64::NAN),
                "inf" => Some(f64::INFINITY),
                "-inf" => Some(f64::NEG_INFINITY),
                _ => None,
            },
            _ => None,
        };
        let scalar = match &value {
            Value::Bool(b) => Some(Scalar::Bool(*b)),
            Value::Number(n) if n.is_i64() => n.as_i64().map(Scalar::I64),
            Value::Number(n) if n.is_u64() => n.as_u64().map(Scalar::U64),
            Value::Array(parts) => match &parts[..] {
                [re, im] => float(re).zip(float(im)).map(|(re, im)| Scalar::Complex(re, im)),
                _ => None,
            },
            other => float(other).map(Scalar::F64),
        };
        scalar.map(Number).ok_or_else(|| {
            D::Error::custom(format!(
                "{value} is no number, true, false, \"nan\", \"inf\", \"-inf\" or list of two parts"
            ))
        })
    }
}

/// A part of an axis; an object, as all that has names.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "serde_json::Map<String, serde_json::Value>")]
pub(super) struct Part {
    offset: i64,
    size: i64,
}

impl TryFrom<serde_json::Map<String, serde_json::Value>> for Part {
    type Error = String;

    fn try_from(map: serde_json::Map<String, serde_json::Value>) -> Result<Part, String> {
        let number = |name: &str| {
            let value = map.get(name).and_then(serde_json::Value::as_i64);
            value.ok_or_else(|| {
                format!("a window is an object with the integers `offset` and `size`; `{name}` is missing")
            })
        };
        let part = Part { offset: number("offset")?, size: number("size")? };
        if map.len() == 2 {
            Ok(part)
        } else {
            Err("a window has `offset` and `size`, and nothing else".to_owned())
        }
    }
}

impl From<Part> for Window {
    fn from(part: Part) -> Window {
        Window { offset: part.offset, size: part.size }
    }
}

/// A memory format by its name.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Format {
    #[default]
    Contiguous,
    ChannelsLast,
    #[serde(rename = "channels_last_3d")]
    ChannelsLast3d,
    Preserve,
}

impl From<Format> for MemoryFormat {
    fn from(format: Format) -> MemoryFormat {
        match format {
            Format::Contiguous => MemoryFormat::Contiguous,
            Format::ChannelsLast => MemoryFormat::ChannelsLast,
            Format::ChannelsLast3d => MemoryFormat::ChannelsLast3d,
            Format::Preserve => MemoryFormat::Preserve,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_of_all_kinds() {
        let of = |json: &str| serde_json::from_str::<Number>(json).map(|n| n.0);
        assert_eq!(of("true").unwrap(), Scalar::Bool(true));
        assert_eq!(of("-3").unwrap(), Scalar::I64(-3));
        assert_eq!(of("18446744073709551615").unwrap(), Scalar::U64(u64::MAX));
        assert_eq!(of("0.5").unwrap(), Scalar::F64(0.5));
        assert_eq!(of("\"-inf\"").unwrap(), Scalar::F64(f64::NEG_INFINITY));
        assert!(matches!(of("\"nan\"").unwrap(), Scalar::F64(x) if x.is_nan()));
        assert_eq!(of("[1, \"inf\"]").unwrap(), Scalar::Complex(1.0, f64::INFINITY));
        for wrong in ["null", "\"1\"", "[1]", "[1, 2, 3]", "{}", "[[1], 2]"] {
            assert!(of(wrong).unwrap_err().to_string().contains("is no number"), "{wrong}");
        }
    }
}
