//! Errors: a code that programs branch on, and a message that people act on.
//!
//! Every message says what was asked, what was found, and what to do. `docs/errors.md` lists each code
//! with its usual causes.

use std::fmt;

/// The result of everything fallible here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in a form to branch on. Crosses the ABI as an `i32`; unknown numbers read as
/// [`Code::Internal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Code {
    /// The caller passed something that can never work: a negative size, a wrong device, a small buffer.
    InvalidArgument = 1,
    /// The named thing does not exist: a file, a device, an op.
    NotFound = 2,
    /// Valid, but this provider or version does not do it.
    Unsupported = 3,
    /// It exists but cannot be used now: no driver, a forked child, a device in use.
    Unavailable = 4,
    /// No memory of the kind asked for is left.
    OutOfMemory = 5,
    /// The device failed for good; its objects can only be destroyed.
    DeviceLost = 6,
    /// A defect in a provider or in this library.
    Internal = 7,
    /// Code behind the boundary panicked; the panic was caught.
    Panic = 8,
    /// Host and plugin disagree about the binary contract.
    AbiMismatch = 9,
    /// Not loaded because it is not trusted.
    Refused = 10,
}

impl Code {
    /// Every code, in numeric order.
    pub const ALL: [Code; 10] = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::Unsupported,
        Code::Unavailable,
        Code::OutOfMemory,
        Code::DeviceLost,
        Code::Internal,
        Code::Panic,
        Code::AbiMismatch,
        Code::Refused,
    ];

    /// The code for a number that came over the ABI.
    pub fn from_raw(raw: i32) -> Code {
        Self::ALL.into_iter().find(|c| *c as i32 == raw).unwrap_or(Code::Internal)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A [`Code`] and a message.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: Code,
    message: Box<str>,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

macro_rules! constructors {
    ($($name:ident => $code:ident;)*) => {
        impl Error {
            $(
                #[doc = concat!("An error with [`Code::", stringify!($code), "`].")]
                #[cold]
                pub fn $name(message: impl Into<String>) -> Error {
                    Error::new(Code::$code, message)
                }
            )*
        }
    };
}

constructors! {
    invalid => InvalidArgument;
    not_found => NotFound;
    unsupported => Unsupported;
    unavailable => Unavailable;
    out_of_memory => OutOfMemory;
    device_lost => DeviceLost;
    internal => Internal;
    panic => Panic;
    abi => AbiMismatch;
    refused => Refused;
}

impl Error {
    /// An error with any code.
    #[cold]
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into().into() }
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same error with `context: ` in front of its message.
    #[must_use]
    #[cold]
    pub fn context(self, context: impl fmt::Display) -> Error {
        Error { code: self.code, message: format!("{context}: {}", self.message).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_unknown_is_internal() {
        for code in Code::ALL {
            assert_eq!(Code::from_raw(code as i32), code);
        }
        assert_eq!(Code::from_raw(0), Code::Internal);
        assert_eq!(Code::from_raw(-7), Code::Internal);
    }
}
