//! Hosts on simulated devices: every kind of object, every fault, every op.

mod faults;
mod graph;
mod memory;
mod objects;
mod ops;
mod rig;
