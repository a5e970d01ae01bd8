//! The nearest request, where a provider's conditions would take long to look through.

use ep_core::hob::{Expr, limit};
use ep_core::primitive::{Softmax, SoftmaxArgs};
use ep_core::provider::inline::{HostDevice, InlineStream};
use ep_core::provider::{Factory, Host, Kernel, Options, Provider, Registrar};
use ep_core::{DType, Result};
use ep_registry::Runtime;
use ep_registry::config::ProviderConfig;
use ep_registry::select::Explanation;

/// Alternatives of a condition: nearly as deep as one may be.
const ALTERNATIVES: u64 = 250;

/// Registers so many softmaxes for all dtypes, under a condition that nothing meets, and behind them one for f16.
struct Crowd {
    factories: u64,
}

struct Nothing;

impl Kernel<Softmax, HostDevice> for Nothing {
    unsafe fn launch(&self, _: &InlineStream, _: &SoftmaxArgs) -> Result<()> {
        Ok(())
    }
}

/// Each alternative can be had but for the clause before it, so that all are gone through again and again.
fn hopeless() -> Expr {
    let between = |n: u64| limit("cols").ge(n + 1) & limit("cols").le(n);
    (2..=ALTERNATIVES).map(between).fold(between(1), |all, more| all | more)
}

// SAFETY: memory is there until it is freed, work is done in order, and kernels stay in their operands.
unsafe impl Provider for Crowd {
    type Device = HostDevice;
    const NAME: &'static str = "crowd";
    const VERSION: &'static str = "1.0";

    fn create(_: Host, options: &Options) -> Result<Crowd> {
        Ok(Crowd { factories: options.parse("factories", 0)? })
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }

    fn open_device(&self, _: u32) -> Result<HostDevice> {
        Ok(HostDevice::default())
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        registrar.device_kind("cpu");
        let pairs = DType::ALL.into_iter().flat_map(|src| DType::ALL.map(|dst| [src, dst]));
        let pairs: Vec<_> = pairs.collect();
        for i in 0..self.factories {
            let factory = Factory::<Softmax, _, _>::new(format!("hopeless{i}"), |_, _| Ok(Nothing));
            registrar.add(factory.dtypes(pairs.clone()).when(hopeless()))?;
        }
        let plain = Factory::<Softmax, _, _>::new("plain", |_, _| Ok(Nothing));
        registrar.add(plain.dtypes([[DType::F16, DType::F16]]))
    }
}

fn explained(factories: u64) -> Explanation {
    let mut settings = ProviderConfig::new("crowd", "");
    settings.options.insert("factories".into(), factories.to_string());
    let runtime = Runtime::builder().threads(1).linked_with::<Crowd>(settings).build().unwrap();
    let request = runtime.request("softmax").unwrap().dtype("src", "f32").unwrap();
    runtime.explain(runtime.device("cpu").unwrap(), &request.dtype("dst", "f32").unwrap()).unwrap()
}

#[test]
fn conditions_that_take_long_are_not_gone_through() {
    // 225 pairs, each with a condition of 1999 nodes.
    let near = explained(2);
    assert_eq!(near.nearest.map(|terms| terms.to_string()).as_deref(), Some("softmax(src f16, dst f16)"));
    let far = explained(64);
    assert_eq!((far.nearest, far.candidates.len()), (None, 65));
}
