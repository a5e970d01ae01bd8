//! `softmax`, `log_softmax` and their gradients: which kernel a row's width gets, and its launch.

mod limits;

pub use limits::Widest;

use super::nd::between;
use super::recent::Recent;
use super::rows::{Holding, Sharing, block_for_each, cheapest};
use super::source::{SOFTMAX, SOFTMAX_BACKWARD, SOFTMAX_STRIDED, SOFTMAX_WIDE};
use crate::compiler::{Arch, Source, Spec};
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry, Lazy, Loader};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::Op;
use ep_core::primitive::{
    LogSoftmax, LogSoftmaxArgs, LogSoftmaxBackward, LogSoftmaxBackwardArgs, LogSoftmaxBackwardDesc,
    LogSoftmaxDesc, Softmax, SoftmaxArgs, SoftmaxBackward, SoftmaxBackwardArgs, SoftmaxBackwardDesc,
    SoftmaxDesc,
};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result};
use std::fmt;
use std::str::FromStr;

/// Who shares a row, and where its values are between the passes over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// A warp or a part of one, in registers.
    Warp,
    /// A block, in registers.
    Block,
    /// A cluster of blocks, in registers.
    Cluster,
    /// A block, in shared memory.
    Shared,
    /// A block, which reads the row twice.
    Wide,
}

const STRATEGIES: [(&str, Strategy); 5] = [
    ("warp", Strategy::Warp),
    ("block", Strategy::Block),
    ("cluster", Strategy::Cluster),
    ("shared", Strategy::Shared),
    ("wide", Strategy::Wide),
];

impl Strategy {
    /// All.
    pub const ALL: [Strategy; STRATEGIES.len()] =
        [STRATEGIES[0].1, STRATEGIES[1].1, STRATEGIES[2].1, STRATEGIES[3].1, STRATEGIES[4].1];
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Strategy> {
        let found = STRATEGIES.iter().find(|(name, _)| *name == text).map(|(_, strategy)| *strategy);
        found.ok_or_else(|| {
            let names: Vec<_> = STRATEGIES.iter().map(|(name, _)| *name).collect();
            Error::invalid(format!("softmax strategy `{text}`: there are {}", names.join(", ")))
        })
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = STRATEGIES.iter().find(|(_, strategy)| strategy == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// One specialisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// In registers.
    Held(Sharing),
    /// In shared memory.
    Shared,
    /// Read twice.
    Wide,
}

/// Which op, on which elements.
#[derive(Debug, Clone, Copy)]
struct Task {
    log: bool,
    backward: bool,
    src: DType,
    dst: DType,
}

/// Threads of a block that does not hold its row in registers: few for narrow rows.
const THREADS: [u32; 5] = [64, 128, 256, 512, 1024];
/// Which of them is compiled for all rows of dtypes that hardly exist: a launch has as few whole warps as suit the row.
const RARE_THREADS: usize = 2;
const WARP: u64 = 32;
/// Packs of a row for each of them, until there are no more threads.
const PACKS_PER_THREAD: u64 = 4;
const STRIDED_THREADS: u32 = 256;
const STRIDED_COLUMNS: u64 = 32;
const MAX_GRID: u64 = 1 << 30;
/// Shared memory that a block needs beside its row.
const OWN_SHARED: u32 = 4 << 10;

impl Task {
    fn holding(self) -> Holding {
        let bytes = self.src.bytes_for_bounds().max(self.dst.bytes_for_bounds());
        Holding { pack: 16 / bytes, bytes, sources: if self.backward { 2 } else { 1 }, single: false }
    }

    /// Whether rows hardly exist: those that become f64, stop being that, or change from one half type to the other. They are
    /// read twice.
    fn is_rare(self) -> bool {
        self.src != self.dst
            && ([self.src, self.dst].contains(&DType::F64) || ![self.src, self.dst].contains(&DType::F32))
    }

    /// All specialisations, those for narrower rows first. Of f64 there are fewer, and fewer still where the dtypes
    /// differ.
    fn shapes(self, arch: Arch) -> Vec<Shape> {
        let same = self.src == self.dst;
        let held = |aligned| self.holding().sharings(arch, aligned).into_iter();
        let few = |s: &Sharing| s.lanes == 32 && s.packs.is_power_of_two();
        let fewer = |s: &Sharing| {
            few(s) && (s.blocks == 0 && s.packs > 1 || s.blocks == 1 || s.blocks * s.threads == 1024)
        };
        let mut shapes: Vec<Shape> = match self.src {
            _ if self.is_rare() => Vec::new(),
            _ if !same => held(false).filter(fewer).map(Shape::Held).collect(),
            DType::F64 => held(false).filter(few).map(Shape::Held).collect(),
            _ => held(true).chain(held(false)).map(Shape::Held).collect(),
        };
        shapes.extend((same && !self.backward).then_some(Shape::Shared));
        shapes.push(Shape::Wide);
        shapes
    }

    fn spec(self, shape: Shape, threads: u32) -> Spec {
        let pack = self.holding().pack;
        if let Shape::Held(sharing) = shape {
            let source = if self.backward { &SOFTMAX_BACKWARD } else { &SOFTMAX };
            // The others compute both, as the launch says: slower of half types and in clusters, which matters where the dtypes are
            // one.
            let is_slower = sharing.blocks > 1 || [DType::F16, DType::BF16].contains(&self.src);
            let fixed = is_slower && self.src == self.dst;
            let spec = between(Spec::new(source), self.src, self.dst);
            let spec = if fixed { spec.with("EP_LOG", u32::from(self.log)) } else { spec };
            return sharing.specialise(spec, pack);
        }
        let spec = self
            .common(&SOFTMAX_WIDE)
            .with("EP_THREADS", threads)
            .with("EP_PACK", pack)
            .with("EP_BACKWARD", u32::from(self.backward))
            .with("EP_SHARED", u32::from(shape == Shape::Shared));
        if self.is_rare() { spec.with("EP_FEWER", 1) } else { spec }
    }

    fn strided(self) -> Spec {
        let spec = self.common(&SOFTMAX_STRIDED).with("EP_THREADS", STRIDED_THREADS);
        spec.with("EP_BACKWARD", u32::from(self.backward))
    }

    fn common(self, source: &'static Source) -> Spec {
        // Where the dtypes differ one kernel computes both, as the launch says.
        let spec = between(Spec::new(source), self.src, self.dst);
        if self.src == self.dst { spec.with("EP_LOG", u32::from(self.log)) } else { spec }
    }

    /// Which of [`THREADS`] a row gets that is not held in registers.
    fn threads(self, cols: u64) -> usize {
        if self.is_rare() {
            return RARE_THREADS;
        }
        let wanted = self.wanted_threads(cols);
        THREADS.iter().position(|t| u64::from(*t) >= wanted).unwrap_or(THREADS.len() - 1)
    }

    fn wanted_threads(self, cols: u64) -> u64 {
        cols.div_ceil(PACKS_PER_THREAD * self.holding().pack)
    }

    /// How many threads a block of a launch has for such a row.
    fn launched_threads(self, cols: u64) -> u32 {
        let compiled = THREADS[self.threads(cols)];
        if !self.is_rare() {
            return compiled;
        }
        let warps = self.wanted_threads(cols).div_ceil(WARP).max(1);
        warps.saturating_mul(WARP).min(compiled.into()) as u32
    }
}

impl Shape {
    fn strategy(self) -> Strategy {
        match self {
            Shape::Held(Sharing { blocks: 0, .. }) => Strategy::Warp,
            Shape::Held(Sharing { blocks: 1, .. }) => Strategy::Block,
            Shape::Held(_) => Strategy::Cluster,
            Shape::Shared => Strategy::Shared,
            Shape::Wide => Strategy::Wide,
        }
    }

    /// Whether a row of `cols` elements finds room. Any row may be treated as one that is not aligned.
    fn holds(self, cols: u64, aligned: bool, task: Task, shared_bytes: u32) -> bool {
        match self {
            Shape::Wide => true,
            Shape::Shared => shared_need(cols, task) <= u64::from(shared_bytes),
            Shape::Held(sharing) => {
                (aligned || !sharing.aligned)
                    && task.holding().packs(cols, sharing.aligned) <= sharing.capacity()
            }
        }
    }
}

/// The specialisation for rows of so many columns, aligned or not, and its number: the first that has room, but see
/// [`cheapest`], of the strategy that is forced if one of that has.
fn choose(
    shapes: &[Shape],
    task: Task,
    forced: Option<Strategy>,
    (cols, aligned): (u64, bool),
    shared_bytes: u32,
) -> (Shape, usize) {
    let packs = task.holding().packs(cols, aligned);
    let find = |wanted: Option<Strategy>| {
        let with_room = shapes.iter().enumerate().filter(|(_, shape)| {
            wanted.is_none_or(|w| shape.strategy() == w) && shape.holds(cols, aligned, task, shared_bytes)
        });
        cheapest(packs, task.holding().bytes == 2, with_room, |(_, shape)| match shape {
            Shape::Held(sharing) => Some(*sharing),
            _ => None,
        })
    };
    let forced = forced.and_then(|strategy| find(Some(strategy)));
    // The last one takes rows of any width.
    let found = forced.or_else(|| find(None));
    found.map_or((Shape::Wide, 0), |(number, shape)| (*shape, number))
}

/// Bytes of shared memory for a row.
fn shared_need(cols: u64, task: Task) -> u64 {
    let pack = task.holding().pack;
    cols.div_ceil(pack).saturating_add(1).saturating_mul(pack * task.src.bytes_for_bounds())
}

/// Rows of all float dtypes to all float dtypes.
fn rows() -> impl Iterator<Item = [DType; 2]> {
    DType::FLOAT.iter().flat_map(|src| DType::FLOAT.iter().map(|dst| [*src, *dst]))
}

/// The kernels of an op's rows.
fn kernels_of(log: bool, backward: bool, arch: Arch) -> Vec<Spec> {
    let of_row = |[src, dst]: [DType; 2]| {
        let task = Task { log, backward, src, dst };
        // Rows that are not held are so wide that they get the largest blocks, unless the option forces others.
        let threads = THREADS[task.threads(u64::MAX)];
        let shapes = task.shapes(arch).into_iter().map(move |s| task.spec(s, threads));
        shapes.chain([task.strided()]).collect::<Vec<_>>()
    };
    rows().flat_map(of_row).collect()
}

/// The kernels of all four ops.
pub(super) fn kernels(arch: Arch) -> [(&'static str, Vec<Spec>); 4] {
    [
        (Softmax::NAME, kernels_of(false, false, arch)),
        (LogSoftmax::NAME, kernels_of(true, false, arch)),
        (SoftmaxBackward::NAME, kernels_of(false, true, arch)),
        (LogSoftmaxBackward::NAME, kernels_of(true, true, arch)),
    ]
}

/// A primitive of any of the four ops.
struct Rows {
    task: Task,
    shapes: Vec<Shape>,
    /// The kernels of `shapes` that hold rows.
    held: Vec<Lazy>,
    /// In shared memory, and read twice, by [`THREADS`].
    shared: [Lazy; THREADS.len()],
    wide: [Lazy; THREADS.len()],
    strided: Lazy,
    forced: Option<Strategy>,
    /// By rows, columns, and whether those are aligned.
    recent: Recent<(u64, u64, bool), Chosen>,
    shared_bytes: u32,
    about: String,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Forward {
    rows: u64,
    cols: u64,
    src: u64,
    dst: u64,
    log: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Backward {
    rows: u64,
    cols: u64,
    y: u64,
    dy: u64,
    dx: u64,
    log: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Wide {
    rows: u64,
    cols: u64,
    src: u64,
    dst: u64,
    dy: u64,
    log: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Strided {
    rows: u64,
    cols: u64,
    inner: u64,
    src: u64,
    dst: u64,
    dy: u64,
    log: u64,
}

// SAFETY: as `Args` of softmax.cu.
unsafe impl Argument for Forward {}
// SAFETY: as `Args` of softmax_backward.cu.
unsafe impl Argument for Backward {}
// SAFETY: as `Args` of softmax_wide.cu.
unsafe impl Argument for Wide {}
// SAFETY: as `Args` of softmax_strided.cu.
unsafe impl Argument for Strided {}

/// Sizes and addresses of a launch; forward, `dy` is 0.
#[derive(Clone, Copy)]
struct Call {
    sizes: [i64; 3],
    src: u64,
    dy: u64,
    dst: u64,
}

/// What a launch needs: the number is that of the kernel among those of its kind.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    shape: Shape,
    number: usize,
    geometry: Geometry,
}

impl Rows {
    fn new(device: &CudaDevice, task: Task, max_cols: u64) -> Result<Rows> {
        let (loader, properties) = (device.loader()?, device.properties());
        let shapes = task.shapes(properties.arch);
        let forced = device.softmax_strategy();
        let mut rows = Rows::of(&loader, task, shapes, forced, properties.shared_bytes);
        if max_cols > 0 {
            // The option may have forced one that is not the best.
            let (shape, _) = rows.choose(max_cols, max_cols.is_multiple_of(task.holding().pack));
            rows.about = format!("{} for rows of {max_cols}", shape.strategy());
        }
        Ok(rows)
    }

    fn of(
        loader: &Loader,
        task: Task,
        shapes: Vec<Shape>,
        forced: Option<Strategy>,
        shared_bytes: u32,
    ) -> Rows {
        let name = match (task.log, task.backward) {
            (false, false) => Softmax::NAME,
            (true, false) => LogSoftmax::NAME,
            (false, true) => SoftmaxBackward::NAME,
            (true, true) => LogSoftmaxBackward::NAME,
        };
        let lazy = |shape, threads| Lazy::new(loader, name, task.spec(shape, threads));
        let held = shapes.iter().filter(|s| matches!(s, Shape::Held(_)));
        Rows {
            task,
            held: held.map(|shape| lazy(*shape, 0)).collect(),
            shared: THREADS.map(|threads| lazy(Shape::Shared, threads)),
            wide: THREADS.map(|threads| lazy(Shape::Wide, threads)),
            strided: Lazy::new(loader, name, task.strided()),
            shapes,
            forced,
            recent: Recent::default(),
            shared_bytes: shared_bytes.saturating_sub(OWN_SHARED),
            about: "rows in registers of a warp, a block or a cluster, or read twice, by width".to_owned(),
        }
    }

    /// The specialisation for a width, and its number.
    fn choose(&self, cols: u64, aligned: bool) -> (Shape, usize) {
        choose(&self.shapes, self.task, self.forced, (cols, aligned), self.shared_bytes)
    }

    /// # Safety
    /// As for the op's launch: sizes are not negative, and the operands are valid for them.
    unsafe fn run(&self, stream: &CudaStream, call: Call) -> Result<()> {
        let [rows, cols, inner] = call.sizes.map(|n| n as u64);
        let inner = inner.max(1);
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let Call { src, dy, dst, .. } = call;
        let log = u64::from(self.task.log);
        if inner > 1 {
            let tiles = rows.saturating_mul(inner.div_ceil(STRIDED_COLUMNS)).min(MAX_GRID);
            let geometry = Geometry::linear(tiles as u32, STRIDED_THREADS);
            let argument = Strided { rows, cols, inner, src, dst, dy, log };
            // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
            return unsafe { self.strided.get()?.launch(stream, geometry, &argument) };
        }
        let aligned = (src | dy | dst).is_multiple_of(16) && cols.is_multiple_of(self.task.holding().pack);
        let Chosen { shape, number, geometry } =
            self.recent.get_or((rows, cols, aligned), || self.chosen(rows, cols, aligned));
        let wide = Wide { rows, cols, src, dst, dy, log };
        // SAFETY: the operands are valid as the caller promises, and each is the argument of its kernel.
        unsafe {
            match shape {
                Shape::Held(_) => {
                    let function = self.held[number].get()?;
                    if self.task.backward {
                        function.launch(stream, geometry, &Backward { rows, cols, y: src, dy, dx: dst, log })
                    } else {
                        function.launch(stream, geometry, &Forward { rows, cols, src, dst, log })
                    }
                }
                Shape::Shared => {
                    let function = self.shared[number].get()?;
                    function.allow_shared(self.shared_bytes)?;
                    function.launch(stream, geometry, &wide)
                }
                Shape::Wide => self.wide[number].get()?.launch(stream, geometry, &wide),
            }
        }
    }

    /// The kernel and the grid for so many rows.
    fn chosen(&self, rows: u64, cols: u64, aligned: bool) -> Chosen {
        let (shape, held) = self.choose(cols, aligned);
        let number = if matches!(shape, Shape::Held(_)) { held } else { self.task.threads(cols) };
        let blocks = block_for_each(rows, self.task.launched_threads(cols));
        let geometry = match shape {
            Shape::Held(sharing) => {
                let packs = self.task.holding().packs(cols, sharing.aligned);
                sharing.shared(packs).geometry(rows)
            }
            Shape::Shared => Geometry { shared_bytes: shared_need(cols, self.task) as u32, ..blocks },
            Shape::Wide => blocks,
        };
        Chosen { shape, number, geometry }
    }
}

impl Kernel<Softmax, CudaDevice> for Rows {
    unsafe fn launch(&self, stream: &CudaStream, a: &SoftmaxArgs) -> Result<()> {
        let call = Call { sizes: [a.rows, a.cols, a.inner], src: a.src, dy: 0, dst: a.dst };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, call) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

impl Kernel<LogSoftmax, CudaDevice> for Rows {
    unsafe fn launch(&self, stream: &CudaStream, a: &LogSoftmaxArgs) -> Result<()> {
        let call = Call { sizes: [a.rows, a.cols, a.inner], src: a.src, dy: 0, dst: a.dst };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, call) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

impl Kernel<SoftmaxBackward, CudaDevice> for Rows {
    unsafe fn launch(&self, stream: &CudaStream, a: &SoftmaxBackwardArgs) -> Result<()> {
        let call = Call { sizes: [a.rows, a.cols, a.inner], src: a.y, dy: a.dy, dst: a.dx };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, call) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

impl Kernel<LogSoftmaxBackward, CudaDevice> for Rows {
    unsafe fn launch(&self, stream: &CudaStream, a: &LogSoftmaxBackwardArgs) -> Result<()> {
        let call = Call { sizes: [a.rows, a.cols, a.inner], src: a.y, dy: a.dy, dst: a.dx };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, call) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let build = |device: &CudaDevice, d: &SoftmaxDesc| {
        let task = Task { log: false, backward: false, src: d.src, dst: d.dst };
        Rows::new(device, task, d.max_cols)
    };
    registrar.add(Factory::<Softmax, _, _>::new("softmax", build).dtypes(rows()).capturable())?;
    let build = |device: &CudaDevice, d: &LogSoftmaxDesc| {
        let task = Task { log: true, backward: false, src: d.src, dst: d.dst };
        Rows::new(device, task, d.max_cols)
    };
    registrar.add(Factory::<LogSoftmax, _, _>::new("log_softmax", build).dtypes(rows()).capturable())?;
    let build = |device: &CudaDevice, d: &SoftmaxBackwardDesc| {
        let task = Task { log: false, backward: true, src: d.src, dst: d.dst };
        Rows::new(device, task, d.max_cols)
    };
    let factory = Factory::<SoftmaxBackward, _, _>::new("softmax_backward", build);
    registrar.add(factory.dtypes(rows()).capturable())?;
    let build = |device: &CudaDevice, d: &LogSoftmaxBackwardDesc| {
        let task = Task { log: true, backward: true, src: d.src, dst: d.dst };
        Rows::new(device, task, d.max_cols)
    };
    let factory = Factory::<LogSoftmaxBackward, _, _>::new("log_softmax_backward", build);
    registrar.add(factory.dtypes(rows()).capturable())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOPPER: Arch = Arch::new(9, 0);
    const SHARED: u32 = (227 << 10) - OWN_SHARED;

    fn task(src: DType, dst: DType) -> Task {
        Task { log: false, backward: false, src, dst }
    }

    /// What each width gets.
    fn strategy(cols: u64, dtype: DType, aligned: bool, arch: Arch) -> Strategy {
        let task = task(dtype, dtype);
        choose(&task.shapes(arch), task, None, (cols, aligned), SHARED).0.strategy()
    }

    #[test]
    fn widths_get_the_narrowest_that_has_room() {
        let f32_ = |cols, aligned| strategy(cols, DType::F32, aligned, HOPPER);
        assert_eq!(
            (f32_(1, false), f32_(512, true), f32_(512, false)),
            (Strategy::Warp, Strategy::Warp, Strategy::Warp)
        );
        assert_eq!(f32_(513, false), Strategy::Block);
        assert_eq!((f32_(16_384, true), f32_(16_385, false)), (Strategy::Block, Strategy::Cluster));
        assert_eq!((f32_(262_144, true), f32_(262_145, false)), (Strategy::Cluster, Strategy::Wide));
        let ampere = |cols| strategy(cols, DType::F32, false, Arch::new(8, 0));
        // 223 KiB hold 57088 elements, less one pack for a row that begins within one.
        assert_eq!(
            (ampere(40_000), ampere(57_084), ampere(57_085)),
            (Strategy::Shared, Strategy::Shared, Strategy::Wide)
        );
    }

    #[test]
    fn every_row_has_a_kernel_for_every_width() {
        for [src, dst] in rows() {
            for (backward, arch) in [(false, HOPPER), (true, HOPPER), (false, Arch::new(8, 0))] {
                let task = Task { backward, ..task(src, dst) };
                assert_eq!(task.shapes(arch).last(), Some(&Shape::Wide));
            }
        }
    }

    /// Widths on both sides of where another specialisation begins, and some between.
    fn widths() -> impl Iterator<Item = u64> {
        (1..2100).chain((11..21).flat_map(|n| [(1 << n) - 1, 1 << n, (1 << n) + 1, 3 << (n - 1)]))
    }

    #[test]
    fn what_launches_need_is_compiled_ahead() {
        for (arch, (log, backward)) in
            [Arch::new(8, 0), HOPPER, Arch::new(12, 0)].into_iter().flat_map(|arch| {
                [(false, false), (true, false), (false, true), (true, true)].map(|op| (arch, op))
            })
        {
            let listed: Vec<_> = kernels_of(log, backward, arch).iter().map(Spec::key).collect();
            for [src, dst] in rows() {
                let task = Task { log, backward, src, dst };
                let shapes = task.shapes(arch);
                assert!(listed.contains(&task.strided().key()));
                let mut found = Vec::new();
                for (cols, aligned) in widths().flat_map(|cols| [(cols, true), (cols, false)]) {
                    let (shape, number) = choose(&shapes, task, None, (cols, aligned), SHARED);
                    assert_eq!(shapes[number], shape);
                    if !found.contains(&(shape, task.threads(cols))) {
                        found.push((shape, task.threads(cols)));
                    }
                }
                for (shape, threads) in found {
                    let spec = task.spec(shape, THREADS[threads]);
                    assert!(listed.contains(&spec.key()), "{spec} for {arch}");
                }
            }
        }
    }

    #[test]
    fn where_dtypes_differ_one_kernel_computes_both() {
        for ([src, dst], backward) in rows().flat_map(|row| [(row, false), (row, true)]) {
            let [softmax, log] = [false, true].map(|log| Task { log, backward, src, dst });
            assert_eq!(softmax.strided().key() == log.strided().key(), src != dst);
            for shape in softmax.shapes(HOPPER) {
                let same = softmax.spec(shape, 256).key() == log.spec(shape, 256).key();
                let in_block = matches!(shape, Shape::Held(Sharing { blocks: ..2, .. }));
                let is_wide_type = ![DType::F16, DType::BF16].contains(&src);
                assert_eq!(same, src != dst || (in_block && is_wide_type), "{shape:?} {src} {dst}");
            }
        }
        let rare = task(DType::F64, DType::F32);
        assert_eq!(rare.shapes(HOPPER), [Shape::Wide]);
        assert_eq!([1, 1 << 20].map(|cols| THREADS[rare.threads(cols)]), [256; 2]);
        // Two f64 a pack, and four packs a thread.
        let launched = [1, 128, 256, 257, 1024, 2048, u64::MAX].map(|cols| rare.launched_threads(cols));
        assert_eq!(launched, [32, 32, 32, 64, 128, 256, 256]);
        // Rows of half types that become f32 are held up to clusters of two.
        let of = |cols| {
            choose(
                &task(DType::F16, DType::F32).shapes(HOPPER),
                task(DType::F16, DType::F32),
                None,
                (cols, true),
                SHARED,
            )
            .0
            .strategy()
        };
        assert_eq!(
            [512, 513, 16_384, 16_385, 32_768, 32_769].map(of),
            [
                Strategy::Warp,
                Strategy::Block,
                Strategy::Block,
                Strategy::Cluster,
                Strategy::Cluster,
                Strategy::Wide
            ]
        );
    }

    #[test]
    fn blocks_that_do_not_hold_their_row_grow_with_it() {
        let f32_ = task(DType::F32, DType::F32);
        let threads = |cols| THREADS[f32_.threads(cols)];
        assert_eq!((threads(1), threads(1024), threads(1025), threads(1 << 20)), (64, 64, 128, 1024));
    }

    #[test]
    fn strategies_have_names() {
        for (name, strategy) in STRATEGIES {
            assert_eq!((name.parse(), strategy.to_string().as_str()), (Ok(strategy), name));
        }
        assert!("fast".parse::<Strategy>().unwrap_err().message().contains("cluster"));
    }
}
