//! What the benchmarks share: the table of [rows](row::Row), the [limits](limit) of the machine that they are
//! measured against, and timing.
//!
//! `ep-rows` (`ep bench --device`) times the rows on one device. `ep-compare`, in `benches/compare`, times the same
//! rows on the CPU in turns with other libraries.

pub mod content;
pub mod gate;
pub mod limit;
pub mod ours;
pub mod page;
pub mod row;
pub mod samples;
pub mod shares;
pub mod table;
