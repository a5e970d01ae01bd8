//! The driver's results, and what they are here.

use ep_core::{Code, Error};
use std::fmt;

/// `CUresult`: a number, since newer drivers return ones that no list here has.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct CuResult(pub i32);

impl CuResult {
    /// It worked.
    pub const SUCCESS: CuResult = CuResult(0);
    /// No memory.
    pub const OUT_OF_MEMORY: CuResult = CuResult(2);
    /// The process is ending, and the driver with it.
    pub const DEINITIALIZED: CuResult = CuResult(4);
    /// Access to this peer has been enabled before.
    pub const PEER_ACCESS_ALREADY_ENABLED: CuResult = CuResult(704);
    /// A handle of no context, or none where one is needed.
    pub const INVALID_CONTEXT: CuResult = CuResult(201);
    /// A context that has ended while it was current.
    pub const CONTEXT_IS_DESTROYED: CuResult = CuResult(709);
    /// Not done yet.
    pub const NOT_READY: CuResult = CuResult(600);
    /// A graph that cannot take another's place.
    pub const GRAPH_EXEC_UPDATE_FAILURE: CuResult = CuResult(910);

    /// Whether no later call on the context works.
    pub fn is_sticky(self) -> bool {
        self.code() == Code::DeviceLost
    }

    /// What it is here.
    pub fn code(self) -> Code {
        match self.0 {
            2 => Code::OutOfMemory,
            // Of devices: lost ones, contexts that are gone, and processes that can only be started anew: those that an MPS
            // server has ended, or that waited for a device of another kind that failed.
            4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810 | 911 | 999 => {
                Code::DeviceLost
            }
            // Not initialized, no device, in use, a driver that does not fit the machine, or an MPS server that is not there or
            // takes no more clients.
            3 | 34 | 35 | 46 | 100 | 101 | 102 | 208 | 216 | 802..=809 => Code::Unavailable,
            // No code for this device, or an operation that it does not have.
            200 | 209 | 218 | 222 | 223 | 801 => Code::Unsupported,
            // Of graph capture.
            900..=908 => Code::InvalidArgument,
            // Anything else is a call that this provider must not make.
            _ => Code::Internal,
        }
    }

    /// What a person can do about it.
    fn advice(self) -> &'static str {
        match self.0 {
            3 | 100 | 802 | 803 => {
                "see whether `nvidia-smi` works, and whether CUDA_VISIBLE_DEVICES hides every device"
            }
            46 => "another process uses the device exclusively; wait, or choose another one",
            200 | 209 | 218 | 222 => {
                "the driver does not take code of this NVRTC; use an NVRTC of the driver's major version or older"
            }
            805..=809 => {
                "see whether the server of MPS runs for this user and how many clients it takes, or do without it: stop \
                 `nvidia-cuda-mps-control`"
            }
            900..=908 => "end the capture first, or leave the call out of it",
            _ => match self.code() {
                Code::DeviceLost => {
                    "the device's context is lost: destroy its objects and start the process anew; \
                     provider option `sync_launches = true` finds the launch"
                }
                Code::OutOfMemory => "free buffers, trim the allocator, or use a smaller size",
                Code::Internal => "report this",
                _ => "",
            },
        }
    }
}

/// A call of the driver that did not succeed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// The function.
    pub call: &'static str,
    /// What it returned.
    pub result: CuResult,
    /// The driver's name of that, or empty.
    pub name: &'static str,
    /// The driver's description of that, or empty.
    pub text: &'static str,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "an error without a name" } else { self.name };
        write!(f, "{}: {name} ({})", self.call, self.result.0)?;
        if self.text.is_empty() { Ok(()) } else { write!(f, ": {}", self.text) }
    }
}

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Failed> for Error {
    #[cold]
    fn from(failed: Failed) -> Error {
        let advice = failed.result.advice();
        let separator = if advice.is_empty() { "" } else { "; " };
        Error::new(failed.result.code(), format!("{failed}{separator}{advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_codes() {
        let of = |n| CuResult(n).code();
        assert_eq!(of(2), Code::OutOfMemory);
        for lost in [700, 702, 714, 715, 716, 717, 718, 719, 214, 220, 810, 911, 999] {
            assert_eq!(of(lost), Code::DeviceLost, "{lost}");
            assert!(CuResult(lost).is_sticky());
        }
        assert_eq!((of(100), of(46), of(803)), (Code::Unavailable, Code::Unavailable, Code::Unavailable));
        assert_eq!(
            (of(209), of(801), of(900), of(908)),
            (Code::Unsupported, Code::Unsupported, Code::InvalidArgument, Code::InvalidArgument)
        );
        for of_mps in 805..=809 {
            let error = Error::from(Failed { call: "cuInit", result: CuResult(of_mps), name: "", text: "" });
            assert!(error.code() == Code::Unavailable && error.message().contains("MPS"), "{error}");
        }
        // A wait that has a limit, which none here has, is no matter of captures.
        assert_eq!(of(909), Code::Internal);
        // What this version does not know, a newer driver's say, is no undefined behaviour but a number.
        assert_eq!(
            (of(1), of(400), of(123_456), of(-1)),
            (Code::Internal, Code::Internal, Code::Internal, Code::Internal)
        );
        assert!(!CuResult(2).is_sticky() && !CuResult(600).is_sticky());
    }

    #[test]
    fn messages_name_the_call_and_the_drivers_word() {
        let failed = Failed {
            call: "cuMemAlloc",
            result: CuResult(2),
            name: "CUDA_ERROR_OUT_OF_MEMORY",
            text: "out of memory",
        };
        let error = Error::from(failed);
        assert_eq!(error.code(), Code::OutOfMemory);
        assert!(
            error.message().starts_with("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; free"),
            "{error}"
        );
        let unknown = Error::from(Failed { call: "cuInit", result: CuResult(5555), name: "", text: "" });
        assert_eq!(unknown.message(), "cuInit: an error without a name (5555); report this");
    }
}
