//! Packed operands, so that a host can try them without hardware that gains by it.

/// Whether an operand has a packed form: the `b` of `matmul`.
pub(crate) fn is_packed(op: &str, operand: &str) -> bool {
    op == "matmul" && operand == "b"
}

/// The packed form of some bytes, and these of the form: inverted, the last one first, so that nobody takes one for the other.
pub(crate) fn turned(bytes: Vec<u8>) -> Vec<u8> {
    bytes.into_iter().rev().map(|b| !b).collect()
}
