//! Placeholder.

pub mod config;
pub mod discovery;
mod document;
pub mod elf_check;
mod elf_image;
pub mod manifest;
mod platform;
pub mod pool;
pub mod trust;
