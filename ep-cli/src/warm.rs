//! `ep warm`.

use crate::failure::{Exit, Failure, named, no_device};
use crate::host::{Host, Required};
use crate::output::Out;
use clap::Args;
use ep_core::handle::{ProviderHandle, Target};
use ep_core::{Error, Result};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const EXAMPLES: &str = "\
Examples:
  ep warm --device cuda:0                 every kernel for a device that is here
  ep warm --arch sm_90                    the same for one that need not be
  ep warm --arch sm_90 --op softmax       the kernels of one op";

/// Prepares kernels before their first use, so that no program has to wait for a compiler
///
/// What is prepared is kept where the provider keeps it (CUDA: its cache folder), and can be shipped from there.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Warm {
    /// For this device, such as `cuda:0`
    #[arg(long, required_unless_present = "arch", conflicts_with = "arch")]
    device: Option<String>,
    /// For this kind of hardware, here or not, such as `sm_90`
    #[arg(long)]
    arch: Option<String>,
    /// Only the kernels of this op
    #[arg(long)]
    op: Option<String>,
    /// How many are prepared at a time [default: one for each core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
}

impl Warm {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
        let host = Host::load(config, Required::Ignored)?;
        let tasks = self.tasks(&host)?;
        let op = self.op.as_deref();
        for (instance, provider, target) in tasks {
            let count = provider.warm_count(&target, op).map_err(|e| named(&e))?;
            let fresh = prepare(&provider, &target, op, count, self.threads())?;
            let name = self.device.as_deref().or(self.arch.as_deref()).unwrap_or_default();
            let there = count - fresh;
            out.line(format!(
                "{instance}: {count} groups of kernels for {name}: {fresh} compiled, {there} there before"
            ))?;
        }
        Ok(())
    }

    /// Instances, and what each prepares for.
    fn tasks(&self, host: &Host) -> Result<Vec<(String, std::sync::Arc<ProviderHandle>, Target)>, Failure> {
        let nobody = |what: String| {
            let message =
                format!("no provider {what} prepares kernels; `ep list` shows what happened to each");
            Failure::new(Exit::NoProvider, message).with_config(&host.config)
        };
        let mut tasks = Vec::new();
        if let Some(name) = &self.device {
            let device = host.runtime.device(name).map_err(|e| no_device(&e).with_config(&host.config))?;
            for member in device.members() {
                let provider = member.handle().provider();
                if provider.can_warm() {
                    let target = Target::Device(member.handle().clone());
                    tasks.push((member.instance().to_owned(), provider.clone(), target));
                }
            }
            if tasks.is_empty() {
                return Err(nobody(format!("of {name}")));
            }
        }
        if let Some(arch) = &self.arch {
            for (instance, provider) in host.runtime.warmable() {
                tasks.push((instance.clone(), provider.clone(), Target::Named(arch.clone())));
            }
            if tasks.is_empty() {
                return Err(nobody("of the config".to_owned()));
            }
        }
        Ok(tasks)
    }

    fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.threads.map_or_else(cores, usize::from)
    }
}

/// Prepares all, and counts those for which there was something to do. The first error ends it.
fn prepare(
    provider: &ProviderHandle,
    target: &Target,
    op: Option<&str>,
    count: u64,
    threads: usize,
) -> Result<u64> {
    let (next, fresh) = (AtomicU64::new(0), AtomicU64::new(0));
    let bar = Bar::new(count);
    let work = || -> Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(());
            }
            match provider.warm_prepare(target, op, index) {
                Ok(done) => {
                    fresh.fetch_add(done.into(), Ordering::Relaxed);
                    bar.advance();
                }
                Err(e) => {
                    // Nobody takes another one.
                    next.store(count, Ordering::Relaxed);
                    return Err(e);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mine = work();
        others.into_iter().fold(mine, |first, other| {
            first.and(
                other.join().unwrap_or_else(|_| Err(Error::panic("a thread that prepares kernels panicked"))),
            )
        })
    })?;
    Ok(fresh.into_inner())
}

/// A bar on standard error, where that is a terminal.
struct Bar {
    total: u64,
    done: Mutex<u64>,
    shown: bool,
}

const BAR_WIDTH: u64 = 40;

impl Bar {
    fn new(total: u64) -> Bar {
        Bar { total, done: Mutex::new(0), shown: std::io::stderr().is_terminal() }
    }

    fn advance(&self) {
        let mut done = self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *done += 1;
        if self.shown {
            // A terminal that is gone is no reason to stop.
            let _gone = write!(std::io::stderr(), "\r{}", bar_line(*done, self.total));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.shown {
            let _gone = writeln!(std::io::stderr());
        }
    }
}

fn bar_line(done: u64, total: u64) -> String {
    let filled = (done * BAR_WIDTH / total.max(1)).min(BAR_WIDTH) as usize;
    let empty = BAR_WIDTH as usize - filled;
    format!("[{}{}] {done}/{total}", "#".repeat(filled), ".".repeat(empty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills() {
        assert_eq!(bar_line(0, 10), format!("[{}] 0/10", ".".repeat(40)));
        assert_eq!(bar_line(5, 10), format!("[{}{}] 5/10", "#".repeat(20), ".".repeat(20)));
        assert_eq!(bar_line(10, 10), format!("[{}] 10/10", "#".repeat(40)));
        assert!(bar_line(0, 0).ends_with("0/0"));
    }
}
