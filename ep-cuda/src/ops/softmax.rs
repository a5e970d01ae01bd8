//! `softmax`, `log_softmax` and their gradients: which kernel a row's width gets, and its launch.

use super::dtype_name;
use super::source::{SOFTMAX, SOFTMAX_BACKWARD, SOFTMAX_STRIDED, SOFTMAX_WIDE};
use crate::compiler::{Arch, Spec};
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry, Lazy};
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
struct Shape {
    strategy: Strategy,
    threads: u32,
    /// Threads of a warp that share a row.
    lanes: u32,
    /// Blocks that do.
    blocks: u32,
    /// Packs of a row that a thread holds.
    packs: u32,
    /// Rows begin and end with whole packs.
    aligned: bool,
}

/// Which op, on which elements.
#[derive(Debug, Clone, Copy)]
struct Task {
    log: bool,
    backward: bool,
    src: DType,
    dst: DType,
}

/// Elements that a thread holds in registers at most.
const REGISTER_ELEMENTS: u32 = 32;
const WARP_THREADS: u32 = 128;
const WIDE_THREADS: u32 = 512;
const STRIDED_THREADS: u32 = 256;

impl Task {
    /// Elements that are loaded together: 16 bytes of the larger ones.
    fn pack(self) -> u32 {
        16 / self.src.bytes_for_bounds().max(self.dst.bytes_for_bounds()) as u32
    }

    /// All specialisations, those for narrower rows first. Where the dtypes differ, fewer: such rows are rare.
    fn shapes(self, arch: Arch) -> Vec<Shape> {
        let most = (REGISTER_ELEMENTS / self.pack()).min(8);
        let same = self.src == self.dst;
        let mut shapes = Vec::new();
        let mut add = |strategy, threads, lanes, blocks, packs| {
            for aligned in [true, false] {
                if same || !aligned {
                    shapes.push(Shape { strategy, threads, lanes, blocks, packs, aligned });
                }
            }
        };
        if same {
            [1, 2, 4, 8, 16].iter().for_each(|lanes| add(Strategy::Warp, WARP_THREADS, *lanes, 0, 1));
        }
        let doubling = |n: u32| (n < most).then_some(n * 2);
        std::iter::successors(Some(1), |n| doubling(*n))
            .for_each(|packs| add(Strategy::Warp, WARP_THREADS, 32, 0, packs));
        if same {
            add(Strategy::Block, 128, 32, 1, most / 2);
            [128, 256, 512, 1024].iter().for_each(|threads| add(Strategy::Block, *threads, 32, 1, most));
            if arch >= Arch::new(9, 0) {
                [2, 4, 8].iter().for_each(|blocks| add(Strategy::Cluster, 1024, 32, *blocks, most));
            }
        }
        for strategy in [Strategy::Shared, Strategy::Wide] {
            if strategy == Strategy::Wide || (same && !self.backward) {
                shapes.push(Shape {
                    strategy,
                    threads: WIDE_THREADS,
                    lanes: 32,
                    blocks: 1,
                    packs: 0,
                    aligned: false,
                });
            }
        }
        shapes
    }

    fn spec(self, shape: Shape) -> Spec {
        let truth = u32::from;
        let in_registers = !matches!(shape.strategy, Strategy::Shared | Strategy::Wide);
        let source = match (in_registers, self.backward) {
            (true, false) => &SOFTMAX,
            (true, true) => &SOFTMAX_BACKWARD,
            (false, _) => &SOFTMAX_WIDE,
        };
        let spec = self.common(source).with("EP_THREADS", shape.threads).with("EP_PACK", self.pack());
        if !in_registers {
            let shared = truth(shape.strategy == Strategy::Shared);
            return spec.with("EP_BACKWARD", truth(self.backward)).with("EP_SHARED", shared);
        }
        spec.with("EP_LANES", shape.lanes)
            .with("EP_BLOCKS", shape.blocks)
            .with("EP_ROWS", 1)
            .with("EP_PACKS", shape.packs)
            .with("EP_ALIGNED", truth(shape.aligned))
    }

    fn strided(self) -> Spec {
        let spec = self.common(&SOFTMAX_STRIDED).with("EP_THREADS", STRIDED_THREADS);
        spec.with("EP_BACKWARD", u32::from(self.backward))
    }

    fn common(self, source: &'static crate::compiler::Source) -> Spec {
        Spec::new(source)
            .with("EP_SRC", dtype_name(self.src))
            .with("EP_DST", dtype_name(self.dst))
            .with("EP_LOG", u32::from(self.log))
    }
}

impl Shape {
    /// Whether a row of `cols` elements finds room.
    fn holds(&self, cols: u64, task: Task, shared_bytes: u32) -> bool {
        let pack = u64::from(task.pack());
        match self.strategy {
            Strategy::Wide => true,
            Strategy::Shared => shared_need(cols, task) <= u64::from(shared_bytes),
            _ => {
                let sharers = if self.blocks == 0 { self.lanes } else { self.threads * self.blocks };
                // A row that begins within a pack may touch one more.
                let edge = if self.aligned { 0 } else { pack - 1 };
                cols.saturating_add(edge) <= u64::from(sharers) * u64::from(self.packs) * pack
            }
        }
    }

    fn geometry(&self, rows: u64, sm_count: u32) -> Geometry {
        // Each block goes on to further rows, so a few times what runs at once is enough.
        let resident = u64::from(sm_count) * u64::from(2048 / self.threads);
        let blocks = match self.strategy {
            Strategy::Warp => rows.div_ceil(u64::from(self.threads / self.lanes)).min(resident * 8),
            Strategy::Cluster => {
                let blocks = u64::from(self.blocks);
                rows.min((resident / blocks).max(1) * 4) * blocks
            }
            _ => rows.min(resident * 4),
        };
        Geometry::linear(blocks as u32, self.threads)
    }
}

/// Bytes of shared memory for a row.
fn shared_need(cols: u64, task: Task) -> u64 {
    let pack = u64::from(task.pack());
    cols.saturating_add(pack).div_ceil(pack).saturating_mul(pack * task.src.bytes_for_bounds())
}

/// Rows of all float dtypes to all float dtypes.
fn rows() -> impl Iterator<Item = [DType; 2]> {
    DType::FLOAT.iter().flat_map(|src| DType::FLOAT.iter().map(|dst| [*src, *dst]))
}

/// The kernels of an op's rows.
fn kernels_of(log: bool, backward: bool, arch: Arch) -> Vec<Spec> {
    let of_row = |[src, dst]: [DType; 2]| {
        let task = Task { log, backward, src, dst };
        let shapes = task.shapes(arch).into_iter().map(move |shape| task.spec(shape));
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
    variants: Vec<(Shape, Lazy)>,
    strided: Lazy,
    forced: Option<Strategy>,
    sm_count: u32,
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
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Backward {
    rows: u64,
    cols: u64,
    y: u64,
    dy: u64,
    dx: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Wide {
    rows: u64,
    cols: u64,
    src: u64,
    dst: u64,
    dy: u64,
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

impl Rows {
    fn new(device: &CudaDevice, task: Task, max_cols: u64) -> Result<Rows> {
        let (loader, properties) = (device.loader()?, device.properties());
        let name = match (task.log, task.backward) {
            (false, false) => Softmax::NAME,
            (true, false) => LogSoftmax::NAME,
            (false, true) => SoftmaxBackward::NAME,
            (true, true) => LogSoftmaxBackward::NAME,
        };
        let lazy = |shape| (shape, Lazy::new(&loader, name, task.spec(shape)));
        let mut rows = Rows {
            task,
            variants: task.shapes(properties.arch).into_iter().map(lazy).collect(),
            strided: Lazy::new(&loader, name, task.strided()),
            forced: device.softmax_strategy(),
            sm_count: properties.sm_count,
            shared_bytes: properties.shared_bytes,
            about: "rows in registers of a warp, a block or a cluster, or read twice, by width".to_owned(),
        };
        if max_cols > 0 {
            // The option may have forced one that is not the best.
            let (shape, _) = rows.choose(max_cols, true);
            rows.about = format!("{} for rows of {max_cols}", shape.strategy);
        }
        Ok(rows)
    }

    /// The specialisation for a width: the first that has room, of the strategy that is forced if one of that has.
    fn choose(&self, cols: u64, aligned: bool) -> &(Shape, Lazy) {
        let fits =
            |shape: &Shape| (aligned || !shape.aligned) && shape.holds(cols, self.task, self.shared_bytes);
        let forced = self.variants.iter().find(|(s, _)| Some(s.strategy) == self.forced && fits(s));
        let found = forced.or_else(|| {
            // Shared memory holds what two reads would fetch again, but a cluster's registers are faster.
            self.variants.iter().find(|(s, _)| fits(s))
        });
        // The last one takes rows of any width.
        found.unwrap_or(&self.variants[self.variants.len() - 1])
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
        if inner > 1 {
            let tiles = rows.saturating_mul(inner.div_ceil(32));
            let most = u64::from(self.sm_count) * u64::from(2048 / STRIDED_THREADS) * 4;
            let geometry = Geometry::linear(tiles.min(most) as u32, STRIDED_THREADS);
            let argument = Strided { rows, cols, inner, src, dst, dy };
            // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
            return unsafe { self.strided.get()?.launch(stream, geometry, &argument) };
        }
        let row_bytes = cols * self.task.src.bytes_for_bounds();
        let aligned = (row_bytes | src | dy | dst).is_multiple_of(16);
        let (shape, lazy) = self.choose(cols, aligned);
        let function = lazy.get()?;
        let mut geometry = shape.geometry(rows, self.sm_count);
        // SAFETY: the operands are valid as the caller promises, and each is the argument of its kernel.
        unsafe {
            match (shape.strategy, self.task.backward) {
                (Strategy::Shared | Strategy::Wide, _) => {
                    if shape.strategy == Strategy::Shared {
                        geometry.shared_bytes = shared_need(cols, self.task) as u32;
                        function.allow_shared(self.shared_bytes)?;
                    }
                    function.launch(stream, geometry, &Wide { rows, cols, src, dst, dy })
                }
                (_, false) => function.launch(stream, geometry, &Forward { rows, cols, src, dst }),
                (_, true) => function.launch(stream, geometry, &Backward { rows, cols, y: src, dy, dx: dst }),
            }
        }
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
    const SHARED: u32 = 227 << 10;

    fn task(src: DType, dst: DType) -> Task {
        Task { log: false, backward: false, src, dst }
    }

    /// What each width gets on Hopper.
    fn strategy(cols: u64, dtype: DType, aligned: bool, arch: Arch) -> (Strategy, u32, u32) {
        let task = task(dtype, dtype);
        let shapes = task.shapes(arch);
        let s = shapes.iter().find(|s| (aligned || !s.aligned) && s.holds(cols, task, SHARED)).unwrap();
        (s.strategy, if s.blocks == 0 { s.lanes } else { s.threads }, s.packs)
    }

    #[test]
    fn widths_get_the_narrowest_that_has_room() {
        let f32_ = |cols, aligned| strategy(cols, DType::F32, aligned, HOPPER);
        assert_eq!(f32_(1, false), (Strategy::Warp, 1, 1));
        assert_eq!(f32_(32, true), (Strategy::Warp, 8, 1));
        assert_eq!(f32_(1024, true), (Strategy::Warp, 32, 8));
        assert_eq!(f32_(1024, false), (Strategy::Block, 128, 4), "a misaligned row touches one pack more");
        assert_eq!(f32_(1025, false), (Strategy::Block, 128, 4));
        assert_eq!(f32_(32768, true), (Strategy::Block, 1024, 8));
        assert_eq!(f32_(32769, false), (Strategy::Cluster, 1024, 8));
        assert_eq!(f32_(262_144, true).0, Strategy::Cluster);
        assert_eq!(f32_(262_145, false).0, Strategy::Wide);
        let ampere = |cols| strategy(cols, DType::F32, false, Arch::new(8, 0)).0;
        // 227 KiB hold 58112 elements, less one pack for a row that begins within one.
        assert_eq!(
            (ampere(40_000), ampere(58_108), ampere(58_109)),
            (Strategy::Shared, Strategy::Shared, Strategy::Wide)
        );
    }

    #[test]
    fn every_row_has_a_kernel_for_every_width() {
        for [src, dst] in rows() {
            for (backward, arch) in [(false, HOPPER), (true, HOPPER), (false, Arch::new(8, 0))] {
                let task = Task { backward, ..task(src, dst) };
                let shapes = task.shapes(arch);
                assert_eq!(shapes.last().map(|s| s.strategy), Some(Strategy::Wide));
                for s in shapes.iter().filter(|s| s.blocks == 0) {
                    assert!(s.lanes.is_power_of_two() && s.threads % 32 == 0);
                }
            }
        }
        let all: usize = kernels(HOPPER).iter().map(|(_, specs)| specs.len()).sum();
        assert!(all < 1000, "{all} kernels");
    }

    #[test]
    fn grids_cover_few_rows_and_do_not_grow_with_many() {
        for shape in task(DType::F32, DType::F32).shapes(HOPPER) {
            for rows in [1, 7, 1 << 40] {
                let g = shape.geometry(rows, 132);
                assert!(g.grid[0] >= 1 && g.grid[0] < 1 << 20, "{shape:?} {rows}: {g:?}");
                assert_eq!(g.grid[0] % shape.blocks.max(1), 0, "{shape:?}: whole clusters");
            }
        }
    }

    #[test]
    fn strategies_have_names() {
        for (name, strategy) in STRATEGIES {
            assert_eq!((name.parse(), strategy.to_string().as_str()), (Ok(strategy), name));
        }
        assert!("fast".parse::<Strategy>().unwrap_err().message().contains("cluster"));
    }
}
