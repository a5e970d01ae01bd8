//! The device-independent halves of primitives: what can be decided about a launch from its sizes alone,
//! and a slow reference of each primitive to test against.

pub mod broadcast;
pub mod fast_div;
pub mod nd_index;
pub mod permute;
pub mod reference;
