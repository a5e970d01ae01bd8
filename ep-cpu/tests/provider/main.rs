//! The CPU provider through a host: every primitive by its types and by names, against plain formulas.
//! The kernels' own tests say how exact they are; these say that requests reach the right one.

mod device;
mod elementwise;
mod errors;
mod indexed;
mod makers;
mod matrices;
mod movement;
mod support;
