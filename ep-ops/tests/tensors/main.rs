//! Tensors, views, copies and fallback orders, on a CPU and on a device that works later and out of the host's reach.

mod copies;
mod create;
mod fallback;
mod log;
mod memory;
mod model;
mod under;
mod views;
