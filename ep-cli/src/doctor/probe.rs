//! A worker process, and what became of the provider in it.

use super::message::{Loaded, Message};
use crate::failure::Failure;
use ep_conformance::process::{Fate, Guardian, Tail, end_group, ended, has_ended};
use ep_conformance::protocol::receive;
use serde::Serialize;
use std::io::{BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What a worker may say: far more than one has to, and too little to fill memory.
const MOST_SAID: u64 = 1 << 20;
/// How many characters of what is no message are repeated.
const MOST_QUOTED: usize = 200;
/// How often a worker that says nothing is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long what an ended process has written may take to arrive.
const TO_ARRIVE: Duration = Duration::from_millis(200);

/// How a provider is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Everything that was tried works.
    Ok,
    /// It is sound and has nothing to drive here.
    Absent,
    /// It was not tried.
    Skipped,
    /// It returned an error, or computed something wrong.
    Failed,
    /// It ended its process.
    Crashed,
    /// It did not answer in time.
    Hung,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Absent => "absent",
            State::Skipped => "skipped",
            State::Failed => "failed",
            State::Crashed => "crashed",
            State::Hung => "hung",
        }
    }
}

/// What was found of a provider.
#[derive(Debug)]
pub struct Found {
    pub state: State,
    /// Where it ended; `None` where it is as it should be.
    pub step: Option<String>,
    /// Why; of a provider that works what it remarks.
    pub reason: String,
    /// As far as it came.
    pub loaded: Loaded,
    pub took: Duration,
}

/// Where a worker is.
#[derive(Clone, Default)]
struct Place {
    step: String,
    on: String,
}

impl Place {
    /// In words, for a message and for progress.
    fn text(&self) -> String {
        if self.on.is_empty() { self.step.clone() } else { format!("{} of {}", self.step, self.on) }
    }
}

/// What a worker has said so far.
#[derive(Default)]
struct Story {
    at: Place,
    loaded: Option<(Loaded, Place)>,
    /// The step and the reason of each failure.
    failures: Vec<(Place, String)>,
    remarks: Vec<String>,
    ended: bool,
}

impl Story {
    fn add(&mut self, message: Message) {
        match message {
            Message::Begin { step, on } => self.at = Place { step, on },
            Message::Loaded(loaded) => self.loaded = Some((loaded, self.at.clone())),
            Message::Failed(why) => self.failures.push((self.at.clone(), why)),
            Message::Remark(remark) => self.remarks.push(remark),
            Message::Ended => self.ended = true,
        }
    }

    /// How the provider is if its process ended as it should.
    fn judged(&self) -> (State, Option<&Place>, String) {
        let (loaded, at) = match &self.loaded {
            Some((loaded, at)) => (loaded.clone(), Some(at)),
            None => (Loaded::default(), None),
        };
        let mut reasons: Vec<String> = Vec::new();
        let mut add = |text: &str| {
            if !text.is_empty() {
                reasons.push(text.to_owned());
            }
        };
        add(&loaded.reason);
        self.failures.iter().for_each(|(_, why)| add(why));
        self.remarks.iter().for_each(|remark| add(remark));
        let reason = reasons.join("; ");
        match (self.failures.first(), loaded.status.as_str()) {
            (Some((at, _)), _) => (State::Failed, Some(at), reason),
            (None, "loaded") => (State::Ok, None, reason),
            (None, "absent") => (State::Absent, at, reason),
            (None, "skipped") => (State::Skipped, None, reason),
            (None, _) => (State::Failed, at, reason),
        }
    }
}

/// Tries a provider in a process of its own, for at most so long. `progress` is told each step. What the provider has
/// started ends with it; what has left the group of its process, only where there is a guardian.
pub fn probe(
    config: &Path,
    name: &str,
    timeout: Duration,
    guardian: Option<&Guardian>,
    progress: impl Fn(&str),
) -> Result<Found, Failure> {
    let started = Instant::now();
    let deadline = started + timeout;
    let mut worker = start(config, name)?;
    let (Some(output), Some(errors)) = (worker.stdout.take(), worker.stderr.take()) else {
        return Err(Failure::general("a pipe to the process that tries a provider is missing"));
    };
    let (errors, said) = (Tail::of(errors), messages(output));
    let mut story = Story::default();
    let broken = listen(&worker, &said, deadline, |message| {
        story.add(message);
        progress(&story.at.text());
    });
    // Who cannot be understood any more is not waited for.
    let until = if broken.is_some() { Instant::now() } else { deadline };
    let fate = end_group(&mut worker, until)
        .map_err(|e| Failure::general(format!("cannot wait for the process that tries `{name}`: {e}")))?;
    if let Some(guardian) = guardian {
        guardian
            .end_strays()
            .map_err(|e| Failure::general(format!("cannot see what `{name}` has left behind: {e}")))?;
    }
    let at = story.at.text();
    let mut found = match (broken, fate) {
        (Some(why), _) => {
            Found::ended_at(State::Failed, &story, format!("it wrote to the doctor's pipe: {why}"))
        }
        (None, Fate::Ended(status)) if story.ended && status.success() => {
            let (state, at, reason) = story.judged();
            let step = at.map(|at| at.step.clone());
            let loaded = story.loaded.map(|(loaded, _)| loaded).unwrap_or_default();
            Found { state, step, reason, loaded, took: Duration::ZERO }
        }
        (None, Fate::Ended(status)) => {
            let why = format!("{} in step {at}{}", ended(status), errors.said());
            Found::ended_at(State::Crashed, &story, why)
        }
        (None, fate) => {
            let stuck = if matches!(fate, Fate::Stuck) {
                ", and its process cannot be killed: a device or a file system does not answer it"
            } else {
                ""
            };
            let why = format!("no end of step {at} within {} s{stuck}{}", timeout.as_secs(), errors.said());
            Found::ended_at(State::Hung, &story, why)
        }
    };
    found.took = started.elapsed();
    Ok(found)
}

impl Found {
    /// Not as it should be, in the step that began last.
    fn ended_at(state: State, story: &Story, reason: String) -> Found {
        let loaded = story.loaded.as_ref().map(|(loaded, _)| loaded.clone()).unwrap_or_default();
        let before = story.failures.iter().map(|(_, why)| format!("{why}; then: ")).collect::<String>();
        let step = Some(story.at.step.clone());
        Found { state, step, reason: before + &reason, loaded, took: Duration::ZERO }
    }
}

fn start(config: &Path, name: &str) -> Result<Child, Failure> {
    let own = std::env::current_exe()
        .map_err(|e| Failure::general(format!("cannot find this program to start it again: {e}")))?;
    Command::new(own)
        .arg("doctor-worker")
        .arg("--config")
        .arg(config)
        .args(["--", name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own, so that what the provider starts can be ended with it.
        .process_group(0)
        .spawn()
        .map_err(|e| Failure::general(format!("cannot start a process to try `{name}`: {e}")))
}

/// What a worker says, as it comes.
fn messages(output: impl Read + Send + 'static) -> Receiver<ep_core::Result<Message>> {
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output.take(MOST_SAID));
        while let Some(message) = receive(&mut output).transpose() {
            let over = message.is_err();
            if sender.send(message).is_err() || over {
                return;
            }
        }
    });
    messages
}

/// Listens until the worker has ended, closed its pipe, said what is no message (which is returned), or time is up.
fn listen(
    worker: &Child,
    messages: &Receiver<ep_core::Result<Message>>,
    deadline: Instant,
    mut tell: impl FnMut(Message),
) -> Option<String> {
    // A child of the worker may hold the pipe open, so that its end alone says nothing.
    let mut gone: Option<Instant> = None;
    loop {
        match messages.recv_timeout(LOOK) {
            Ok(Ok(message)) => tell(message),
            Ok(Err(e)) => return Some(e.message().chars().take(MOST_QUOTED).collect()),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) if gone.is_some_and(|at| at.elapsed() >= TO_ARRIVE) => {
                return None;
            }
            Err(RecvTimeoutError::Timeout) => {
                if gone.is_none() && has_ended(worker).unwrap_or(true) {
                    gone = Some(Instant::now());
                }
            }
        }
        if Instant::now() >= deadline {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(step: &str) -> Message {
        Message::Begin { step: step.to_owned(), on: "x:0".to_owned() }
    }

    fn story(messages: Vec<Message>) -> Story {
        let mut story = Story::default();
        messages.into_iter().for_each(|m| story.add(m));
        story
    }

    fn loaded(status: &str) -> Message {
        Message::Loaded(Loaded { status: status.into(), reason: "why".into(), ..Loaded::default() })
    }

    #[test]
    fn the_first_failure_names_the_step_and_all_are_told() {
        let failed = |why: &str| Message::Failed(why.to_owned());
        let all = vec![
            begin("register"),
            loaded("loaded"),
            begin("copy"),
            failed("a"),
            begin("launch"),
            failed("b"),
            begin("end"),
        ];
        let story = story(all);
        let (state, at, reason) = story.judged();
        assert_eq!((state, at.unwrap().text()), (State::Failed, "copy of x:0".to_owned()));
        assert_eq!(reason, "why; a; b");
    }

    #[test]
    fn what_does_not_load_ended_where_it_was_said_and_not_at_the_end() {
        for (status, state) in [("absent", State::Absent), ("failed", State::Failed), ("", State::Failed)] {
            let story = story(vec![begin("open"), loaded(status), begin("end")]);
            let (found, at, reason) = story.judged();
            assert_eq!((found, at.unwrap().step.as_str(), reason.as_str()), (state, "open", "why"));
        }
        let story = story(vec![begin("open"), loaded("loaded"), begin("end")]);
        assert_eq!((story.judged().0, story.judged().1.is_none()), (State::Ok, true));
    }

    #[test]
    fn a_flood_without_an_end_of_line_is_bounded() {
        let said = messages(std::io::repeat(b'x'));
        assert!(said.recv_timeout(Duration::from_secs(10)).unwrap().is_err());
    }
}
