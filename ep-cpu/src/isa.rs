//! Instruction-set levels: finding out what this CPU has, and running one loop at the level chosen.
//!
//! Kernels are plain loops. [`Isa::dispatch`] compiles a loop once per level inside a function with that
//! level's features, so that the compiler vectorises it for each. Rust never fuses a multiplication with
//! an addition unasked, so a loop gives the same bits at every level unless it asks for the level.

use ep_core::{Error, Result};
use std::fmt;
use std::str::FromStr;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The environment variable that forces a level: `baseline`, `avx2`, `avx512` or `amx`.
pub const ISA_ENV: &str = "EP_CPU_ISA";

/// The levels, each containing the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// What the build target guarantees (SSE2 on x86-64).
    Baseline,
    /// AVX2, FMA, F16C, BMI1, BMI2, LZCNT, POPCNT.
    Avx2,
    /// Avx2 and AVX-512 F, BW, DQ, VL, CD. Matrix products of bf16 use AVX-512 BF16 too, where the CPU has it.
    Avx512,
    /// Avx512 and AMX tiles with bf16, which the operating system offers.
    Amx,
}

impl Level {
    /// Every level, lowest first.
    pub const ALL: [Level; 4] = [Level::Baseline, Level::Avx2, Level::Avx512, Level::Amx];

    /// The name used in [`ISA_ENV`].
    pub const fn name(self) -> &'static str {
        match self {
            Level::Baseline => "baseline",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Amx => "amx",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(word: &str) -> Result<Level> {
        Level::ALL.into_iter().find(|l| l.name() == word).ok_or_else(|| {
            Error::invalid(format!(
                "unknown instruction set `{word}`; use one of baseline, avx2, avx512, amx"
            ))
        })
    }
}

/// A level that this CPU is known to have: a value is the proof that lets [`Isa::dispatch`] be safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Isa(Level);

/// A computation to be compiled once per level.
///
/// [`Body::run`] and all that it calls must be `#[inline(always)]` to be compiled for the level:
/// a function that stays out of line keeps the baseline's features.
pub trait Body {
    /// What the computation returns.
    type Out;

    /// The computation.
    fn run(self) -> Self::Out;
}

impl Isa {
    /// The level that needs nothing.
    pub const BASELINE: Isa = Isa(Level::Baseline);

    /// The best level of this CPU, or the one that [`ISA_ENV`] asks for.
    ///
    /// # Errors
    /// `InvalidArgument` when the variable holds an unknown word, `Unavailable` when this CPU lacks
    /// the level it names.
    pub fn detect() -> Result<Isa> {
        match std::env::var_os(ISA_ENV).filter(|word| !word.is_empty()) {
            None => Ok(Isa(best())),
            Some(word) => Self::from_word(&word.to_string_lossy()),
        }
    }

    fn from_word(word: &str) -> Result<Isa> {
        let hint = |e: Error| e.context(format_args!("{ISA_ENV}={word} (change or unset it)"));
        word.parse().and_then(Isa::new).map_err(hint)
    }

    /// The proof that this CPU has `level`.
    ///
    /// # Errors
    /// `Unavailable` when it does not.
    pub fn new(level: Level) -> Result<Isa> {
        let best = best();
        if level <= best {
            return Ok(Isa(level));
        }
        Err(Error::unavailable(format!(
            "instruction set {level} was asked for, but this CPU and system offer {best} at most"
        )))
    }

    /// Every level of this CPU, lowest first.
    pub fn available() -> Vec<Isa> {
        let best = best();
        Level::ALL.into_iter().filter(|&l| l <= best).map(Isa).collect()
    }

    /// The level.
    pub const fn level(self) -> Level {
        self.0
    }

    /// The level for loops that wait for memory more than they compute. AMD's Zen 4 has AVX-512 of which a core does half a vector at a
    /// time, and reads and writes what first-level cache does not hold the faster by vectors of 32 bytes: adding a million f32 takes 0.92 of
    /// the time, and 0.8 is the least that was seen.
    #[inline(always)]
    pub(crate) fn for_memory(self) -> Isa {
        if self.0 >= Level::Avx512 && halves_vectors() { Isa(Level::Avx2) } else { self }
    }

    /// Runs `body` compiled for this level. AMX has no code generation of its own: it runs as AVX-512.
    #[inline]
    pub fn dispatch<B: Body>(self, body: B) -> B::Out {
        #[cfg(target_arch = "x86_64")]
        match self.0 {
            Level::Baseline => body.run(),
            // SAFETY: an `Isa` of this level exists only if `best` found each of the features.
            Level::Avx2 => unsafe { x86::run_avx2(body) },
            // SAFETY: as above.
            Level::Avx512 | Level::Amx => unsafe { x86::run_avx512(body) },
        }
        #[cfg(not(target_arch = "x86_64"))]
        body.run()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Parsing checks that this CPU has the level.
impl FromStr for Isa {
    type Err = Error;

    fn from_str(word: &str) -> Result<Isa> {
        word.parse().and_then(Isa::new)
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best() -> Level {
    Level::Baseline
}

#[cfg(target_arch = "x86_64")]
fn best() -> Level {
    use std::sync::OnceLock;
    // Asking for AMX is a system call, and the answer cannot change.
    static BEST: OnceLock<Level> = OnceLock::new();
    *BEST.get_or_init(|| {
        let best = x86::best();
        let by_amd = best >= Level::Avx512 && is_made_by(b"AuthenticAMD");
        SUBNORMALS.store(if by_amd { FAST } else { SLOW }, Ordering::Relaxed);
        HALVES.store(by_amd && x86::family() == ZEN_4, Ordering::Relaxed);
        best
    })
}

/// Nothing until a level is known, then [`SLOW`] or [`FAST`].
#[cfg(target_arch = "x86_64")]
static SUBNORMALS: AtomicU8 = AtomicU8::new(0);
#[cfg(target_arch = "x86_64")]
const SLOW: u8 = 1;
#[cfg(target_arch = "x86_64")]
const FAST: u8 = 2;

/// Whether a level is known and [`halves_vectors`].
#[cfg(target_arch = "x86_64")]
static HALVES: AtomicBool = AtomicBool::new(false);
/// The family of Zen 3 and 4, of which only the latter has AVX-512. Others were not measured.
#[cfg(target_arch = "x86_64")]
const ZEN_4: u32 = 0x19;

/// Whether vectors of AVX-512 are done in halves.
#[inline(always)]
fn halves_vectors() -> bool {
    #[cfg(test)]
    if let Some(forced) = HALVES_FORCED.get() {
        return forced;
    }
    #[cfg(target_arch = "x86_64")]
    return HALVES.load(Ordering::Relaxed);
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
thread_local! {
    /// What this thread takes [`halves_vectors`] to be.
    pub(crate) static HALVES_FORCED: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{align_frame, run_avx2, run_avx512};

/// Whether Intel made this CPU: memory past the caches is best walked differently there.
pub(crate) fn is_intel() -> bool {
    is_made_by(b"GenuineIntel")
}

/// Whether this CPU is one of x86 that names this maker.
fn is_made_by(maker: &[u8; 12]) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let id = std::arch::x86_64::__cpuid(0);
        [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).as_flattened() == maker
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = maker;
        false
    }
}

/// Whether numbers that are less than normal take no longer than others: on AMD's CPUs with AVX-512 (measured on Zen 4). On Intel's they take
/// a hundred times as long.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn subnormals_are_fast() -> bool {
    #[cfg(test)]
    if let Some(forced) = SUBNORMALS_FORCED.get() {
        return forced;
    }
    SUBNORMALS.load(Ordering::Relaxed) == FAST
}

/// The same, by a call if it is not known. In a kernel it is; but compilers that have to reckon with a call leave the constants of a
/// loop in memory. Where more of them are used than there are registers, a core of AMD's Zen 4 takes 0.5 to 0.6 of the time so, and one of
/// Intel's Sapphire Rapids 0.95 to 0.98.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn subnormals_are_fast_or_ask() -> bool {
    if SUBNORMALS.load(Ordering::Relaxed) == 0 {
        ask();
    }
    subnormals_are_fast()
}

#[cfg(target_arch = "x86_64")]
#[cold]
#[inline(never)]
fn ask() {
    best();
}

#[cfg(test)]
thread_local! {
    /// What this thread takes [`subnormals_are_fast`] to be, so that tests see what other CPUs do.
    pub(crate) static SUBNORMALS_FORCED: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

/// Bytes of the last-level cache, the third or later, as Intel's CPUs tell.
pub(crate) fn last_cache_bytes() -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const CACHES: u32 = 4;
        if !is_intel() || __cpuid(0).eax < CACHES {
            return None;
        }
        // One after the other, until there are no more: the type in the low five bits, then the level in three. Ways, partitions,
        // bytes of a line, and sets are each one less.
        let caches = (0..16).map(|i| __cpuid_count(CACHES, i)).take_while(|cache| cache.eax & 0x1f != 0);
        let last = caches.filter(|cache| cache.eax >> 5 & 7 >= 3);
        let bytes = last.map(|cache| {
            let field = |from: u32, bits: u32| ((cache.ebx >> from) & ((1 << bits) - 1)) as usize + 1;
            let ways = field(22, 10) * field(12, 10) * field(0, 12);
            ways.saturating_mul(cache.ecx as usize + 1)
        });
        bytes.max()
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Whether this process may use AMX tiles; the first call asks the system for the permission.
///
/// It is asked for as late as this because it enlarges the signal frames of the whole process, the host's.
#[cfg(target_arch = "x86_64")]
pub(crate) fn tiles_permitted() -> bool {
    use std::sync::OnceLock;
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(x86::ask_for_tiles)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Body, Level};
    use std::arch::asm;
    use std::mem::MaybeUninit;

    macro_rules! has {
        ($($feature:tt)*) => { true $(&& is_x86_feature_detected!($feature))* };
    }

    pub(super) fn best() -> Level {
        if !has!("avx2" "fma" "f16c" "bmi1" "bmi2" "lzcnt" "popcnt") {
            Level::Baseline
        } else if !has!("avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512cd") {
            Level::Avx2
        } else if !(cpu_has_amx() && system_offers_amx()) {
            Level::Avx512
        } else {
            Level::Amx
        }
    }

    /// The CPU's family, as its maker counts.
    pub(super) fn family() -> u32 {
        const EXTENDED: u32 = 15;
        let id = std::arch::x86_64::__cpuid(1).eax;
        match id >> 8 & 15 {
            EXTENDED => EXTENDED + (id >> 20 & 255),
            family => family,
        }
    }

    fn cpu_has_amx() -> bool {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const AMX_BF16: u32 = 1 << 22;
        const AMX_TILE: u32 = 1 << 24;
        const WANTED: u32 = AMX_BF16 | AMX_TILE;
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & WANTED == WANTED
    }

    /// Asks whether tiles can be used, but not for permission to use them.
    #[cfg(target_os = "linux")]
    fn system_offers_amx() -> bool {
        // From the kernel's asm/prctl.h and asm/fpu/types.h; the libc crate has neither.
        const ARCH_GET_XCOMP_SUPP: libc::c_long = 0x1021;
        const XFEATURE_MASK_XTILE: u64 = 0b11 << 17;
        let mut offered = 0u64;
        // SAFETY: this request writes eight bytes to an address of ours; a kernel without it returns an error.
        let asked = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &raw mut offered) };
        asked == 0 && offered & XFEATURE_MASK_XTILE == XFEATURE_MASK_XTILE
    }

    /// Threads inherit the permission, those that exist already included. Refused where a thread's signal stack is too
    /// small for the larger frames.
    #[cfg(target_os = "linux")]
    pub(super) fn ask_for_tiles() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: this request takes a number and touches no memory of ours; a kernel without it returns an error.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn system_offers_amx() -> bool {
        false
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn ask_for_tiles() -> bool {
        false
    }

    /// Lets the frame of the function that this is part of begin at a line. Vectors for which registers are missing are kept in frames,
    /// and compilers align these to 16 bytes only: where such a vector spans two lines, a loop takes up to 1.6 times as long on Zen 4.
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "what is there does not matter, but where it is")]
    #[inline(always)]
    pub(crate) fn align_frame() {
        #[repr(align(64))]
        struct Line([MaybeUninit<u8>; 64]);
        let line = Line([MaybeUninit::uninit(); 64]);
        // SAFETY: a comment, which reads and writes nothing.
        unsafe { asm!("/* {0} */", in(reg) &raw const line.0, options(nomem, nostack, preserves_flags)) };
    }

    /// Runs `body` compiled for [`Level::Avx2`]; safe to call where the CPU has that.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) fn run_avx2<B: Body>(body: B) -> B::Out {
        align_frame();
        body.run()
    }

    /// Runs `body` compiled for [`Level::Avx512`]; safe to call where the CPU has that.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd")]
    pub(crate) fn run_avx512<B: Body>(body: B) -> B::Out {
        align_frame();
        body.run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;

    /// The numbers of the CPU are those that the system tells, where it does.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_last_cache_is_the_largest_that_the_system_tells() {
        let Some(bytes) = last_cache_bytes() else { return println!("skipped: this CPU does not tell") };
        let size = |i| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{i}/size"));
        let told =
            (0..16).filter_map(|i| size(i).ok()?.trim().strip_suffix('K')?.parse::<usize>().ok()).max();
        assert!(told.is_none_or(|told| told << 10 == bytes), "{bytes} bytes, and {told:?} KiB");
    }

    #[test]
    fn levels_are_ordered_named_and_checked() {
        let all = Isa::available();
        assert_eq!(all[0], Isa::BASELINE);
        assert!(all.is_sorted());
        for level in Level::ALL {
            assert_eq!(level.name().parse::<Level>().unwrap(), level);
            let held = all.iter().any(|i| i.level() == level);
            match Isa::from_word(level.name()) {
                Ok(isa) => assert!(held && isa.to_string() == level.name()),
                Err(e) => {
                    assert!(!held);
                    assert_eq!(e.code(), Code::Unavailable);
                    assert!(e.message().contains(ISA_ENV) && e.message().contains(level.name()), "{e}");
                }
            }
        }
        let e = Isa::from_word("sse9").unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
        assert!(e.message().contains("sse9") && e.message().contains("avx512"), "{e}");
    }

    #[test]
    fn vectors_that_are_done_in_halves_are_not_for_memory() {
        for forced in [false, true] {
            HALVES_FORCED.set(Some(forced));
            for isa in Isa::available() {
                let want = if forced { isa.level().min(Level::Avx2) } else { isa.level() };
                assert_eq!(isa.for_memory().level(), want, "{isa}");
            }
        }
        HALVES_FORCED.set(None);
        assert!(!is_intel() || Isa::available().iter().all(|isa| isa.for_memory() == *isa));
    }

    struct Dot<'a>(&'a [u32], &'a [u32]);

    impl Body for Dot<'_> {
        type Out = u32;

        #[inline(always)]
        fn run(self) -> u32 {
            self.0.iter().zip(self.1).fold(0, |s, (a, b)| s.wrapping_add(a.wrapping_mul(*b)))
        }
    }

    #[test]
    fn every_level_computes_the_same() {
        let a: Vec<u32> = (0..1003u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let b: Vec<u32> = a.iter().rev().copied().collect();
        let want = Dot(&a, &b).run();
        for isa in Isa::available() {
            assert_eq!(isa.dispatch(Dot(&a, &b)), want, "{isa}");
        }
    }
}
