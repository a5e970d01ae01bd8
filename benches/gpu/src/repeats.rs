//! Products that are launched again and again with the same operands, between other work on them, compared bit for bit with
//! the same steps on operands that move from launch to launch, so that none is kept.

use crate::operands::{Copier, Random, settled};
use ep_core::primitive::{Add, AddArgs, AddDesc, BatchMatmul, BatchMatmulArgs, BatchMatmulDesc, Transpose};
use ep_core::{DType, Error, Result, Scalar};
use ep_registry::{Buffer, Device, Primitive, Runtime, Stream};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Batch, m, n and k.
pub const SIZES: [[i64; 4]; 7] = [
    [1, 8, 8, 8],
    [1, 64, 64, 64],
    [3, 64, 64, 64],
    [1, 33, 17, 129],
    [1, 256, 256, 256],
    [1, 1, 512, 512],
    [2, 512, 128, 1024],
];
const DTYPES: [DType; 6] =
    [DType::F16, DType::BF16, DType::F32, DType::F64, DType::COMPLEX64, DType::COMPLEX128];
/// Launches of each product: more than it takes until one is kept, and then as many from a graph that recorded one.
const LAUNCHES: usize = 24;
const REPLAYS: usize = 3;
/// Places between which operands move: no product comes as often at one as it takes until it is kept.
const PLACES: usize = 4;
/// Messages that are printed.
const MESSAGES: usize = 5;

/// What became of some products.
#[derive(Debug, Default, Serialize)]
pub struct Checked {
    /// Products, each of its own dtype, transposes and sizes.
    pub products: u64,
    /// Their launches.
    pub launches: u64,
    /// Products of which the provider says that it keeps the launch.
    pub kept: u64,
    /// Products of which a result differed.
    pub failed: u64,
    /// The first of them.
    pub messages: Vec<String>,
}

/// Counts what the provider says of launches that it keeps.
struct Told(Arc<AtomicU64>);

/// What it says.
const KEPT_WORDS: &str = "without cuBLASLt from now on";

impl<S: Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message::default();
        if *event.metadata().level() == Level::DEBUG {
            event.record(&mut message);
            self.0.fetch_add(message.0.contains(KEPT_WORDS).into(), Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// A product, and what is done around it.
struct Case<'a> {
    device: &'a Device,
    desc: BatchMatmulDesc,
    size: [i64; 4],
    add: Primitive<Add>,
    product: Primitive<BatchMatmul>,
    copier: Copier,
}

/// a, b, c and what is added to a, and the sum of all c.
struct Operands([Buffer; 5]);

impl Case<'_> {
    /// Elements of each of [`Operands`].
    fn counts(&self) -> [i64; 5] {
        let [batch, m, n, k] = self.size;
        [batch * m * k, batch * k * n, batch * m * n, batch * m * k, batch * m * n]
    }

    /// Numbers from 0.5 to 1 of either sign.
    fn operands(&self) -> Result<Operands> {
        let mut random = Random::new();
        let [a, b, c, d, e] = self.counts().map(|count| {
            let mut bytes = Vec::new();
            let scalars = count as usize * if self.desc.data.is_complex() { 2 } else { 1 };
            for _ in 0..scalars {
                let r = random.next();
                match self.desc.data {
                    DType::F16 => bytes.extend((r as u16 & 0x83ff | 0x3800).to_le_bytes()),
                    DType::BF16 => bytes.extend((r as u16 & 0x807f | 0x3f00).to_le_bytes()),
                    DType::F32 | DType::COMPLEX64 => {
                        bytes.extend((r as u32 & 0x807f_ffff | 0x3f00_0000).to_le_bytes())
                    }
                    _ => bytes.extend((r & 0x800f_ffff_ffff_ffff | 0x3fe0_0000_0000_0000).to_le_bytes()),
                }
            }
            self.device.upload::<u8>(&bytes)
        });
        Ok(Operands([a?, b?, c?, d?, e?]))
    }

    /// One turn: a changes, c is multiplied, and is added up.
    ///
    /// # Safety
    /// The operands are used by nobody else until the work is done.
    unsafe fn queue(&self, stream: &Stream, Operands(all): &Operands) -> Result<()> {
        let [a, b, c, d, e] = all.each_ref().map(Buffer::address);
        let [batch, m, n, k] = self.size;
        let (alpha, beta) = (Scalar::F64(0.25), Scalar::F64(-0.5));
        let [of_a, _, of_c, ..] = self.counts();
        let args = BatchMatmulArgs::new(batch, m, n, k, alpha, beta, a, b, c);
        // SAFETY: whole buffers of as many elements as each launch uses; sums are made in place.
        unsafe {
            self.add.launch_raw(stream, &AddArgs::new(of_a, a, &[a, d]))?;
            self.product.launch_raw(stream, &args)?;
            self.add.launch_raw(stream, &AddArgs::new(of_c, e, &[e, c]))
        }
    }

    /// Which of the results differ from those of launches that are not kept.
    fn differing(&self, stream: &Stream) -> Result<Vec<&'static str>> {
        let kept = self.operands()?;
        settled(stream, || {
            // SAFETY: operands of this case alone, waited for.
            (0..LAUNCHES).try_for_each(|_| unsafe { self.queue(stream, &kept) })
        })?;
        // SAFETY: as above.
        let graph = stream.capture(|stream| unsafe { self.queue(stream, &kept) })?;
        settled(stream, || (0..REPLAYS).try_for_each(|_| graph.launch(stream)))?;
        let places = [(); PLACES].map(|()| self.operands());
        let mut moved = Vec::new();
        for place in places {
            moved.push(place?);
        }
        for i in 0..LAUNCHES + REPLAYS {
            let (before, now) = (&moved[i.saturating_sub(1) % PLACES], &moved[i % PLACES]);
            settled(stream, || {
                for (from, to) in before.0.iter().zip(&now.0).filter(|_| i > 0) {
                    // SAFETY: buffers of as many bytes, of this case alone, waited for.
                    unsafe { self.copier.queue(stream, from.address(), to.address(), from.len() as u64) }?;
                }
                if i < LAUNCHES {
                    // SAFETY: as above.
                    return unsafe { self.queue(stream, now) };
                }
                Ok(())
            })?;
            if i >= LAUNCHES {
                // As the library computes in graphs, for which it may choose another algorithm.
                // SAFETY: as above.
                let graph = stream.capture(|stream| unsafe { self.queue(stream, now) })?;
                settled(stream, || graph.launch(stream))?;
            }
        }
        let wanted = &moved[(LAUNCHES + REPLAYS - 1) % PLACES];
        let mut differing = Vec::new();
        for (i, name) in [(0, "a"), (2, "c"), (4, "the sum of c")] {
            if kept.0[i].download::<u8>()? != wanted.0[i].download::<u8>()? {
                differing.push(name);
            }
        }
        Ok(differing)
    }
}

/// Checks products of all dtypes and transposes.
///
/// # Errors
/// Those of the provider.
pub fn check(runtime: &Runtime, device: &Device, sizes: &[[i64; 4]]) -> Result<Checked> {
    let told = Arc::new(AtomicU64::new(0));
    let listens = tracing_subscriber::registry().with(LevelFilter::DEBUG).with(Told(told.clone()));
    let mut checked = tracing::subscriber::with_default(listens, || compare(runtime, device, sizes))?;
    checked.kept = told.load(Ordering::Relaxed);
    Ok(checked)
}

fn compare(runtime: &Runtime, device: &Device, sizes: &[[i64; 4]]) -> Result<Checked> {
    let stream = device.stream()?;
    let (none, turned) = (Transpose::NONE, Transpose::TRANSPOSE);
    let mut checked = Checked::default();
    for dtype in DTYPES {
        for [a, b] in [[none, none], [none, turned], [turned, none], [turned, turned]] {
            for size in sizes {
                let desc = BatchMatmulDesc::new(a, b, dtype);
                let add = runtime.primitive(device, AddDesc::new(dtype))?;
                let product = runtime.primitive(device, desc)?;
                let copier = Copier::new(runtime, device)?;
                let differing =
                    Case { device, desc, size: *size, add, product, copier }.differing(&stream)?;
                checked.products += 1;
                checked.launches += (LAUNCHES + REPLAYS) as u64;
                if !differing.is_empty() {
                    checked.failed += 1;
                    let what = differing.join(" and ");
                    checked.messages.push(format!("{dtype} {:?} {size:?}: {what}", [a, b]));
                }
            }
        }
    }
    checked.messages.truncate(MESSAGES);
    Ok(checked)
}

/// An error where a product differs, and where so few were kept that nothing was compared.
///
/// # Errors
/// `Internal`.
pub fn judge(checked: &Checked) -> Result<()> {
    let Checked { products, kept, failed, .. } = checked;
    if *failed > 0 {
        return Err(Error::internal(format!("{failed} of {products} products differ")));
    }
    if 2 * kept < *products {
        return Err(Error::internal(format!("only {kept} of {products} products were kept")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Alone, Setup};

    #[test]
    fn launches_that_are_kept_are_compared_with_the_librarys() {
        let alone = Alone::new(Setup::default());
        {
            let runtime = alone.runtime(&[]);
            let device = runtime.device("cuda:0").unwrap();
            let checked = check(&runtime, device, &[[1, 2, 3, 2]]).unwrap();
            assert_eq!((checked.products, checked.launches, checked.failed), (24, 24 * 27, 0));
            assert_eq!(checked.kept, 24);
            assert_eq!(judge(&checked), Ok(()));
            // Of each product's launches 8 are the library's, and one of them is recorded.
            assert_eq!(alone.calls("cublasLtMatmul"), 24 * (27 + 8 + 1));
            let kept = alone.fake.log().into_iter().filter(|call| call.starts_with("cuLaunchKernelEx(0x77"));
            assert_eq!(kept.count(), 24 * (16 + 1));
        }
        assert_eq!(alone.fake.leaks(), [""; 0]);
    }

    #[test]
    fn what_differs_is_told() {
        let told = |failed, kept| {
            let error = judge(&Checked { products: 3, failed, kept, ..Checked::default() });
            error.unwrap_err().message().to_owned()
        };
        assert_eq!(told(2, 3), "2 of 3 products differ");
        assert_eq!(told(0, 1), "only 1 of 3 products were kept");
    }
}
