//! Where each strategy ends, for programs that look at both sides of it.

use super::{OWN_SHARED, Strategy, Task};
use crate::device::Properties;
use ep_core::DType;

/// The widest rows that a strategy has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widest {
    /// Where every row begins and ends with whole packs of 16 bytes; a multiple of these.
    pub aligned: u64,
    /// Where rows may begin anywhere.
    pub misaligned: u64,
}

/// No strategy that has a limit holds so many packs.
const TOO_MANY: u64 = 1 << 24;

impl Strategy {
    /// The widest rows of `dtype`, to results of the same dtype, that it has room for on a device, of the gradients with
    /// `backward`. `None` where it takes rows of any width, and where it is not there for these elements.
    pub fn widest(self, device: &Properties, backward: bool, dtype: DType) -> Option<Widest> {
        let task = Task { log: false, backward, src: dtype, dst: dtype };
        let shapes = task.shapes(device.arch);
        let shared_bytes = device.shared_bytes.saturating_sub(OWN_SHARED);
        let pack = task.holding().pack;
        let widest = |aligned| {
            let holds = |packs: u64| {
                let own = shapes.iter().filter(|s| s.strategy() == self);
                own.into_iter().any(|s| s.holds(packs * pack, aligned, task, shared_bytes))
            };
            // What holds a row holds all narrower ones.
            let (mut most, mut beyond) = (0, TOO_MANY);
            while beyond - most > 1 {
                let middle = most.midpoint(beyond);
                if holds(middle) { most = middle } else { beyond = middle }
            }
            (most > 0 && beyond < TOO_MANY).then_some(most * pack)
        };
        Some(Widest { aligned: widest(true)?, misaligned: widest(false)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::Arch;

    fn device(arch: Arch) -> Properties {
        Properties {
            name: "a GPU".into(),
            uuid: [1; 16],
            pci: "0000:1b:00.0".into(),
            memory_bytes: 1 << 37,
            arch,
            sm_count: 132,
            l2_bytes: 50 << 20,
            shared_bytes: 227 << 10,
            memory_pools: true,
            integrated: false,
        }
    }

    #[test]
    fn limits_are_those_of_the_specialisations() {
        let hopper = device(Arch::new(9, 0));
        let of = |strategy: Strategy, backward, dtype| {
            strategy.widest(&hopper, backward, dtype).map(|w| (w.aligned, w.misaligned))
        };
        assert_eq!(of(Strategy::Warp, false, DType::F32), Some((512, 512)));
        assert_eq!(of(Strategy::Block, false, DType::F32), Some((16_384, 16_384)));
        assert_eq!(of(Strategy::Cluster, false, DType::F32), Some((262_144, 262_144)));
        assert_eq!(of(Strategy::Shared, false, DType::F32), Some((57_084, 57_084)));
        assert_eq!(of(Strategy::Cluster, false, DType::F16), Some((524_288, 524_288)));
        assert_eq!(of(Strategy::Warp, true, DType::F32), Some((256, 256)));
        assert_eq!(of(Strategy::Shared, true, DType::F32), None, "gradients are read twice instead");
        assert_eq!(of(Strategy::Wide, false, DType::F32), None);
        let ampere = device(Arch::new(8, 0));
        assert_eq!(Strategy::Cluster.widest(&ampere, false, DType::F32), None);
    }

    #[test]
    fn one_element_more_does_not_fit() {
        let hopper = device(Arch::new(9, 0));
        let limited = Strategy::ALL.iter().filter(|s| **s != Strategy::Wide);
        for (strategy, dtype) in limited.flat_map(|s| DType::FLOAT.iter().map(move |d| (*s, *d))) {
            let task = Task { log: false, backward: false, src: dtype, dst: dtype };
            let widest = strategy.widest(&hopper, false, dtype).unwrap();
            let fits = |cols: u64, aligned| {
                let own = task.shapes(hopper.arch).into_iter().filter(|s| s.strategy() == strategy);
                own.into_iter().any(|s| s.holds(cols, aligned, task, hopper.shared_bytes - OWN_SHARED))
            };
            for (cols, aligned) in [(widest.aligned, true), (widest.misaligned, false)] {
                assert!(fits(cols, aligned) && !fits(cols + 1, aligned), "{strategy} {dtype} {cols}");
            }
        }
    }
}
