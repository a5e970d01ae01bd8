//! Operators on the CPU provider and on the simulated accelerator, against plain loops on the host.

mod elementwise;
mod errors;
mod gather;
mod in_place;
mod matmul;
mod movement;
mod norm;
mod order;
mod reduce;
mod rows;
mod sbp;
mod support;
