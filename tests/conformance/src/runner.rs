//! Worker processes and what becomes of them.

use crate::plan::{Group, Setup, Unit};
use crate::process::{Tail, ended};
use crate::protocol::{Command, End, Listing, Measured, Reply, receive, send};
use ep_core::{Error, Result};
use std::collections::{HashMap, VecDeque};
use std::io::BufReader;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Crashes and hangs of one unit after which the rest of it is not run.
const MOST_DEATHS: usize = 3;
/// Hangs of one op, or of one group of checks, after which the rest of it is not run: each costs the whole time that a
/// case may take.
const MOST_HANGS: usize = 3;

/// How workers are started, and how long they may take.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program and arguments of a worker.
    pub command: Vec<std::ffi::OsString>,
    /// Workers at a time.
    pub jobs: usize,
    /// How long a case may take.
    pub timeout: Duration,
    /// Whether nothing more is run once a case has failed.
    pub stop_at_failure: bool,
}

/// A case that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// Its name.
    pub name: String,
    /// Its unit: an index into [`Outcomes::units`].
    pub unit: usize,
    /// How it ended.
    pub end: End,
    /// Why not better.
    pub message: String,
    /// How fast.
    pub speed: Option<Measured>,
}

/// Everything that was run of one provider.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// What the provider says of itself.
    pub listing: Listing,
    /// The units, those of the listing first.
    pub units: Vec<Unit>,
    /// Their cases, in the order of the units.
    pub cases: Vec<Ran>,
}

/// Who wants to know how far it is. Called from several threads.
pub trait Progress: Sync {
    /// So many units will be run.
    fn units(&self, count: usize);
    /// A case has ended.
    fn case(&self, case: &Ran);
    /// A unit has ended.
    fn unit(&self, unit: &Unit);
}

/// Nobody does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn units(&self, _: usize) {}
    fn case(&self, _: &Ran) {}
    fn unit(&self, _: &Unit) {}
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that is ended when this is dropped.
struct Worker {
    child: Child,
    /// `None`: it was told to end.
    input: Option<ChildStdin>,
    replies: Receiver<Result<Reply>>,
    errors: Tail,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    fn start(launcher: &Launcher, setup: &Setup) -> Result<Worker> {
        let [program, args @ ..] = launcher.command.as_slice() else {
            return Err(Error::invalid("no program to start workers with"));
        };
        let mut child = std::process::Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Error::unavailable(format!("cannot start {}: {e}", program.display())))?;
        let pipe = || Error::internal("a pipe to the worker is missing");
        let (input, output) = (child.stdin.take().ok_or_else(pipe)?, child.stdout.take().ok_or_else(pipe)?);
        let errors = Tail::of(child.stderr.take().ok_or_else(pipe)?);
        let (sender, replies) = channel();
        let reading = std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            while let Some(reply) = receive(&mut output).transpose() {
                let over = reply.is_err();
                if sender.send(reply).is_err() || over {
                    return;
                }
            }
        });
        let mut worker = Worker { child, input: Some(input), replies, errors, reader: Some(reading) };
        worker.say(&Command::Setup(setup.clone()))?;
        Ok(worker)
    }

    fn say(&mut self, command: &Command) -> Result<()> {
        let gone = || Error::internal("the worker was told to end");
        send(self.input.as_mut().ok_or_else(gone)?, command)
    }

    /// Has it destroy what it made and end; `Some` is what went wrong with that.
    fn finish(mut self, timeout: Duration) -> Option<String> {
        // There are no more commands, and so it ends.
        drop(self.input.take());
        let death = match self.reply(timeout) {
            Err(Death::Ended) if self.child.wait().is_ok_and(|status| status.success()) => return None,
            Err(death) => death,
            Ok(reply) => Death::Broken(format!("{reply:?} without a command")),
        };
        Some(format!("after the last case: {}", self.bury(&death, timeout)))
    }

    fn reply(&self, timeout: Duration) -> std::result::Result<Reply, Death> {
        match self.replies.recv_timeout(timeout) {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(e)) => Err(Death::Broken(e.to_string())),
            Err(RecvTimeoutError::Timeout) => Err(Death::Hang),
            Err(RecvTimeoutError::Disconnected) => Err(Death::Ended),
        }
    }

    /// Ends it and says how it ended.
    fn bury(mut self, death: &Death, timeout: Duration) -> String {
        if !matches!(death, Death::Ended) {
            // It may have ended by itself meanwhile.
            let _already_gone = self.child.kill();
        }
        let status = self.child.wait();
        // All that it wrote is in the pipes; nothing of it is left that could write more.
        if self.reader.take().is_some_and(|reader| reader.join().is_err()) {
            return "the reader of the worker's output panicked".to_owned();
        }
        let how = match (death, status) {
            (Death::Hang, _) => format!("no answer within {} s, and ended by the kit", timeout.as_secs()),
            (Death::Broken(why), _) => format!("wrote to the kit's pipe: {why}"),
            (Death::Ended, Ok(status)) => ended(status),
            (Death::Ended, Err(e)) => format!("the process has gone: {e}"),
        };
        how + &self.errors.said()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail for a process that has ended and was waited for, which is what this is to bring about.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// Why a worker does not answer.
enum Death {
    Hang,
    Ended,
    Broken(String),
}

/// Runs a provider's units in worker processes.
///
/// # Errors
/// When workers cannot be started.
pub fn run(launcher: &Launcher, setup: &Setup, progress: &dyn Progress) -> Result<Outcomes> {
    let mut outcomes = Outcomes::default();
    let load = Unit::check(setup, Group::Load, "load");
    let mut worker = Worker::start(launcher, setup)?;
    let mut ends = Vec::new();
    let asked = worker.say(&Command::List);
    let listing = match asked.map_err(|_| Death::Ended).and_then(|()| worker.reply(launcher.timeout)) {
        Ok(Reply::Listing(listing)) => {
            ends.extend(worker.finish(launcher.timeout));
            listing
        }
        Ok(other) => {
            return Err(Error::internal(format!("a worker answered {other:?} when asked what there is")));
        }
        Err(death) => {
            let failed = Some(worker.bury(&death, launcher.timeout));
            // The contract can be checked all the same.
            Listing { failed, units: crate::abi::units(setup), ..Listing::default() }
        }
    };
    outcomes.units.clone_from(&listing.units);
    let of_load = |end, message: &str| Ran {
        name: load.name.clone(),
        unit: listing.units.len(),
        end,
        message: message.to_owned(),
        speed: None,
    };
    let loaded = match (&listing.failed, &listing.absent) {
        (Some(why), _) if listing.units.is_empty() => {
            Some(of_load(End::Failed, &format!("{why}; nothing else was tried")))
        }
        (Some(why), _) => Some(of_load(End::Failed, why)),
        (None, Some(why)) => Some(of_load(End::Unsupported, why)),
        (None, None) => None,
    };
    progress.units(outcomes.units.len());
    let queue: Mutex<VecDeque<usize>> = Mutex::new((0..outcomes.units.len()).collect());
    let results: Mutex<Vec<Ran>> = Mutex::default();
    let hangs: Mutex<HashMap<String, usize>> = Mutex::default();
    let stopped = AtomicBool::new(launcher.stop_at_failure && loaded.as_ref().is_some_and(failed));
    let ends = Mutex::new(ends);
    let shared =
        Shared { launcher, setup, progress, units: &outcomes.units, queue, results, hangs, stopped, ends };
    let jobs = launcher.jobs.max(1).min(outcomes.units.len().max(1));
    let threads: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(|| shared.work())).collect();
        let panicked = |_| Err(Error::panic("a thread of the kit panicked"));
        threads.into_iter().map(|t| t.join().unwrap_or_else(panicked)).collect()
    });
    threads.into_iter().collect::<Result<()>>()?;
    let ends = shared.ends.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut cases = shared.results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut of_process: Vec<Ran> = loaded.into_iter().collect();
    if !ends.is_empty() {
        let name = Unit::check(setup, Group::Load, "end").name;
        of_process.push(Ran { name, ..of_load(End::Failed, &ends.join("; ")) });
    }
    if !of_process.is_empty() {
        outcomes.units.push(load);
        of_process.iter().for_each(|case| progress.case(case));
        cases.extend(of_process);
    }
    // Stable: the cases of a unit keep their order.
    cases.sort_by_key(|c| c.unit);
    Ok(Outcomes { listing, cases, ..outcomes })
}

fn failed(case: &Ran) -> bool {
    case.end == End::Failed
}

/// How far a unit is.
struct Place {
    /// The case that runs, or else the next one at the earliest.
    index: usize,
    /// The name of the case that runs.
    name: Option<String>,
}

/// What the threads share that have a worker each.
struct Shared<'a> {
    launcher: &'a Launcher,
    setup: &'a Setup,
    progress: &'a dyn Progress,
    units: &'a [Unit],
    queue: Mutex<VecDeque<usize>>,
    results: Mutex<Vec<Ran>>,
    /// By group and op.
    hangs: Mutex<HashMap<String, usize>>,
    /// A case has failed, and nothing more is to be run.
    stopped: AtomicBool,
    /// What went wrong when workers ended.
    ends: Mutex<Vec<String>>,
}

impl Shared<'_> {
    fn work(&self) -> Result<()> {
        let mut worker = None;
        loop {
            let next = lock(&self.queue).pop_front().filter(|_| !self.is_stopped());
            let Some(unit) = next else {
                let wrong = worker.and_then(|worker: Worker| worker.finish(self.launcher.timeout));
                lock(&self.ends).extend(wrong);
                return Ok(());
            };
            self.unit(unit, &mut worker)?;
            self.progress.unit(&self.units[unit]);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn note(&self, unit: usize, name: String, end: End, message: String, speed: Option<Measured>) {
        let ran = Ran { name, unit, end, message, speed };
        if self.launcher.stop_at_failure && failed(&ran) {
            self.stopped.store(true, Ordering::Relaxed);
        }
        self.progress.case(&ran);
        lock(&self.results).push(ran);
    }

    /// Runs a unit, in a fresh worker after each death.
    fn unit(&self, index: usize, slot: &mut Option<Worker>) -> Result<()> {
        let unit = &self.units[index];
        let family = format!("{} {}", unit.group, unit.op);
        let (mut skip, mut deaths) = (0, 0);
        loop {
            let hung = lock(&self.hangs).get(&family).copied().unwrap_or(0) >= MOST_HANGS;
            if hung || deaths >= MOST_DEATHS {
                let why = if hung {
                    format!("not run: {MOST_HANGS} cases of {} hung before", family.trim())
                } else {
                    format!(
                        "the rest is not run: the provider's process ended {MOST_DEATHS} times in this unit"
                    )
                };
                self.note(index, unit.name.clone(), End::Failed, why, None);
                return Ok(());
            }
            let mut worker = match slot.take() {
                Some(worker) => worker,
                None => Worker::start(self.launcher, self.setup)?,
            };
            let mut at = Place { index: skip, name: None };
            match self.talk(index, &mut worker, &mut at) {
                // In the middle of something, and ended.
                Ok(()) if self.is_stopped() => return Ok(()),
                Ok(()) => {
                    *slot = Some(worker);
                    return Ok(());
                }
                Err(death) => {
                    if matches!(death, Death::Hang) {
                        *lock(&self.hangs).entry(family.clone()).or_default() += 1;
                    }
                    let message = worker.bury(&death, self.launcher.timeout);
                    // Between two cases it is not known which one comes next.
                    skip = at.index + usize::from(at.name.is_some());
                    let name = at.name.unwrap_or_else(|| unit.name.clone());
                    self.note(index, name, End::Failed, message, None);
                    if self.is_stopped() {
                        return Ok(());
                    }
                    deaths += 1;
                }
            }
        }
    }

    /// Has a worker run a unit from `at` on, and keeps track there.
    fn talk(&self, index: usize, worker: &mut Worker, at: &mut Place) -> std::result::Result<(), Death> {
        let unit = self.units[index].name.clone();
        worker.say(&Command::Run { unit, skip: at.index }).map_err(|_| Death::Ended)?;
        loop {
            match worker.reply(self.launcher.timeout)? {
                Reply::Begin { index, name } => *at = Place { index, name: Some(name) },
                Reply::End { end, message, speed } => match at.name.take() {
                    Some(name) => {
                        at.index += 1;
                        self.note(index, name, end, message, speed);
                        if self.is_stopped() {
                            return Ok(());
                        }
                    }
                    None => return Err(Death::Broken("the end of a case that never began".into())),
                },
                Reply::Done => return Ok(()),
                Reply::Error(why) => {
                    self.note(index, self.units[index].name.clone(), End::Failed, why, None);
                    return Ok(());
                }
                Reply::Listing(_) => return Err(Death::Broken("a listing that nobody asked for".into())),
            }
        }
    }
}
