//! Devices, tensors on the host, and layouts for tensors on devices.

use ep_core::DType;
use ep_ops::{Ops, Tensor};
use ep_registry::Runtime;
use proptest::prelude::*;
use std::sync::OnceLock;

#[path = "../further.rs"]
mod further;

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let builder = Runtime::builder().threads(2).linked::<ep_cpu::provider::CpuProvider>("cpu");
        further::add(builder.linked::<ep_sim::SimProvider>("sim")).build().unwrap()
    })
}

/// On the CPU provider, and on the simulated accelerator or what is named in its place.
pub fn on_each(f: impl Fn(&Ops<'_>)) {
    for device in ["cpu", further::device()] {
        f(&Ops::new(runtime(), device).unwrap());
    }
}

/// On the CPU provider.
pub fn cpu() -> Ops<'static> {
    Ops::new(runtime(), "cpu").unwrap()
}

/// Numbers by chance.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// One of `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// A whole number of -8 to 8, but no 0.
    pub fn whole(&mut self) -> f64 {
        let n = self.below(16) as f64 - 8.0;
        if n >= 0.0 { n + 1.0 } else { n }
    }
}

/// A tensor on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub shape: Vec<i64>,
    pub data: Vec<f64>,
}

impl Host {
    pub fn new(shape: &[i64], data: &[f64]) -> Host {
        assert_eq!(shape.iter().product::<i64>(), data.len() as i64);
        Host { shape: shape.into(), data: data.into() }
    }

    /// Each element by its index.
    pub fn from_fn(shape: &[i64], mut f: impl FnMut(&[i64]) -> f64) -> Host {
        let data = indices(shape).iter().map(|index| f(index)).collect();
        Host { shape: shape.into(), data }
    }

    /// Whole numbers.
    pub fn random(shape: &[i64], random: &mut Random) -> Host {
        Host::from_fn(shape, |_| random.whole())
    }

    pub fn get(&self, index: &[i64]) -> f64 {
        assert_eq!(index.len(), self.shape.len());
        let position = index.iter().zip(&self.shape).fold(0, |position, (i, size)| {
            assert!((0..*size).contains(i), "{index:?} of {:?}", self.shape);
            position * size + i
        });
        self.data[position as usize]
    }

    /// The element that NumPy broadcasts to this index.
    pub fn broadcast(&self, index: &[i64]) -> f64 {
        let own = &index[index.len() - self.shape.len()..];
        let own: Vec<i64> =
            own.iter().zip(&self.shape).map(|(i, size)| if *size == 1 { 0 } else { *i }).collect();
        self.get(&own)
    }

    /// On a device, dense.
    pub fn to(&self, ops: &Ops<'_>, dtype: DType) -> Tensor {
        ops.cast(&ops.tensor(&self.data, &self.shape).unwrap(), dtype).unwrap()
    }

    /// On a device, as a view that shows the same.
    pub fn laid_out(&self, ops: &Ops<'_>, dtype: DType, layout: Layout) -> Tensor {
        const POISON: f64 = 77.0;
        let (shape, rank) = (&self.shape, self.shape.len());
        let each =
            |view: Tensor, f: &dyn Fn(&Tensor, usize) -> Tensor| (0..rank).fold(view, |view, d| f(&view, d));
        match layout {
            Layout::Dense => self.to(ops, dtype),
            Layout::Reversed => {
                let stored: Vec<i64> = shape.iter().rev().copied().collect();
                let stored = Host::from_fn(&stored, |index| {
                    self.get(&index.iter().rev().copied().collect::<Vec<_>>())
                });
                stored.to(ops, dtype).permute(&(0..rank as i64).rev().collect::<Vec<_>>()).unwrap()
            }
            Layout::Transposed if rank < 2 => self.to(ops, dtype),
            Layout::Transposed => {
                let swap = |list: &[i64]| {
                    let mut list = list.to_vec();
                    list.swap(rank - 1, rank - 2);
                    list
                };
                let stored = Host::from_fn(&swap(shape), |index| self.get(&swap(index)));
                stored.to(ops, dtype).transpose(-1, -2).unwrap()
            }
            Layout::Narrowed => {
                let stored: Vec<i64> = shape.iter().map(|size| size + 2).collect();
                let stored = Host::from_fn(&stored, |index| {
                    let own: Vec<i64> = index.iter().map(|i| i - 1).collect();
                    let inside = own.iter().zip(shape).all(|(i, size)| (0..*size).contains(i));
                    if inside { self.get(&own) } else { POISON }
                });
                each(stored.to(ops, dtype), &|view, d| view.narrow(d as i64, 1, shape[d]).unwrap())
            }
            Layout::Flipped => {
                let stored = Host::from_fn(shape, |index| {
                    self.get(&index.iter().zip(shape).map(|(i, size)| size - 1 - i).collect::<Vec<_>>())
                });
                stored.to(ops, dtype).flip(&(0..rank as i64).collect::<Vec<_>>()).unwrap()
            }
            Layout::Stepped => {
                let stored: Vec<i64> = shape.iter().map(|size| size * 2).collect();
                let stored = Host::from_fn(&stored, |index| {
                    let own: Vec<i64> = index.iter().map(|i| i / 2).collect();
                    if index.iter().all(|i| i % 2 == 0) { self.get(&own) } else { POISON }
                });
                each(stored.to(ops, dtype), &|view, d| view.slice(d as i64, 0, 2 * shape[d], 2).unwrap())
            }
        }
    }

    /// Fails unless a tensor has this shape and, but for this much, these elements.
    #[track_caller]
    pub fn assert_near(&self, ops: &Ops<'_>, tensor: &Tensor, tolerance: f64) {
        assert_eq!(tensor.shape(), self.shape, "{tensor:?}");
        let found = from(ops, tensor);
        for (i, (a, b)) in found.data.iter().zip(&self.data).enumerate() {
            let near = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * (1.0 + b.abs());
            assert!(
                near,
                "element {i} of {tensor:?} is {a}, not {b}; all: {:?}, not {:?}",
                found.data, self.data
            );
        }
    }

    #[track_caller]
    pub fn assert_equal(&self, ops: &Ops<'_>, tensor: &Tensor) {
        self.assert_near(ops, tensor, 0.0);
    }
}

/// What a device has.
pub fn from(ops: &Ops<'_>, tensor: &Tensor) -> Host {
    let data = ops.to_vec::<f64>(&ops.cast(tensor, DType::F64).unwrap()).unwrap();
    Host { shape: tensor.shape().to_vec(), data }
}

/// All indices of a shape, in order.
pub fn indices(shape: &[i64]) -> Vec<Vec<i64>> {
    let mut all = vec![Vec::new()];
    for size in shape {
        all = all.iter().flat_map(|head| (0..*size).map(move |i| [&head[..], &[i]].concat())).collect();
    }
    all
}

/// How a view lies.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    Dense,
    /// The dimensions in reversed order.
    Reversed,
    /// The last two dimensions exchanged.
    Transposed,
    /// A box in the middle.
    Narrowed,
    /// Negative strides.
    Flipped,
    /// Every second element.
    Stepped,
}

pub fn layouts() -> impl Strategy<Value = Layout> {
    use Layout::{Dense, Flipped, Narrowed, Reversed, Stepped, Transposed};
    prop_oneof![Just(Dense), Just(Reversed), Just(Transposed), Just(Narrowed), Just(Flipped), Just(Stepped)]
}

/// Shapes of so many dimensions, with sizes of 0 to 4, mostly not 0.
pub fn shapes(rank: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(prop_oneof![1 => Just(0i64), 12 => 1..5i64], rank)
}

/// A few cases: a simulated device takes its time.
pub fn few() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) }
}
