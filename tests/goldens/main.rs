//! Golden results, made by other programs (`make.py`), against the references and against the CPU's kernels.

mod compare;
mod counts;
mod provider;
mod reader;
mod reference;
