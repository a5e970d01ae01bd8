//! The contract of each primitive, clause by clause: `ep-core/abi/ops/*.toml` and `ep-core/abi/contract.toml` name
//! these tests.

mod elementwise;
mod launch;
mod matrices;
mod movers;
mod ops;
mod places;
mod rows;
mod shapes;
